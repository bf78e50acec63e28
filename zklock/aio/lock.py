"""Locks for asyncio."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from zklock._core.contexts import Acquired
from zklock._ground.public import public
from zklock._locks import kinds
from zklock._locks.base import LockBase
from zklock._recipes.queries import Contender
from zklock.aio.grant import Attempting, Enters, Grant
from zklock.aio.waiting import AWAITING, running_task
from zklock.token import FencingToken

_FEW = 4


class TaskLock(LockBase[Grant], Enters[Grant]):
    """How a task acquires, holds and releases a lock of any kind."""

    _AWAITS = True
    _FRONT = AWAITING
    _GRANT = Grant
    _WHO = "task"

    _crowd = _FEW
    """At so many users, tasks that are over are forgotten."""

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> Grant | None:
        """Wait for the lock, in turn: see :meth:`zklock.Lock.acquire`.

        If it is cancelled, it leaves no contender behind. What holds for a thread there holds for
        the running task here.
        """
        return await self._acquire(blocking, timeout)

    def attempt(
        self, blocking: bool = True, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Grant | None]:
        """Return a context manager whose grant may be ``None``: see :meth:`zklock.Lock.attempt`.

        Enter it by ``async with``. A loss cancels the block, as that of ``async with lock``.
        """
        return Attempting(partial(self.acquire, blocking, timeout))

    async def release(self) -> None:
        """Release what this task acquired last: see :meth:`zklock.Lock.release`."""
        await self._release()

    async def contenders(self, timeout: float | None = None) -> list[Contender]:
        """Return all contenders in queue order: see :meth:`zklock.Lock.contenders`."""
        return await self._ask("contenders()", self._contenders, timeout)

    async def holder(self, timeout: float | None = None) -> Contender | None:
        """Return the first in the queue, or ``None``: see :meth:`zklock.Lock.holder`."""
        return await self._ask("holder()", self._holder, timeout)

    async def request_release(self, timeout: float | None = None) -> list[Contender]:
        """Ask all present holders to release: see :meth:`zklock.Lock.request_release`."""
        return await self._ask("request_release()", self._request_release, timeout)

    async def break_lock(
        self, token: FencingToken | None = None, *, timeout: float | None = None
    ) -> Contender | None:
        """Delete the node of the present holder: see :meth:`zklock.Lock.break_lock`."""
        return await self._break_lock(token, timeout)

    def _owner(self) -> weakref.ref[asyncio.Task[Any]]:
        return weakref.ref(running_task())

    def _take(self) -> Awaitable[Grant | None]:
        return self.acquire()

    def _holdings(self) -> Acquired[Grant]:
        users = self._users
        try:
            current = asyncio.current_task()
        except RuntimeError:
            return Acquired()  # the loop was closed, and now its coroutines are
        task = self._owner() if current is None else weakref.ref(current)
        mine = users.get(task)
        if mine is None:
            if len(users) >= self._crowd:
                self._forget_tasks()
            mine = users[task] = Acquired()
        return mine

    def _forget_tasks(self) -> None:
        """Forget the tasks that are over; other threads may add others meanwhile."""
        users = self._users
        for task, mine in users.copy().items():
            if mine is not None and task() is None:
                users.pop(task, None)
        self._crowd = max(_FEW, 2 * len(users))

    def _storage(self) -> Any:
        return self._users  # one dictionary: thousands of locks may be held

    def _label(self) -> str:
        return running_task().get_name()


@public
class Lock(kinds.Exclusive[Grant], TaskLock):
    """An exclusive lock: at most one grant at a time, in the order of the requests.

    The arguments are those of :class:`zklock.Lock`. The default ``identity`` is
    ``host:pid:task``. Callbacks run on the event loop of the task that acquired; coroutine
    functions run as tasks of their own.

    If the grant is lost inside ``async with``, the body is cancelled, and leaving it raises
    ``LockLost`` in place of that cancellation. It works as in ``asyncio.timeout()``: a cancellation
    by others goes on, and an error that the body raised is kept and noted.

    One object may be shared by tasks, also of several event loops. A grant belongs to the task that
    awaited it.

    *Not guaranteed:* beside what :class:`zklock.Lock` names, that a blocked loop tells the holder
    in time.
    """


@public
class RLock(kinds.Reentrant[Grant], TaskLock):
    """A lock that its holding task may acquire again: see :class:`zklock.RLock`.

    It belongs to the task. A task that this one starts is another task, and does not hold it.
    """


@public
class ReadLock(kinds.Read[Grant], TaskLock):
    """The reading side of a lock for many readers or one writer: see :class:`zklock.ReadLock`."""


@public
class WriteLock(kinds.Write[Grant], TaskLock):
    """The writing side of a lock for many readers or one writer: see :class:`zklock.WriteLock`."""

    async def downgrade(self, timeout: float | None = None) -> Grant:
        """Become a reader, with the same grant: see :meth:`zklock.WriteLock.downgrade`.

        If it is cancelled, the caller does not know whether readers are let in. It may be repeated.
        """
        return await self._downgrade(timeout)


@public
class Semaphore(kinds.Permits[Grant], TaskLock):
    """A counting semaphore, first come, first served: see :class:`zklock.Semaphore`."""

    async def acquire(
        self, blocking: bool = True, timeout: float | None = None, *, permits: int = 1
    ) -> Grant | None:
        """Wait for this many permits, all or none; see :meth:`zklock.Semaphore.acquire`."""
        return await self._acquire(blocking, timeout, wanted=self._wanted(permits))

    def attempt(
        self, blocking: bool = True, timeout: float | None = None, *, permits: int = 1
    ) -> AbstractAsyncContextManager[Grant | None]:
        """Return a context manager for this many permits; see :meth:`Lock.attempt`."""
        return Attempting(partial(self.acquire, blocking, timeout, permits=permits))

    async def set_limit(self, limit: int, timeout: float | None = None) -> None:
        """Change the stored limit; see :meth:`zklock.Semaphore.set_limit`."""
        await self._set_limit(limit, timeout)
