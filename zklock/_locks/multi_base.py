"""Several locks as one, without the waiting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, Generic, TypeVar

from zklock._core.attempt import Pending
from zklock._core.callbacks import check_callbacks
from zklock._core.contexts import LockContext
from zklock._core.grant import GrantBase, Losable
from zklock._core.loops import check_thread
from zklock._ground.clock import check_timeout, seconds_left
from zklock._ground.interrupts import raised_by_zklock
from zklock._ground.loss import Loss, LostCallback
from zklock._ground.not_copyable import NotCopyable
from zklock._locks.base import LockBase, limit_of, standing, stood
from zklock.errors import AcquireCancelled, AcquireTimeout, NotHeld, ZkLockError
from zklock.token import FencingToken

G = TypeVar("G", bound=GrantBase)
L = TypeVar("L", bound=LockBase[Any])


class MultiGrantBase(Losable, Generic[G]):
    """What a grant of several locks is for threads and for asyncio alike; see ``MultiGrant``."""

    _INSTEAD = GrantBase._INSTEAD

    def __init__(
        self, locks: Sequence[LockBase[G]], grants: Sequence[G], on_lost: LostCallback | None
    ) -> None:
        self.grants = tuple(grants)
        # What is to be given back, first the last one.
        self._left = tuple(zip(reversed(locks), reversed(self.grants), strict=True))
        self._lost: dict[None, Loss] = {}  # set once, by setdefault(), which is one step
        self._over = False  # given back; a re-entrant lock may still be held by other grants
        self._callbacks = [on_lost] if on_lost else []
        for grant in self.grants:
            grant._call_when_lost(self._lose)

    @property
    def tokens(self) -> dict[str, FencingToken]:
        """The fencing token of each lock, by the lock's path.

        ``ValueError`` if two locks have one path, below different chroots or on different
        ensembles: use ``grants`` then.
        """
        tokens = {grant.lock_path: grant.token for grant in self.grants}
        if len(tokens) < len(self.grants):
            raise ValueError("two of these locks share a path: use the tokens of the grants")
        return tokens

    @property
    def held(self) -> bool:
        """Whether all of the locks may be believed to be held (see ``Grant.held``)."""
        return not self._over and all(grant.held for grant in self.grants)

    def remaining(self) -> float:
        """Return the shortest remaining lease of them in seconds, if nothing more is heard."""
        return 0.0 if self._over else min(grant.remaining() for grant in self.grants)

    def check(self) -> None:
        """Raise ``LockLost`` or ``NotHeld`` for the first lock that is no longer held."""
        for grant in self.grants:
            grant.check()
        self._check_given()

    def abandon(self) -> None:
        """Release all of them without waiting for ZooKeeper's answer; no error if they ended.

        A re-entrant lock is released, however often it was acquired.
        """
        self._set_over()
        for grant in reversed(self.grants):
            grant.abandon()

    async def _verify(self, timeout: float | None) -> None:
        limit = check_timeout(timeout)
        now = self.grants[0]._keeper.now
        until = None if limit is None else now() + limit
        for grant in self.grants:
            await grant._verify(seconds_left(until, now()))

    async def _release(self) -> None:
        check_thread("release()")
        try:
            self._check_given()
            self._set_over()
            await self._give_all_back()
        except raised_by_zklock(ZkLockError):
            raise
        except BaseException:  # it is not known which of them are given back
            try:
                self._abandon_body()
            finally:  # a second interrupt may have struck in it
                self._abandon_body()
            raise

    _give_back_use = _release

    async def _give_all_back(self) -> None:
        """Ask for all releases, and then wait for the answers."""
        answers: list[tuple[G, Pending[Any]]] = []
        failed: ZkLockError | None = None
        while self._left:
            lock, grant = self._left[0]
            try:
                answer = _begin_release(lock, grant)
                if answer is not None:
                    answers.append((grant, answer))
            except raised_by_zklock(ZkLockError) as error:
                failed = _after(failed, error)
            self._left = self._left[1:]
        now = self.grants[0]._keeper.now
        asked = now()
        for grant, answer in reversed(answers):  # the last one comes last
            try:
                await grant._answered(answer, max(0.0, asked + grant._keeper.moment - now()))
            except raised_by_zklock(ZkLockError) as error:
                failed = _after(failed, error)
        if failed is not None:
            raise failed

    def _abandon_body(self) -> None:
        self._set_over()
        while self._left:
            lock, grant = self._left[0]
            lock._abandon_use(grant)
            self._left = self._left[1:]

    def _check_given(self) -> None:
        """Raise ``NotHeld`` if it was given back."""
        if self._over:
            paths = ", ".join(grant.lock_path for grant in self.grants)
            raise NotHeld(
                f"{paths}: this grant was released already: acquire again",
                path=self.grants[0].lock_path,
            )

    def _set_over(self) -> None:
        """Note that it is given back, and hear of no loss any more. Repeatable.

        A re-entrant lock's grant may last longer, and would keep all that has heard of its loss.
        """
        self._over = True
        for grant in self.grants:
            with suppress(ValueError):  # it was told of the loss
                grant._callbacks.remove(self._lose)
        self._get_unready()

    @property
    def _lasts(self) -> bool:
        """Whether there is something to give back."""
        return not self._over and any(grant.held for grant in self.grants)

    @property
    def _loss(self) -> Loss | None:
        return self._lost.get(None)

    def _lose(self, loss: Loss) -> None:
        if not self._over and self._lost.setdefault(None, loss) is loss:
            self._tell_loss()

    def _notify(self, calls: list[Callable[[], object]]) -> None:
        self.grants[0]._notify(calls)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(grant.lock_path for grant in self.grants)}>"


def _begin_release(lock: LockBase[G], grant: G) -> Pending[Any] | None:
    """Give up one use of a grant; return the answer to come, if it was the last one."""
    if grant.held and lock._used_more(grant):
        lock._holdings().drop(grant)
        return None
    try:
        return grant._end()
    finally:
        lock._forget(grant, lock._holdings())


M = TypeVar("M", bound=MultiGrantBase[Any])


class MultiBase(NotCopyable, LockContext[M], Generic[L, M]):
    """What a ``MultiLock`` is for threads and for asyncio alike."""

    _INSTEAD = LockBase._INSTEAD

    _AWAITS: ClassVar[bool] = False
    _GRANT: type[M]
    _MEMBER: type[L]
    """The class of the locks."""

    def __init__(
        self,
        locks: Sequence[L],
        *,
        timeout: float | None = None,
        on_lost: LostCallback | None = None,
    ) -> None:
        found = list(locks)
        for lock in found:
            if not isinstance(lock, self._MEMBER):
                raise TypeError(f"not one of these locks: {lock!r}")
            lock._session.check_usable()
            if lock._keep_for:
                raise ValueError(
                    f"{lock.path}: a lock that is kept cannot be acquired together with others: "
                    "make it without keep="
                )
        if not found:
            raise ValueError("no locks: give at least one")
        check_callbacks(self._AWAITS, on_lost=on_lost)
        self._locks = sorted(found, key=full_path)
        for lock, other in combinations(self._locks, 2):
            if full_path(lock) == full_path(other) and _one_ensemble(lock, other):
                raise ValueError(f"{full_path(lock)}: given twice, which would deadlock")
        self._timeout = check_timeout(timeout)
        self._on_lost = on_lost
        self._cancels = object()  # another one after each cancel()

    @property
    def paths(self) -> list[str]:
        """The paths of the locks, in the order in which they are acquired.

        With clients of different chroots, this is the order of the full paths. Locks with the same
        full path on different ensembles stand in the order given.
        """
        return [lock.path for lock in self._locks]

    def cancel(self) -> None:
        """Make all pending acquires of the locks raise ``AcquireCancelled``."""
        self._cancels = object()  # no count: of two threads that add to one, one is lost
        for lock in self._locks:
            lock.cancel()

    @property
    def grant(self) -> M | None:
        """The newest grant of this thread or task, or ``None``. Some of it may be lost."""
        return next((it for it in reversed(self._holdings().grants) if not it._over), None)

    @property
    def held(self) -> bool:
        """Whether this thread or task holds all of the locks."""
        grant = self.grant
        return grant is not None and grant.held

    # Scripts: what the fronts' methods do.

    async def _acquire(self, blocking: bool = True, timeout: float | None = None) -> M | None:
        limit = limit_of(blocking, timeout, self._timeout)
        end = math.inf if limit is None else self._now() + limit
        check_thread("acquire()")
        check = partial(self._check_cancelled, self._cancels)
        while True:
            call = _Call[L, M]()
            try:
                for lock in self._locks:
                    check()
                    wait = {"timeout": max(0.0, end - self._now())} if limit != 0 else {}
                    # A cancel() after the last look has reached no pending acquire: so look once
                    # more there.
                    one = await lock._acquire(bool(wait), check=check, **wait)
                    if one is None:
                        self._holdings().asked = lock._holdings().asked
                        break
                    call.grants[lock] = one
                complete = len(call.grants) == len(self._locks)
                if complete and all(each.held for each in call.grants.values()):
                    grants = list(call.grants.values())
                    grant = call.grant = self._GRANT(self._locks, grants, self._on_lost)
                    self._keep(grant)
                    return grant  # inside the try: an interrupt before the return must not miss it
                self._undo(call)
                if not complete:
                    return None
            except BaseException:
                try:
                    self._undo(call)
                finally:  # a second interrupt may have struck in it
                    self._undo(call)
                raise

    def _keep(self, grant: M) -> None:
        """Note what the running thread or task has acquired, and forget what has ended."""
        grant._get_ready()
        mine = self._holdings()
        left = [old for old in mine.grants if old in mine.entered or old._lasts]
        mine.grants = (*left, grant)

    def _undo(self, call: _Call[L, M]) -> None:
        """Give back what a call has acquired, which nobody has got. Repeatable; does not wait."""
        if call.grant is not None:
            call.grant._set_over()
        while call.grants:
            lock, grant = next(reversed(call.grants.items()))
            if not lock._used_more(grant):
                grant._kept = False
            lock._abandon_use(grant)
            call.grants.popitem()

    async def _release(self) -> None:
        check_thread("release()")
        grant = self.grant
        if grant is None:
            raise self._nothing_here()
        await grant._release()

    def _now(self) -> float:
        """Return the time of the clock that a whole call goes by: that of the first lock."""
        return self._locks[0]._session.now()

    def _check_cancelled(self, cancels: object) -> None:
        """Raise ``AcquireCancelled`` if ``cancel`` was called; maybe no lock was pending then."""
        if self._cancels is not cancels:
            raise AcquireCancelled(f"{self._named}: the acquire was cancelled", path=self.paths[0])

    def _nothing_here(self) -> NotHeld:
        return NotHeld(f"{self._named}: nothing to release: acquire first", path=self.paths[0])

    def _timed_out(self) -> AcquireTimeout:
        ahead, behind = stood(self._holdings().asked)
        return AcquireTimeout(
            f"{self._named}: not all granted within {self._timeout:g} s{standing(ahead, behind)}: "
            "try again later, or wait longer (timeout=)",
            path=self.paths[0],
            ahead=ahead,
            behind=behind,
        )

    @property
    def _named(self) -> str:
        return ", ".join(self.paths)


@dataclass(slots=True)
class _Call(Generic[L, M]):
    """What an acquire of several locks has acquired, however it ends."""

    grants: dict[L, Any] = field(default_factory=dict)
    grant: M | None = None


def _after(earlier: ZkLockError | None, error: ZkLockError) -> ZkLockError:
    """Return the error, with an earlier one as its context unless it has one."""
    error.__context__ = error.__context__ or earlier
    return error


def full_path(lock: LockBase[Any]) -> str:
    """Return the lock's path with its client's chroot."""
    chroot: str = lock._session.client.chroot
    return chroot.rstrip("/") + lock.path


def _one_ensemble(lock: LockBase[Any], other: LockBase[Any]) -> bool:
    """Whether two clients certainly use one ensemble: they have a server in common."""
    one, two = lock._session.client, other._session.client
    return one is two or not set(one.hosts).isdisjoint(two.hosts)
