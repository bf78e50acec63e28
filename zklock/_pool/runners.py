"""A shard as its handler sees it, and the runners of handlers in threads and in asyncio tasks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import BrokenExecutor, Executor, Future, InvalidStateError
from functools import partial
from typing import Any, Protocol, TypeAlias

from zklock._core.callbacks import ran
from zklock._core.grant import GrantBase
from zklock._ground import threads
from zklock._ground.events import Event
from zklock._ground.process import this_process
from zklock._pool.keys import MAX_SHARDS, Key
from zklock._pool.own_threads import Calling, OwnThreads
from zklock._telemetry.subscriptions import in_child

_LEFT = 5.0
"""Seconds that what handlers have left on the pool's own loop has to end, once it is cancelled."""


class Stop(Protocol):
    """The event that tells a handler to stop: a ``threading.Event``, or similar."""

    def is_set(self) -> bool:
        """Return whether the handler should return."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until the handler should return; whether it should."""


class Shard:
    """One shard that this worker owns, for as long as it owns it.

    ``token``: the ``FencingToken`` of this ownership. ``should_stop`` is set when the handler
    should end its work and return: the shard is lost, or has to be handed over. It is a
    ``threading.Event`` in a thread. In a process it is an object with the same ``is_set()`` and
    ``wait(timeout)``. A coroutine function gets a ``zklock.aio.Shard``.
    """

    should_stop: Stop

    def __init__(self, shard: int | str, grant: GrantBase, should_stop: Any) -> None:
        self._shard = shard
        self.token = grant.token
        self.should_stop = should_stop
        self._grant = grant

    @property
    def number(self) -> int:
        """The shard's number; ``AttributeError`` in a pool whose shards have names."""
        if isinstance(self._shard, str):
            raise AttributeError(  # noqa: TRY004 - so that hasattr() says no
                f"shard {self._shard!r} has no number: this pool's shards have names, use "
                "shard.name"
            )
        return self._shard

    @property
    def name(self) -> str:
        """The shard's name, or its number as text."""
        return str(self._shard)

    @property
    def held(self) -> bool:
        """Whether the shard may be believed to be owned, at the moment of the call.

        See ``Grant.held``. In a process, the clock answers, too.
        """
        return self._grant.held

    def check(self) -> None:
        """Raise ``LockLost`` once the shard is lost, ``NotHeld`` once it is handed over."""
        self._grant.check()

    def __repr__(self) -> str:
        return f"<Shard {self._shard} token={self.token}>"


class TaskShard(Shard):
    """One shard that this worker owns: a :class:`zklock.Shard` for a handler in a task.

    ``should_stop`` is an ``asyncio.Event``.
    """

    should_stop: asyncio.Event  # type: ignore[assignment]


ShardHandler: TypeAlias = Callable[[Shard], Any] | Callable[[TaskShard], Coroutine[Any, Any, Any]]


class CannotRun(Exception):
    """A handler was not called, or its executor ended it: it has not failed by itself.

    ``for_good``: nothing will run there any more.
    """

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


class Runner(Protocol):
    def submit(self, shard: Key, grant: GrantBase) -> Task:
        """Begin to handle a shard; ``CannotRun``.

        The future of the task also ends with ``CannotRun`` if it was not the handler that failed.
        """

    def close(self) -> None:
        """Wait for the running handlers, and end what was started for them."""


class Task:
    """A handler that runs, or waits to. ``future`` ends with it, or with ``CannotRun``.

    ``tell``: has it stop; ``lose``: tells it that the shard is lost, too.
    """

    def __init__(
        self,
        tell: Callable[[], object],
        lose: Callable[[], object] | None = None,
        future: Future[Any] | None = None,
    ) -> None:
        self.future = future or Future()
        self._tell = tell
        self._lose = lose or tell
        self._queued: Future[Any] | None = None
        self._called_off = False
        self._begins: dict[None, bool] = {}  # set once, by setdefault(), which is one step

    def tell(self) -> None:
        """Have it stop. If it has not started, it does not start any more."""
        self._tell()
        self.call_off()

    def lose(self) -> None:
        """Have it stop, because the shard is lost."""
        self._lose()
        self.call_off()

    def call_off(self) -> None:
        """Have it not begin, if it waits for its turn."""
        self._called_off = True
        if self._queued is not None:
            self._queued.cancel()

    # For runners.

    def run_by(self, executor: Calling, call: Callable[[], object]) -> None:
        """Have an executor call, and end with the call. If it refuses, raise, and do not call.

        ``ThreadPoolExecutor`` puts a call into its queue, and then starts a thread. If no thread
        can be started, ``submit()`` raises, and the call stays in the queue: another thread of the
        executor may have it already, or gets it later.
        """
        try:
            queued = executor.submit(self._run, call)
        except Exception:
            if not self._begins.setdefault(None, False):
                raise
        else:
            self._queued = queued
            queued.add_done_callback(lambda _: settle(self.future, self._error(queued)))

    def _run(self, call: Callable[[], object]) -> None:
        if not self._begins.setdefault(None, True):
            return
        process = this_process()
        try:
            call()
        except BaseException as error:
            if in_child(process):
                raise
            settle(self.future, error)
            del self  # the error has this frame: a circle
        else:
            if not in_child(process):
                settle(self.future, None)

    def _error(self, queued: Future[Any]) -> BaseException | None:
        """Return how a call that is over has failed, ``None`` if it has not, or was called off."""
        if queued.cancelled():
            # An executor that is shut down cancels what waits. It refuses what comes later.
            return None if self._called_off else CannotRun("the executor has cancelled its call")
        error = queued.exception()
        if isinstance(error, BrokenExecutor) and None not in self._begins:
            return CannotRun(f"the executor is broken: {error!r}", for_good=True)
        return error


