"""A flag that tasks of one loop wait for, for a limited time."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")

LOOK = 1.0
"""Seconds between two looks at an event loop that may be closed: nothing tells of it."""


class AsyncEvent:
    """An ``asyncio.Event`` whose ``wait()`` has a limit. All calls come from one loop.

    A task that was cancelled may wait in this way, too, while it cleans up. ``asyncio.timeout()``
    before Python 3.11.4 raises ``CancelledError`` in such a task where ``TimeoutError`` is due
    (https://github.com/python/cpython/issues/102780).
    """

    def __init__(self) -> None:
        self._set = False
        self._waiting: set[asyncio.Future[bool]] = set()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        """Set it, and wake all who wait."""
        self._set = True
        for come in self._waiting:
            settle(come, True)

    def wake(self) -> None:
        """Wake all who wait, without setting it."""
        for come in self._waiting:
            settle(come, False)

    def clear(self) -> None:
        self._set = False

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, or ``wake()``, at most ``seconds``. Return whether it was set."""
        if self._set:
            return True
        loop = asyncio.get_running_loop()
        come: asyncio.Future[bool] = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, settle, come, False)
        self._waiting.add(come)
        try:
            return await come
        finally:
            self._waiting.discard(come)
            if timer is not None:
                timer.cancel()


def settle(future: asyncio.Future[T], value: T) -> None:
    """Give the future its result, unless it is done."""
    if not future.done():
        future.set_result(value)
