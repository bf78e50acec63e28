"""Locks for asyncio."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from zklock import kinds
from zklock.aio.grant import Body, Grant
from zklock.aio.waiting import ask, finished, starter
from zklock.attempt import Attempt
from zklock.base import Acquirable, Holdings, abandon_result, note_loss
from zklock.clock import check_timeout
from zklock.connection import check_thread
from zklock.effects import Recipe
from zklock.errors import LockLost, NotHeld
from zklock.queries import Contender
from zklock.token import FencingToken


class Acquiring(Acquirable[Grant]):
    """How a task acquires, holds and releases a lock of any kind."""

    _GRANT = Grant
    _WHO = "task"

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> Grant | None:
        """Wait for the lock, in turn; return its grant, or ``None``: not free, or not in time.

        ``timeout``: seconds for the whole call, by default the lock's own. With
        ``blocking=False`` or ``timeout=0`` nothing is waited for but ZooKeeper's answer, and for
        that a bounded moment (at most a second), connected or not.

        Leaves no contender behind whichever way it ends, cancelled included; where ZooKeeper
        cannot be reached, that is seen to in the background. A session that is lost while waiting
        means queueing again, at the end, within the same timeout.

        Raises ``AcquireCancelled`` after :meth:`cancel`; ``ClientClosed`` if the client is or is
        being stopped, ``ForkedClient`` in a child process; ``AccessDenied`` where ACLs forbid
        it; ``SequenceExhausted``; ``WouldDeadlock`` on a thread of kazoo's.
        """
        return await self._acquire(blocking, timeout)

    async def _acquire(self, blocking: bool, timeout: float | None, **wanted: Any) -> Grant | None:
        limit = self._limit(blocking, timeout)
        patient = limit != 0
        check_thread("acquire()")
        self._check_acquire()
        shared = self._again()
        if shared is not None:
            self._holdings().grants.append(shared)
            return shared
        attempt = self._attempt(patient, **wanted)
        try:
            with self._guard:
                self._pending.add(attempt)
            starter().start(attempt.start)
            grant = await _outcome(attempt, limit if patient else self._session.moment)
            if grant is not None:
                self._keep(grant)
            return grant
        except BaseException:
            if not attempt.give_up():
                attempt.when_done(lambda: abandon_result(attempt))
            raise
        finally:
            with self._guard:
                self._pending.discard(attempt)

    async def release(self) -> None:
        """Give back what this task acquired last.

        Raises ``LockLost`` if that grant was lost meanwhile (once: it is then forgotten),
        ``WrongThread`` if only another task holds a grant of this object (see
        ``Grant.release()``), else ``NotHeld``. See ``Grant.release()`` for how long it takes.
        """
        check_thread("release()")
        await self._release(self._newest())

    async def contenders(self, timeout: float | None = None) -> list[Contender]:
        """Return who holds and who waits, in queue order, foreign clients' contenders included.

        Asks through the leader; ``NoAnswer`` after ``timeout`` seconds, by default the session
        timeout. What it returns may have changed by the time it is looked at.
        """
        found: list[Contender] = await self._ask("contenders()", self._contenders, timeout)
        return found

    async def holder(self, timeout: float | None = None) -> Contender | None:
        """Return the first in the queue, confirmed by a quorum; ``None`` if it is empty.

        ``timeout`` and errors as of :meth:`contenders`. ``None`` is not confirmed: where the
        network is partitioned, somebody may hold the lock on the other side.
        """
        found: Contender | None = await self._ask("holder()", self._holder, timeout)
        return found

    async def request_release(self, timeout: float | None = None) -> list[Contender]:
        """Ask all present holders to release; return those that were asked.

        See :meth:`zklock.Lock.request_release`.
        """
        asked: list[Contender] = await self._ask(
            "request_release()", self._request_release, timeout
        )
        return asked

    async def break_lock(
        self, token: FencingToken | None = None, *, timeout: float | None = None
    ) -> Contender | None:
        """Delete the node of the present holder; return whose it was, ``None`` if nobody's.

        An operator's tool: see :meth:`zklock.Lock.break_lock` for what it does to the holder.
        """
        if token is not None and not isinstance(token, FencingToken):
            raise TypeError(f"token must be a FencingToken, not {type(token).__name__}")
        broken: Contender | None = await self._ask(
            "break_lock()", lambda: self._break(token), timeout
        )
        return broken

    async def __aenter__(self) -> Grant:
        grant = await self.acquire()
        if grant is None:
            raise self._timed_out()
        try:
            grant._enter(Body(running_task()))
            self._holdings().entered.append(grant)
            return grant
        except BaseException:
            grant.abandon()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release. ``LockLost`` if the grant was lost; an error of the body is kept, and noted."""
        entered = self._holdings().entered
        if not entered:
            raise self._nothing_here()
        grant = entered.pop()
        ours = grant._leave(error)
        try:
            await self._release(grant)
        except LockLost as lost:
            if ours:
                raise lost from error
            if not note_loss(lost, error):
                raise
        except NotHeld:
            if error is None:
                raise

    def _owner(self) -> object:
        return weakref.ref(running_task())

    def _holdings(self) -> Holdings[Grant]:
        task, mine = running_task(), self._mine
        holdings: Holdings[Grant] | None = mine.get(task)
        if holdings is None:
            holdings = mine[task] = Holdings()
        return holdings

    def _storage(self) -> weakref.WeakKeyDictionary[asyncio.Task[Any], Holdings[Grant]]:
        return weakref.WeakKeyDictionary()

    def _label(self) -> str:
        return running_task().get_name()

    async def _release(self, grant: Grant) -> None:
        if self._shared(grant):
            return
        try:
            await grant.release()
        finally:
            self._forget(grant)

    async def _ask(self, what: str, query: Callable[[], Recipe[Any]], timeout: float | None) -> Any:
        check_thread(what)
        limit = check_timeout(timeout)
        return await ask(self._session, query, self._path, limit)