def settle(future: Future[Any], error: BaseException | None) -> None:
    """End a future that has not ended."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class InThreads:
    """Runs handlers on threads of an executor."""

    def __init__(self, handler: ShardHandler, executor: Executor | None) -> None:
        self._handler: Callable[[Any], object] = handler
        self._own = executor is None
        self._executor: Calling = executor or OwnThreads(MAX_SHARDS, "zklock-shard")

    def submit(self, shard: Key, grant: GrantBase) -> Task:
        stop = Event()
        task, mine = Task(stop.set), Shard(shard, grant, stop)
        try:
            task.run_by(self._executor, lambda: ran("the handler", self._handler(mine)))
        except Exception as error:
            raise CannotRun(
                f"the executor refuses work: {error!r}", for_good=not self._own
            ) from error
        return task

    def close(self) -> None:
        if self._own:
            self._executor.shutdown()


class OnLoop:
    """Calls of coroutine functions on an event loop, from any thread.

    A loop that is closed leaves tasks that never end, as nobody has cancelled them, or as they
    began too late for that. So somebody has to look from time to time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._futures: set[Future[Any]] = set()  # of the calls that have not ended

    def begin(self, what: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run it → a future. Cancelling that has no effect: the coroutine has to end by itself.

        If others cancel the coroutine, the future ends with ``asyncio.CancelledError``. Raises
        ``RuntimeError`` if the loop is closed.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(what, self._loop)
        except RuntimeError:
            what.close()
            raise
        kept: Future[Any] = Future()
        self._futures.add(kept)
        future.add_done_callback(partial(self._done, kept))
        return kept

    def look(self) -> bool:
        """End the futures of what a closed loop has left. Return whether to look again."""
        if self._loop.is_closed():
            for kept in list(self._futures):
                self._end(kept, CannotRun("its event loop is closed", for_good=True))
        return bool(self._futures)

    def _done(self, kept: Future[Any], future: Future[Any]) -> None:
        if future.cancelled():
            self._end(kept, asyncio.CancelledError("cancelled by others than zklock"))
        else:
            self._end(kept, future.exception())

    def _end(self, kept: Future[Any], error: BaseException | None) -> None:
        self._futures.discard(kept)
        settle(kept, error)


class InTasks(OnLoop):
    """Runs handlers as tasks of an event loop. The handler of a lost shard is cancelled."""

    def __init__(self, handler: ShardHandler, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__(loop or asyncio.new_event_loop())
        self._handler = handler
        self._own = loop is None
        self._closing = False
        self._thread: threading.Thread | None = None
        if self._own:
            self._thread = threading.Thread(target=self._run, name="zklock-loop", daemon=True)
            try:
                threads.begin(self._thread)
            except BaseException:
                self._loop.close()
                raise

    def submit(self, shard: Key, grant: GrantBase) -> Task:
        stop = asyncio.Event()
        call = _Call(self._handler, TaskShard(shard, grant, stop))
        try:
            future = self.begin(call.run())
        except RuntimeError as error:
            raise CannotRun("its event loop is closed", for_good=True) from error
        return Task(lambda: self._soon(stop.set), lambda: self._soon(call.lose), future)

    def _soon(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs there
            self._loop.call_soon_threadsafe(call)

    def _run(self) -> None:
        """Run the loop until it is closed. A loop raises these errors of a task a second time."""
        while not self._closing:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            self._loop.run_until_complete(_end_what_is_left())

    def close(self) -> None:
        """End the loop, if this runner started it."""
        if self._thread is not None:
            self._closing = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _end_what_is_left() -> None:
    """Cancel the tasks that handlers have left, and close their generators, as at a loop's end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_LEFT)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.get_running_loop().shutdown_asyncgens(), _LEFT)


class _Call:
    """One call of a handler, as a task. Used on its loop only."""

    def __init__(self, handler: Callable[[TaskShard], Any], shard: TaskShard) -> None:
        self._handler = handler
        self._shard = shard
        self._task: asyncio.Task[Any] | None = None
        self._lost = False

    async def run(self) -> None:
        """Call the handler. A cancellation because of the loss ends here."""
        if self._lost:
            return
        self._task = asyncio.current_task()
        try:
            await self._handler(self._shard)
        except asyncio.CancelledError:
            if not self._lost:
                raise
        finally:
            self._task = None

    def lose(self) -> None:
        """Have the handler stop, and cancel it."""
        self._lost = True
        self._shard.should_stop.set()
        if self._task is not None:
            self._task.cancel()
