"""Several locks as one, for asyncio."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

from zklock.aio.grant import Body, Grant
from zklock.aio.lock import Acquiring, running_task
from zklock.base import note_loss
from zklock.clock import check_timeout, clock
from zklock.connection import check_thread
from zklock.errors import LockLost, NotHeld
from zklock.grant import LostCallback
from zklock.multi import MultiBase, MultiGrantBase


class MultiGrant(MultiGrantBase[Grant]):
    """One acquisition of several locks: see :class:`zklock.MultiGrant`.

    ``lost`` is an ``asyncio.Event``. Callbacks run on the event loop.
    """

    def __init__(
        self, locks: Sequence[Acquiring], grants: Sequence[Grant], on_lost: LostCallback | None
    ) -> None:
        self.lost = asyncio.Event()
        self._locks = tuple(locks)
        self._bodies: list[Body] = []
        super().__init__(grants, on_lost)

    async def verify(self, timeout: float | None = None) -> None:
        """Have a quorum confirm all of them, one after the other; see ``Grant.verify``."""
        limit = check_timeout(timeout)
        end = math.inf if limit is None else clock() + limit
        for grant in self.grants:
            await grant.verify(None if limit is None else max(0.0, end - clock()))

    async def release(self) -> None:
        """Give all of them back, the last one first, whatever comes of the others.

        Raises the first error there was, ``LockLost`` for a lock that was lost. Each takes as long
        as ``Grant.release``; if this is cancelled, the rest is given back without waiting.
        """
        check_thread("release()")
        async with AsyncExitStack() as each:
            for lock, grant in zip(self._locks, self.grants, strict=True):
                each.push_async_callback(lock._release, grant)

    def _set_lost(self) -> None:
        self.lost.set()
        for body in self._bodies:
            body.cancel()

    def _enter(self, body: Body) -> None:
        self._bodies.append(body)
        if self._loss is not None:
            asyncio.get_running_loop().call_soon(body.cancel)

    def _leave(self, error: BaseException | None) -> bool:
        return self._bodies.pop().leave(error)


class MultiLock(MultiBase[Acquiring]):
    """Several locks, of any kinds and any clients, as one: see :class:`zklock.MultiLock`.

    If one is lost inside ``async with``, the body is cancelled as with a single lock.
    """

    def __init__(
        self,
        locks: Sequence[Acquiring],
        *,
        timeout: float | None = None,
        on_lost: LostCallback | None = None,
    ) -> None:
        super().__init__(locks, timeout=timeout, on_lost=on_lost)
        self._mine: weakref.WeakKeyDictionary[asyncio.Task[Any], list[MultiGrant]] = (
            weakref.WeakKeyDictionary()
        )

    async def acquire(
        self, blocking: bool = True, timeout: float | None = None
    ) -> MultiGrant | None:
        """Acquire all of them; return their grant, or ``None``: one is not free, or not in time.

        What is lost while the rest is waited for is acquired anew, within the same timeout. Errors
        as of ``Lock.acquire``; nothing is held after an error or a cancellation.
        """
        end = self._end(blocking, timeout)
        check_thread("acquire()")
        while True:
            grants = await self._gather(end)
            if grants is None:
                return None
            if all(each.held for each in grants):
                grant = MultiGrant(self._locks, grants, self._on_lost)
                self._stack.append(grant)
                return grant
            self._drop(grants)

    async def release(self) -> None:
        """Give back what this task acquired last; ``NotHeld`` if nothing.

        See ``MultiGrant.release``.
        """
        check_thread("release()")
        if not self._stack:
            raise NotHeld(f"{', '.join(self.paths)}: nothing to release: acquire first")
        await self._stack.pop().release()

    @property
    def grant(self) -> MultiGrant | None:
        """What this task acquired last, ``None`` without; some of it may be lost."""
        return self._stack[-1] if self._stack else None

    @property
    def held(self) -> bool:
        """Whether this task holds all of the locks."""
        return bool(self._stack) and self._stack[-1].held

    async def __aenter__(self) -> MultiGrant:
        grant = await self.acquire()
        if grant is None:
            raise self._timed_out()
        grant._enter(Body(running_task()))
        return grant

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release. ``LockLost`` if one was lost; an error of the body is kept, and noted."""
        grant = self.grant
        ours = grant is not None and grant._leave(error)
        try:
            await self.release()
        except LockLost as lost:
            if ours:
                raise lost from error
            if not note_loss(lost, error):
                raise
        except NotHeld:
            if error is None:
                raise

    async def _gather(self, end: float | None) -> list[Grant] | None:
        grants: list[Grant] = []
        complete = False
        try:
            for lock in self._locks:
                if end is None:
                    grant = await lock._acquire(blocking=False, timeout=None)
                else:
                    grant = await lock._acquire(blocking=True, timeout=max(0.0, end - clock()))
                if grant is None:
                    return None
                grants.append(grant)
            complete = True
            return grants
        finally:
            if not complete:
                self._drop(grants)

    @property
    def _stack(self) -> list[MultiGrant]:
        return self._mine.setdefault(running_task(), [])

    def _member(self) -> type[Acquiring]:
        return Acquiring
