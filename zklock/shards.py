"""A shard as its handler sees it, in a thread, a process or an asyncio task; and what runs it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import mmap
import multiprocessing
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from concurrent.futures import ThreadPoolExecutor as Threads
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from zklock.clock import check_timeout, clock
from zklock.desks import MAX_SHARDS
from zklock.errors import LockLost
from zklock.grant import GrantBase

MAX_PROCESSES = 512
"""Processes that ``executor="processes"`` starts at most, one for each shard that runs."""

_LOOK = 0.02
"""Seconds between two looks of a process that waits to be told to stop."""


class Stop(Protocol):
    """What a handler is told to stop by: ``threading.Event``, ``asyncio.Event``, or alike."""

    def is_set(self) -> bool:
        """Whether the handler is to return."""


class Shard:
    """One shard that this worker owns, for as long as it does.

    ``number``; ``token``, the ``FencingToken`` of this ownership; ``should_stop``, which is set
    when the handler is to end its work and return: the shard is lost, or is to be handed over.
    It is a ``threading.Event`` in a thread, an ``asyncio.Event`` in a task, and in a process an
    object with its ``is_set()`` and ``wait(timeout)``.
    """

    def __init__(self, number: int, grant: GrantBase, should_stop: Any) -> None:
        self.number = number
        self.token = grant.token
        self.should_stop = should_stop
        self._grant = grant

    @property
    def held(self) -> bool:
        """Whether the shard may be believed to be owned, at the moment of the call.

        See ``Grant.held``; in a process, too, the clock answers.
        """
        return self._grant.held

    def check(self) -> None:
        """Raise ``LockLost`` once the shard is lost, ``NotHeld`` once it was handed over."""
        self._grant.check()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.number} token={self.token}>"


Handler: TypeAlias = Callable[[Shard], Any]


class Runner(Protocol):
    """Runs handlers somewhere."""

    def submit(self, number: int, grant: GrantBase) -> Task:
        """Begin to handle a shard."""

    def close(self) -> None:
        """Wait for what runs, and end what was started for it."""


class Task:
    """A handler that runs, or waits to. ``tell()``: have it stop; ``lose()``: the shard is lost."""

    def __init__(
        self,
        future: Future[Any],
        tell: Callable[[], object],
        lose: Callable[[], object] | None = None,
    ) -> None:
        self.future = future
        self._tell = tell
        self._lose = lose or tell

    def tell(self) -> None:
        """Have it stop; it does not start any more if it has not."""
        self._tell()
        self.future.cancel()

    def lose(self) -> None:
        """Have it stop, as the shard is lost."""
        self._lose()
        self.future.cancel()


class InThreads:
    """Runs handlers on threads of an executor."""

    def __init__(self, handler: Handler, executor: Executor | None) -> None:
        self._handler = handler
        self._own = executor is None
        self._executor = executor or Threads(MAX_SHARDS, "zklock-shard")

    def submit(self, number: int, grant: GrantBase) -> Task:
        """Begin to handle a shard."""
        stop = threading.Event()
        future = self._executor.submit(self._handler, Shard(number, grant, stop))
        return Task(future, stop.set)

    def close(self) -> None:
        """Wait for what runs."""
        if self._own:
            self._executor.shutdown()


class InTasks:
    """Runs handlers as tasks of an event loop; what works on a shard that is lost is cancelled."""

    def __init__(self, handler: Handler, loop: asyncio.AbstractEventLoop | None) -> None:
        self._handler = handler
        self._own = loop is None
        self._loop = loop or asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        if self._own:
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="zklock-loop", daemon=True
            )
            self._thread.start()

    def submit(self, number: int, grant: GrantBase) -> Task:
        """Begin to handle a shard."""
        stop = asyncio.Event()
        call = _Call(self._handler, Shard(number, grant, stop))
        future = on_loop(self._loop, call.run())
        return Task(future, lambda: self._soon(stop.set), lambda: self._soon(call.lose))

    def _soon(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks are over
            self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """End the loop, if it is of its own."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class _Call:
    """One call of a handler, as a task. For its loop."""

    def __init__(self, handler: Handler, shard: Shard) -> None:
        self._handler = handler
        self._shard = shard
        self._task: asyncio.Task[Any] | None = None
        self._lost = False

    async def run(self) -> None:
        """Call it; the cancellation for the loss ends here."""
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
        """Have it stop, and cancel it."""
        self._lost = True
        self._shard.should_stop.set()
        if self._task is not None:
            self._task.cancel()


