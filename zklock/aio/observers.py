"""Observers of elections and pools, for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Self, TypeVar

from zklock._core.session import Session
from zklock._election.changes import C, ChangesBase, Closing
from zklock._election.membership import MembershipChange
from zklock._election.observe import LeaderChange
from zklock._ground.async_event import AsyncEvent
from zklock._ground.records import log_fields
from zklock.aio.waiting import AWAITING, call_soon, running_task
from zklock.errors import ClientClosed, ZkLockError

M = TypeVar("M")

log = logging.getLogger("zklock")


class Mail:
    """Where tasks of the running loop wait for news."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._news = AsyncEvent()

    def put(self) -> None:
        """Say that there is news. From any thread."""
        call_soon(self.loop, self._news.set)

    async def wait(self, session: Session, seconds: float | None = None) -> None:
        """Wait for news, at most ``seconds``."""
        wake = partial(call_soon, self.loop, self._news.wake)
        await self._news.wait(session.limit(seconds, wake))
        self._news.clear()


class Changes(ChangesBase[C]):
    """Iterates over changes, by ``async for``."""

    _FRONT = AWAITING
    _MAIL = Mail
    _mail: Mail

    async def next(self, timeout: float | None = None) -> C | None:
        """Return the next change; ``None`` if there is none within ``timeout`` seconds.

        Raises ``ClientClosed`` once the client is stopped, and ``RuntimeError`` on another event
        loop than that on which it was made.
        """
        if asyncio.get_running_loop() is not self._mail.loop:
            raise RuntimeError(
                f"{self._path}: these changes belong to another event loop: iterate there"
            )
        return await self._next(timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> C:
        change = await self.next(self._timeout)
        if change is None:
            raise StopAsyncIteration
        return change


class LeaderChanges(Changes[LeaderChange]):
    """Iterates over the changes of leader, by ``async for``; leaving ``with`` closes it."""


class MembershipChanges(Changes[MembershipChange[M]], Generic[M]):
    """Iterates over the changes of the members, by ``async for``; leaving ``with`` closes it."""


class Observer(Closing):
    """Calls back with every change, until ``close()``; leaving ``with`` closes it."""

    def __init__(self, changes: Changes[C], callback: Callable[[C], object]) -> None:
        self._changes: Changes[Any] = changes
        self._callback: Callable[[Any], object] = callback
        self._closed = False
        _close_those_of_closed_loops()
        self._task = asyncio.create_task(self._serve(), name="zklock-observer")
        _observing.add(self)
        self._task.add_done_callback(lambda _: _observing.discard(self))

    def close(self) -> None:
        """Make no more calls. A running call continues."""
        self._closed = True
        self._changes.close()

    async def _serve(self) -> None:
        try:
            with self._changes:
                async for change in self._changes:
                    if self._closed:
                        return
                    await self._call(change)
        except ClientClosed:
            return
        except ZkLockError as error:
            log.error(
                "an observer has stopped: %s",
                error,
                extra=log_fields(path=self._changes._path),
            )

    async def _call(self, change: object) -> None:
        try:
            outcome = self._callback(change)
            if inspect.isawaitable(outcome):
                await outcome
        except asyncio.CancelledError:
            if running_task().cancelling():
                raise
            # What the callback awaited was cancelled. Nobody has cancelled this task.
            log.exception("an observer raised", extra=log_fields(path=self._changes._path))
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise  # the loop raises the first two, and ends by the last one
        except BaseException:  # else no more changes would be told, unnoticed
            log.exception("an observer raised", extra=log_fields(path=self._changes._path))


_observing: set[Observer] = set()
"""Those whose tasks run: the loop itself keeps only weak references to tasks."""


def _close_those_of_closed_loops() -> None:
    """End observers whose loops were closed, and have cancelled nothing."""
    for each in [*_observing]:
        if each._task.get_loop().is_closed():
            each.close()
            _observing.discard(each)
