"""How a coroutine waits for answers from threads. It uses no thread and never blocks the loop."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any, Generic, TypeVar

from zklock._engine.ports import Pending
from zklock._engine.script import A, Front
from zklock._ground import threads
from zklock._ground.async_event import settle
from zklock._ground.records import log_fields

log = logging.getLogger("zklock")
T = TypeVar("T")


def call_soon(
    loop: asyncio.AbstractEventLoop, call: Callable[[], object], context: Context | None = None
) -> bool:
    """Call soon on the loop, from any thread. Return ``False`` if the loop is closed."""
    try:
        loop.call_soon_threadsafe(call, context=context)
    except RuntimeError:
        return False
    return True


def cancel(task: asyncio.Task[Any]) -> bool:
    """Cancel a task. Return ``False`` if it is over, or its loop is closed."""
    try:
        return task.cancel()
    except RuntimeError:
        return False


class Turn:
    """A place in the line of those that are about to begin. It is given up as an attempt is."""

    __slots__ = ("_come", "_decided", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._come: asyncio.Future[bool] = loop.create_future()
        self._decided: dict[None, Any] = {}  # an error, or who has begun; set once, by setdefault()

    def come(self) -> None:
        """Let it begin."""
        settle(self._come, True)

    def wake(self) -> None:
        """End the wait, from any thread."""
        call_soon(self._loop, partial(settle, self._come, False))

    def wait(self, limit: float | None) -> Awaitable[bool]:
        """Wait for the turn, at most ``limit`` seconds. Return whether it has come."""
        return self._come if limit is None else _in_time(self._loop, self._come, limit)

    def give_up(self, error: BaseException) -> bool:
        """Give up with this error, or have the one who has begun give up."""
        decided = self._decided.setdefault(None, error)
        if decided is error:
            self.wake()
            return True
        given_up: bool = decided.give_up(error)
        return given_up

    def pass_to(self, beginner: Pending | None) -> None:
        """Note who begins now, ``None`` if nobody does; raise the error if it was given up."""
        decided = self._decided.setdefault(None, beginner)
        if isinstance(decided, BaseException):
            raise decided


class Starter:
    """Starts a burst of attempts a few at a time, in order, so that all else on the loop goes on.

    An attempt can also be given up before it is started.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._queue: deque[Callable[[], object]] = deque()
        self._started = 0  # in this iteration of the loop
        self._looked = False

    def start(self, later: Callable[[], object], now: Callable[[], object]) -> None:
        """Begin now, or in one of the next iterations."""
        if self._crowded():
            self._queue.append(later)
        else:
            now()

    def turn(self) -> Turn | None:
        """Return a turn to wait for; ``None``: begin now."""
        loop = self._loop()
        if loop is None or not self._crowded():
            return None
        turn = Turn(loop)
        self._queue.append(turn.come)
        return turn

    def may_look(self) -> bool:
        """Whether a task may look for an answer now: one may, in an iteration of the loop."""
        loop = self._loop()
        if self._looked or loop is None:
            return False
        self._looked = True
        loop.call_soon(self._look_again)
        return True

    def _look_again(self) -> None:
        self._looked = False

    def _crowded(self) -> bool:
        """Whether another one has to wait; if not, it begins."""
        if self._queue or self._started >= _BURST:
            return True
        if not self._started:
            self._go_on()
        self._started += 1
        return False

    def _go_on(self) -> None:
        loop = self._loop()
        if loop is not None:
            loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._started = min(_BURST, len(self._queue))
        if self._started:
            self._go_on()
        for _ in range(self._started):
            self._queue.popleft()()


def starter() -> Starter:
    """Return the starter of the running loop."""
    loop = asyncio.get_running_loop()
    found = _starters.get(loop)
    if found is None:
        _forget_closed_loops()
        found = _starters[loop] = Starter(loop)
    return found


def _forget_closed_loops() -> None:
    """Forget loops that were closed in the middle of a burst: those who wait refer to them."""
    for known in _starters.keyrefs():
        loop = known()
        if loop is not None and loop.is_closed():
            _starters.pop(loop, None)


_BURST = 16
_starters: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Starter] = (
    weakref.WeakKeyDictionary()
)


class Awaiting(Front):
    """A task waits by awaiting."""

    def turn(self) -> Turn | None:
        """Return a turn to wait for before a start; ``None``: start now, or no loop runs."""
        try:
            return starter().turn()
        except RuntimeError:
            return None  # in a forked child, it is said what is wrong

    def hears(self) -> bool:
        """Whether this task may look for answers: one task may, in an iteration of the loop.

        The loop stands still meanwhile, for less than a millisecond.
        """
        try:
            return starter().may_look()
        except RuntimeError:
            return False  # no loop runs

    def begin(self, attempt: Pending) -> None:
        """Start an attempt, now or in one of the next iterations of the loop."""
        # Who begins later hears nothing: finished() is called before.
        starter().start(attempt.start, partial(attempt.start, awaited=self.hears()))

    def finished(
        self, answer: A, timeout: float | None, unheard: Callable[[A], object] | None = None
    ) -> Awaitable[bool]:
        """Wait for the answer, at most ``timeout`` seconds. Return whether it has come.

        ``unheard(answer)`` is called if the answer comes after the loop was closed.
        """
        loop = asyncio.get_running_loop()
        come: asyncio.Future[bool] = loop.create_future()
        if answer.look():
            loop.call_soon(settle, come, True)  # not at once: others have their turn, too
            return come
        answer.when_done(_Wake(loop, come, answer, unheard))
        limit = answer.limit(timeout, partial(call_soon, loop, partial(settle, come, False)))
        return come if limit is None else _in_time(loop, come, limit)


class _Wake(Generic[A]):
    """Wakes who waits for an answer. It is no ``partial``, which takes twice the memory."""

    __slots__ = ("_answer", "_come", "_loop", "_unheard")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        come: asyncio.Future[bool],
        answer: A,
        unheard: Callable[[A], object] | None,
    ) -> None:
        self._loop = loop
        self._come = come
        self._answer = answer
        self._unheard = unheard

    def __call__(self) -> None:
        if not call_soon(self._loop, self._settle) and self._unheard is not None:
            self._unheard(self._answer)

    def _settle(self) -> None:
        settle(self._come, True)


async def _in_time(
    loop: asyncio.AbstractEventLoop, come: asyncio.Future[bool], limit: float
) -> bool:
    timer = loop.call_later(limit, settle, come, False)
    try:
        return await come
    finally:
        timer.cancel()


AWAITING = Awaiting()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running loop, if there is one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def running_task() -> asyncio.Task[Any]:
    """Return the running task: what is acquired belongs to it."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a lock of zklock.aio must be used inside a task")
    return task


def in_thread(
    loop: asyncio.AbstractEventLoop, call: Callable[[], object], name: str
) -> asyncio.Future[None] | None:
    """Call on a daemon thread. The thread goes on, whatever happens to the returned future.

    Return ``None`` if the loop does not run here: it was closed, and now its coroutines are.
    """
    done: asyncio.Future[None] | None = loop.create_future() if running_loop() is loop else None

    def run() -> None:
        failed: Exception | None = None
        try:
            call()
        except Exception as error:
            log.exception("%s failed", name, extra=log_fields())
            failed = error
        if done is not None:
            call_soon(loop, partial(_end, done, failed))

    threads.start(run, name)
    return done


def _end(future: asyncio.Future[None], error: Exception | None) -> None:
    if error is None:
        settle(future, None)
    elif not future.done():
        future.set_exception(error)
        future.exception()  # the error is logged: nobody has to wait for it
