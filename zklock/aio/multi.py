"""Several locks as one, for asyncio."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from zklock._core.contexts import Acquired
from zklock._ground.loss import LostCallback
from zklock._locks.multi_base import MultiBase, MultiGrantBase
from zklock.aio.grant import Attempting, Bodies, Entered, Enters, Grant
from zklock.aio.lock import TaskLock
from zklock.aio.waiting import running_loop, running_task


class MultiGrant(MultiGrantBase[Grant], Entered):
    """One acquisition of several locks: see :class:`zklock.MultiGrant`.

    ``lost`` is an ``asyncio.Event``. Callbacks run on the event loop.
    """

    _AWAITS = True

    def __init__(
        self, locks: Sequence[TaskLock], grants: Sequence[Grant], on_lost: LostCallback | None
    ) -> None:
        self.lost = asyncio.Event()
        self._bodies = Bodies()
        super().__init__(locks, grants, on_lost)

    async def verify(self, timeout: float | None = None) -> None:
        """Ask a quorum about all of them: see :meth:`zklock.MultiGrant.verify`."""
        await self._verify(timeout)

    async def release(self) -> None:
        """Release all of them: see :meth:`zklock.MultiGrant.release`.

        If this is cancelled, the rest is released without waiting.
        """
        await self._release()

    def _set_lost(self) -> None:
        self.lost.set()
        self._bodies.cancel()

    def _enter(self) -> None:
        self.grants[0]._check_loop()
        self._bodies.enter()
        if self._loss is not None:
            asyncio.get_running_loop().call_soon(self._bodies.cancel)

    def _leave(self, error: BaseException | None) -> bool:
        return self._bodies.leave(error)


class MultiLock(MultiBase[TaskLock, MultiGrant], Enters[MultiGrant]):
    """Several locks, of any kinds and any clients, as one: see :class:`zklock.MultiLock`.

    If one is lost inside ``async with``, the body is cancelled as with a single lock.
    """

    _AWAITS = True
    _GRANT = MultiGrant
    _MEMBER = TaskLock

    def __init__(
        self,
        locks: Sequence[TaskLock],
        *,
        timeout: float | None = None,
        on_lost: LostCallback | None = None,
    ) -> None:
        super().__init__(locks, timeout=timeout, on_lost=on_lost)
        self._mine: weakref.WeakKeyDictionary[asyncio.Task[Any], Acquired[MultiGrant]] = (
            weakref.WeakKeyDictionary()
        )

    async def acquire(
        self, blocking: bool = True, timeout: float | None = None
    ) -> MultiGrant | None:
        """Acquire all of them: see :meth:`zklock.MultiLock.acquire`.

        Nothing is held after a cancellation.
        """
        return await self._acquire(blocking, timeout)

    def attempt(
        self, blocking: bool = True, timeout: float | None = None
    ) -> AbstractAsyncContextManager[MultiGrant | None]:
        """Return a context manager whose grant may be ``None``: see :meth:`Lock.attempt`."""
        return Attempting(partial(self.acquire, blocking, timeout))

    async def release(self) -> None:
        """Release what this task acquired last: see :meth:`zklock.MultiLock.release`."""
        await self._release()

    def _take(self) -> Awaitable[MultiGrant | None]:
        return self.acquire()

    def _holdings(self) -> Acquired[MultiGrant]:
        if running_loop() is None:
            return Acquired()  # the loop was closed, and now its coroutines are
        return self._mine.setdefault(running_task(), Acquired())
