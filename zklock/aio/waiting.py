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

from zklock._core.attempt import Pending
from zklock._core.ports import LONGEST, Shell
from zklock._core.script import A, Front
from zklock._core.session import Session
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


class Line:
    """The tasks that are about to begin: a few in an iteration of the loop, in order.

    So a burst of them lets all else on the loop go on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._queue: deque[asyncio.Future[None]] = deque()
        self._begun = 0  # in this iteration of the loop
        self._noted = False  # whether the loop's next iteration will be noticed

    def join(self) -> asyncio.Future[None] | None:
        """Return what is done when it is the caller's turn; ``None``: it is."""
        loop = self._loop()
        if loop is None:
            return None
        if self._queue or self._begun >= _BURST:
            turn: asyncio.Future[None] = loop.create_future()
            self._queue.append(turn)
            return turn
        self._begun += 1
        self._notice_next(loop)
        return None

    def _notice_next(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._noted:
            self._noted = True
            loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        loop = self._loop()
        self._noted = False
        self._begun = min(_BURST, len(self._queue))
        if self._begun and loop is not None:
            self._notice_next(loop)
        for _ in range(self._begun):
            settle(self._queue.popleft(), None)


def _line() -> Line:
    """Return the line of the running loop."""
    loop = asyncio.get_running_loop()
    found = _lines.get(loop)
    if found is None:
        # Those of loops that were closed in the middle of a burst: waiting tasks refer to the loop.
        for known in list(_lines):
            if known.is_closed():
                _lines.pop(known, None)
        found = _lines[loop] = Line(loop)
    return found


_BURST = 16
_lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Line] = weakref.WeakKeyDictionary()


class Awaiting(Front):
    """A task waits by awaiting."""

    def hears(self, session: Session) -> bool:
        """Have the loop read the answer, for whichever task waits for it."""
        loop = running_loop()
        if loop is not None and not session.interrupted:
            reader = session.shell.reader
            if isinstance(reader, _Reading) and reader.loop is loop:
                reader.until = loop.time() + LONGEST
            else:
                _Reading(loop, session.shell)
        return False

    def begin(self, attempt: Pending[Any], *, awaited: bool = False) -> None:
        """Start an attempt, now or in one of the next iterations of the loop."""
        if not attempt.asks:
            attempt.start()
            return
        line = _line()
        turn = line.join()
        if turn is None:
            attempt.start(awaited=awaited and self.hears(attempt.session))
        else:
            turn.add_done_callback(lambda _: _start(attempt))

    def finished(
        self, answer: A, timeout: float | None, unheard: Callable[[A], object] | None = None
    ) -> Awaitable[bool]:
        """Wait for the answer, at most ``timeout`` seconds. Return whether it has come.

        ``unheard(answer)`` is called if the answer comes after the loop was closed.
        """
        loop = asyncio.get_running_loop()
        come: asyncio.Future[bool] = loop.create_future()
        if answer.done:
            loop.call_soon(settle, come, True)  # not at once: others have their turn, too
            return come
        answer.wake_when_done(_Wake(loop, come, answer, unheard))
        limit = answer.limit(timeout, partial(call_soon, loop, partial(settle, come, False)))
        return come if limit is None else _in_time(loop, come, limit)


def _start(attempt: Pending[Any]) -> None:
    """Start what has been waited for in line; who waits for it hears of an error."""
    try:
        if not attempt.done:
            attempt.start()
    except Exception as error:
        attempt.cancel(error)


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
        if running_loop() is self._loop:
            self._settle()
        elif not call_soon(self._loop, self._settle) and self._unheard is not None:
            self._unheard(self._answer)

    def _settle(self) -> None:
        settle(self._come, True)


class _Reading:
    """A loop that reads, for a moment after each request of its tasks.

    So no thread has to wake another. If anybody else waits for an answer meanwhile, or this loop
    stands still, the reading is taken from it: see ``ports.Shell.lend``.
    """

    outcome = None

    def __init__(self, loop: asyncio.AbstractEventLoop, shell: Shell) -> None:
        self.loop, self._shell = loop, shell
        self.until = loop.time() + LONGEST
        self._ear = shell.lend(self)
        if self._ear is not None:
            loop.add_reader(self._ear.fileno(), self._read)
            self._look()

    def _read(self) -> None:
        if not self._shell.hear(self):
            self._end()

    def _look(self) -> None:
        if self._shell.reader is self and self.loop.time() < self.until:
            self.loop.call_at(self.until, self._look)
        else:
            self._end()

    def _end(self) -> None:
        if self._ear is not None:
            self.loop.remove_reader(self._ear.fileno())
            self._ear = None
            self._shell.listen(self)


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
