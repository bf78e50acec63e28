"""How a coroutine waits for what threads bring: no thread is spent on it, the loop never blocks."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from zklock import queries
from zklock.effects import Recipe
from zklock.grant import Answer
from zklock.session import Session, no_answer

log = logging.getLogger("zklock")
T = TypeVar("T")


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> bool:
    """Call soon on the loop, from any thread; whether the loop is not closed yet."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return False
    return True


class Starter:
    """Starts a burst of attempts a few at a time, in order, so that all else on the loop goes on.

    An attempt can be given up as ever before it was started.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._queue: deque[Callable[[], object]] = deque()
        self._started = 0  # in this iteration of the loop

    def start(self, begin: Callable[[], object]) -> None:
        """Begin now, or in one of the next iterations."""
        if self._queue or self._started >= _BURST:
            self._queue.append(begin)
            return
        if not self._started:
            self._go_on()
        self._started += 1
        begin()

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
    """Return that of the running loop."""
    loop = asyncio.get_running_loop()
    found = _starters.get(loop)
    if found is None:
        found = _starters[loop] = Starter(loop)
    return found


_BURST = 16
_starters: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Starter] = (
    weakref.WeakKeyDictionary()
)


async def finished(
    answer: Answer, timeout: float | None, unheard: Callable[[], object] | None = None
) -> bool:
    """Wait for the answer for so many seconds; whether it has come.

    ``unheard`` is called if the answer comes when the loop is closed already.
    """
    loop = asyncio.get_running_loop()
    come: asyncio.Future[bool] = loop.create_future()

    def wake() -> None:
        if not call_soon(loop, partial(_settle, come, True)) and unheard is not None:
            unheard()

    answer.when_done(wake)
    timer = None if timeout is None else loop.call_later(timeout, _settle, come, False)
    try:
        return await come
    finally:
        if timer is not None:
            timer.cancel()


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


async def ask(
    session: Session, make: Callable[[], Recipe[Any]], path: str, timeout: float | None
) -> Any:
    """Run a query and wait for what it returns; ``NoAnswer`` after ``timeout`` seconds."""
    session.check_usable()
    limit = session.timeout if timeout is None else timeout
    attempt = session.attempt(queries.steadfast(make))
    try:
        if not await finished(attempt.start(), limit) and attempt.give_up():
            raise no_answer(path, limit)
        return attempt.result()
    except BaseException:
        attempt.give_up()
        raise


def in_thread(call: Callable[[], object], name: str) -> asyncio.Future[None]:
    """Call on a daemon thread, which goes on whatever becomes of the future that is returned."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        try:
            call()
        except Exception as error:
            log.exception("%s failed", name)
            call_soon(loop, partial(_fail, done, error))
        else:
            call_soon(loop, partial(_settle, done, None))

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # it is logged: nobody needs to be waiting