class Lock(kinds.Exclusive[Grant], Acquiring):
    """An exclusive lock: at most one grant at a time, in the order of asking.

    Arguments as of :class:`zklock.Lock`; the default ``identity`` is ``host:pid:task``. Callbacks
    run on the event loop of the task that acquired; those that are coroutine functions run as
    tasks of their own.

    If the grant is lost inside ``async with``, the body is cancelled, and leaving raises
    ``LockLost`` in place of that cancellation, as ``asyncio.timeout()`` does it: a cancellation
    by others goes on, an error that the body raised is kept and noted.

    One object may be shared by tasks, of several event loops too: every ``acquire`` is a contender
    of its own, and belongs to the task that awaited it. It is not re-entrant: a task that acquires
    twice waits for itself.

    *Not guaranteed:* that the holder still holds when its write arrives at a resource, nor that
    it is told in time by a loop that is blocked. A resource that must not see a late write has to
    compare fencing tokens (``zklock.fencing``).
    """


class RLock(kinds.Reentrant[Grant], Acquiring):
    """A lock that the task which holds it may acquire again: see :class:`zklock.RLock`.

    It belongs to the task: those that this one starts are others.
    """


class ReadLock(kinds.Read[Grant], Acquiring):
    """The reading side of a lock for many readers or one writer: see :class:`zklock.ReadLock`."""


class WriteLock(kinds.Write[Grant], Acquiring):
    """The writing side of a lock for many readers or one writer: see :class:`zklock.WriteLock`."""

    async def downgrade(self, timeout: float | None = None) -> Grant:
        """Go on as a reader: let in the readers that wait, and no writer; return the grant.

        See :meth:`zklock.WriteLock.downgrade`.
        """
        grant = self._newest()
        grant.check()
        there = await self._ask("downgrade()", lambda: self._downgrade(grant), timeout)
        self._downgraded(grant, there)
        return grant


class Semaphore(kinds.Permits[Grant], Acquiring):
    """So many permits, given in the order of asking: see :class:`zklock.Semaphore`."""

    async def acquire(
        self, blocking: bool = True, timeout: float | None = None, *, permits: int = 1
    ) -> Grant | None:
        """Wait for so many permits at once, all or none; see :meth:`zklock.Semaphore.acquire`."""
        return await self._acquire(blocking, timeout, wanted=self._wanted(permits))

    async def set_limit(self, limit: int, timeout: float | None = None) -> None:
        """Change the limit that is kept; see :meth:`zklock.Semaphore.set_limit`."""
        kinds.check_permits("limit", limit)
        await self._ask("set_limit()", lambda: self._set_limit(limit), timeout)


async def _outcome(attempt: Attempt[Grant | None], limit: float | None) -> Grant | None:
    """Wait for the outcome; ``None`` when the limit has passed, even if a grant is on its way."""

    def unheard() -> None:
        abandon_result(attempt)

    if not await finished(attempt, limit, unheard) and attempt.give_up():
        return None
    await finished(attempt, None, unheard)
    return attempt.result()


def running_task() -> asyncio.Task[Any]:
    """Return the task that is running: what is acquired belongs to it."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a lock of zklock.aio must be used inside a task")
    return task