def on_loop(loop: asyncio.AbstractEventLoop, what: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Run on a loop → a future that cannot be cancelled, as what runs is to end by itself.

    One that was cancelled by others ends with ``asyncio.CancelledError``. ``RuntimeError`` if the
    loop is closed.
    """
    try:
        future = asyncio.run_coroutine_threadsafe(what, loop)
    except RuntimeError:
        what.close()
        raise
    kept: Future[Any] = Future()
    kept.set_running_or_notify_cancel()

    def done(future: Future[Any]) -> None:
        if future.cancelled():
            kept.set_exception(asyncio.CancelledError("cancelled by others than zklock"))
        elif (error := future.exception()) is not None:
            kept.set_exception(error)
        else:
            kept.set_result(future.result())

    future.add_done_callback(done)
    return kept


# Processes. A shared file says until when the lease runs, and for each shard whose turn it is and
# what was told: so a process knows that its shard is lost although the one that owns it stands
# still, or is gone.

_RUNS, _STOPS, _LOST = 0, 1, 2
_LEASE = 1  # numbers of 8 bytes
_SIZE = 8 * (_LEASE + MAX_SHARDS)


class Board:
    """The shared file, for the process that owns the shards."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="zklock-pool-")  # noqa: SIM115
        self._file.truncate(_SIZE)
        self._map = mmap.mmap(self._file.fileno(), _SIZE)
        self._lease = memoryview(self._map)[: 8 * _LEASE].cast("d")
        self._told = memoryview(self._map)[8 * _LEASE :].cast("Q")
        self._turns = count(1)
        self.path = self._file.name

    def lease(self, end: float) -> None:
        """Note until when the lease runs, on the clock of leases."""
        self._lease[0] = end

    def begin(self, number: int) -> int:
        """Begin a turn of a shard's handler, and return it; those of earlier turns are lost."""
        turn = next(self._turns) << 2
        self._told[number] = turn | _RUNS
        return turn

    def note(self, number: int, turn: int, state: int) -> None:
        """Note what the handler is told."""
        self._told[number] = turn | state

    def close(self) -> None:
        """Remove the file; who has opened it finds its shards lost once the lease is over."""
        self._lease[0] = 0.0
        self._lease.release()
        self._told.release()
        self._map.close()
        self._file.close()


@lru_cache(maxsize=16)
def _view(path: str) -> tuple[memoryview[float], memoryview[int]]:
    with Path(path).open("rb") as file:
        shared = memoryview(mmap.mmap(file.fileno(), _SIZE, access=mmap.ACCESS_READ))
    return shared[: 8 * _LEASE].cast("d"), shared[8 * _LEASE :].cast("Q")


class RemoteStop:
    """Tells a handler in a process to stop; looks every 20 ms while it is waited for."""

    def __init__(self, board: str, number: int, turn: int) -> None:
        self._board = board
        self._number = number
        self._turn = turn

    def is_set(self) -> bool:
        """Whether the handler is to return."""
        return self._state() != _RUNS

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is, for so many seconds; whether it is."""
        limit = check_timeout(timeout)
        until = None if limit is None else clock() + limit
        while not self.is_set():
            left = _LOOK if until is None else until - clock()
            if left <= 0:
                return False
            time.sleep(min(left, _LOOK))
        return True

    def _state(self) -> int:
        try:
            lease, told = _view(self._board)
        except FileNotFoundError:
            return _LOST  # the pool has ended
        now = told[self._number]
        return now - self._turn if lease[0] > clock() and now >> 2 == self._turn >> 2 else _LOST


class RemoteShard(Shard):
    """A shard as a handler in another process sees it."""

    def __init__(self, number: int, grant: GrantBase, stop: RemoteStop) -> None:
        self.number = number
        self.token = grant.token
        self.should_stop = stop
        self._path = grant.lock_path

    @property
    def held(self) -> bool:
        """Whether the shard may be believed to be owned, at the moment of the call."""
        return bool(self.should_stop._state() != _LOST)

    def check(self) -> None:
        """Raise ``LockLost`` once the shard is lost."""
        if not self.held:
            raise LockLost(
                f"{self._path}: shard lost, token {self.token}: stop the guarded work and return",
                path=self._path,
                token=self.token,
            )


class InProcesses:
    """Runs handlers on processes of an executor."""

    def __init__(self, handler: Handler, executor: ProcessPoolExecutor | None) -> None:
        self._handler = handler
        self._own = executor is None
        self._executor = executor or self._start()
        self._board = Board()

    def _start(self) -> ProcessPoolExecutor:
        # Not forked: this process has threads, and a session that is not the child's.
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(MAX_PROCESSES, mp_context=spawn)

    def submit(self, number: int, grant: GrantBase) -> Task:
        """Begin to handle a shard; the processes are made anew if one of them has been killed."""
        turn = self._board.begin(number)
        self.lease(clock() + grant.remaining())
        shard = RemoteShard(number, grant, RemoteStop(self._board.path, number, turn))
        try:
            future = self._executor.submit(self._handler, shard)
        except BrokenExecutor:
            if not self._own:
                raise
            self._executor.shutdown(wait=False)
            self._executor = self._start()
            future = self._executor.submit(self._handler, shard)
        note = partial(self._board.note, number, turn)
        return Task(future, lambda: note(_STOPS), lambda: note(_LOST))

    def lease(self, end: float) -> None:
        """Note until when the lease runs."""
        self._board.lease(end)

    def close(self) -> None:
        """Wait for what runs."""
        if self._own:
            self._executor.shutdown()
        self._board.close()


def runner(
    handler: Handler, executor: object
) -> Callable[[asyncio.AbstractEventLoop | None], Runner]:
    """Return what makes the runner of a handler; ``TypeError``, ``ValueError`` if nothing can.

    It is told the loop that coroutine functions run on, where the executor is no loop; ``None``
    for one on a thread of its own.
    """
    if not callable(handler):
        raise TypeError(f"handler must be callable, not {type(handler).__name__}")
    awaits = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )
    if executor is None:
        executor = "asyncio" if awaits else "threads"
    if isinstance(executor, str) and executor not in {"threads", "processes", "asyncio"}:
        raise ValueError(
            "executor must be 'threads', 'processes', 'asyncio', an executor or a loop, not "
            f"{executor!r}"
        )
    if not isinstance(executor, str | Executor | asyncio.AbstractEventLoop):
        raise TypeError(f"executor must be no {type(executor).__name__}")
    tasks = executor == "asyncio" or isinstance(executor, asyncio.AbstractEventLoop)
    if tasks != awaits:
        raise TypeError("a coroutine function goes with executor='asyncio' or a loop, and only it")
    if isinstance(executor, asyncio.AbstractEventLoop):
        loop = executor
        return lambda home: InTasks(handler, loop)
    if tasks:
        return partial(InTasks, handler)
    if executor == "processes" or isinstance(executor, ProcessPoolExecutor):
        try:
            pickle.dumps(handler)
        except Exception as error:
            raise TypeError(
                f"a handler for processes must be a module's function: {error}"
            ) from None
    if executor == "processes":
        return lambda home: InProcesses(handler, None)
    if isinstance(executor, ProcessPoolExecutor):
        processes = executor
        return lambda home: InProcesses(handler, processes)
    threads = executor if isinstance(executor, Executor) else None
    return lambda home: InThreads(handler, threads)
