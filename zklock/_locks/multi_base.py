"""Several locks as one, without the waiting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from zklock._engine.attempt import Attempt
from zklock._engine.bodies import Bodied, Left, Locking, Taken
from zklock._engine.callbacks import check_callback, check_callbacks
from zklock._engine.grant import GrantBase, GrantOptions, release_together
from zklock._ground.clock import check_timeout, seconds_left
from zklock._ground.loss import Loss, LostCallback
from zklock._ground.uncopied import Uncopied
from zklock._kazoo.loops import check_thread
from zklock._locks.base import LockBase, Place, limit_of, outcome, undo
from zklock._recipes import lock as lock_recipe, queries, together
from zklock.errors import AcquireCancelled, AcquireTimeout, NoAnswer, NotHeld, ZkLockError
from zklock.token import FencingToken

_TICKETS = 2
"""How often an acquire asks for locks together without getting all of them at once."""

_MOST = 64
"""The most locks of a ticket."""

_MOST_BYTES = 500_000
"""The most bytes of a ticket, by the paths and the data of its contenders. It is half of what
ZooKeeper takes for a request."""

_Contender: TypeAlias = tuple[lock_recipe.Entry, GrantOptions]

G = TypeVar("G", bound=GrantBase)
L = TypeVar("L", bound=LockBase[Any])


class MultiGrantBase(Bodied, Generic[G]):
    """What a grant of several locks is for threads and for asyncio alike; see ``MultiGrant``."""

    _INSTEAD = GrantBase._INSTEAD

    _AWAITS: ClassVar[bool] = False

    def __init__(
        self, locks: Sequence[LockBase[G]], grants: Sequence[G], on_lost: LostCallback | None
    ) -> None:
        self.grants = tuple(grants)
        self._locks = tuple(locks)
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
        if self._over:
            raise self._released()

    def abandon(self) -> None:
        """Release all of them without waiting for ZooKeeper's answer; no error if they ended.

        A re-entrant lock is released, however often it was acquired.
        """
        self._set_over()
        for grant in reversed(self.grants):
            grant.abandon()

    def add_lost_callback(self, callback: LostCallback) -> None:
        """Call ``callback(loss)`` once, for the first lock that is lost (``loss.grant``).

        It is called at once if one is lost already. Else see ``Grant.add_lost_callback``.
        """
        check_callback(self._AWAITS, "a lost callback", callback)
        self._callbacks.append(callback)
        if self._loss is not None:
            self._call_those_left()

    async def _verify(self, timeout: float | None) -> None:
        limit = check_timeout(timeout)
        now = self.grants[0]._keeper.now
        until = None if limit is None else now() + limit
        for grant in self.grants:
            await grant._verify(seconds_left(until, now()))

    async def _release(self) -> None:
        check_thread("release()")
        left: Left = {}
        self._note_use(left)
        try:
            self._end()
            failed: ZkLockError | None = None
            for call in reversed(self._calls()):
                try:
                    await call()
                except ZkLockError as error:
                    error.__context__ = error.__context__ or failed
                    failed = error
            if failed is not None:
                raise failed
        except ZkLockError:
            raise
        except BaseException:  # it is not known which of them are given back
            try:
                self._give_up_use(left)
            finally:  # a second interrupt may have struck in it
                self._give_up_use(left)
            raise

    def _calls(self) -> list[Callable[[], Awaitable[None]]]:
        """Return what gives everything back. What is held on one session goes together."""
        groups: dict[object, dict[G, LockBase[G]]] = {}
        calls: list[Callable[[], Awaitable[None]]] = []
        for lock, grant in zip(self._locks, self.grants, strict=True):
            if grant._alone and grant.held and not lock._used_more(grant):
                groups.setdefault(grant._keeper, {})[grant] = lock
            else:
                calls.append(partial(lock._give_back, grant))
        return [*calls, *(partial(_give_back_together, group) for group in groups.values())]

    async def _give_back_use(self) -> None:
        await self._release()

    def _note_use(self, left: Left) -> None:
        for lock, grant in zip(self._locks, self.grants, strict=True):
            lock._note_use(grant, left)

    def _give_up_use(self, left: Left) -> None:
        self._set_over()
        for lock, grant in reversed([*zip(self._locks, self.grants, strict=True)]):
            lock._give_up_use(grant, left)

    @property
    def _loss(self) -> Loss | None:
        return self._lost.get(None)

    def _lose(self, loss: Loss) -> None:
        if not self._over and self._lost.setdefault(None, loss) is loss:
            self._set_lost()
            self._call_those_left()

    def _call_those_left(self) -> None:
        """Call the lost callbacks that were not called yet; each is called once."""
        self.grants[0]._notify([self._call_next] * len(self._callbacks))

    def _call_next(self) -> object:
        try:
            callback = self._callbacks.pop(0)
        except IndexError:
            return None  # called already
        return callback(self._lost[None])

    def _end(self) -> None:
        """Note that it is given back; ``NotHeld`` if it was given back before."""
        if self._over:
            raise self._released()
        self._set_over()

    def _set_over(self) -> None:
        """Note that it is given back, and hear of no loss any more. Repeatable.

        A re-entrant lock's grant may last longer, and would keep all that has heard of its loss.
        """
        self._over = True
        for grant in self.grants:
            with suppress(ValueError):  # it was told of the loss
                grant._callbacks.remove(self._lose)

    def _released(self) -> NotHeld:
        paths = ", ".join(grant.lock_path for grant in self.grants)
        return NotHeld(
            f"{paths}: this grant was released already: acquire again",
            path=self.grants[0].lock_path,
        )

    def _set_lost(self) -> None:
        """Wake those who wait for the loss."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(grant.lock_path for grant in self.grants)}>"


async def _give_back_together(group: Mapping[G, LockBase[G]]) -> None:
    """Release grants of one session, the only uses of them, in one transaction."""
    try:
        await release_together(list(group))
    finally:
        for grant, lock in group.items():
            lock._forget(grant, lock._holdings())


M = TypeVar("M", bound=MultiGrantBase[Any])


class MultiHoldings(Taken[M]):
    """What one thread or task acquired of several locks."""

    __slots__ = ()

    def keep(self, grant: M) -> None:
        """Note what was acquired, and forget what has ended."""
        self.grants = (*[old for old in self.grants if self._counts(old)], grant)

    def newest(self) -> M | None:
        """Return what was acquired last and not given back yet."""
        return next((grant for grant in reversed(self.grants) if not grant._over), None)

    def _counts(self, grant: M) -> bool:
        if grant._over:
            return False
        return grant in self.entered or any(each.held for each in grant.grants)


class MultiBase(Uncopied, Locking[M], Generic[L, M]):
    """What a ``MultiLock`` is for threads and for asyncio alike."""

    _INSTEAD = LockBase._INSTEAD

    _AWAITS: ClassVar[bool] = False
    _GRANT: type[M]

    def __init__(
        self,
        locks: Sequence[L],
        *,
        timeout: float | None = None,
        on_lost: LostCallback | None = None,
    ) -> None:
        found = list(locks)
        for lock in found:
            if not isinstance(lock, self._member()):
                raise TypeError(f"not one of these locks: {lock!r}")
        if not found:
            raise ValueError("no locks: give at least one")
        check_callbacks(self._AWAITS, on_lost=on_lost)
        self._locks = sorted(found, key=full_path)
        for lock, other in combinations(self._locks, 2):
            if full_path(lock) == full_path(other) and _one_ensemble(lock, other):
                raise _twice(lock)
        counted = Counter(map(full_path, self._locks))
        # Locks that cannot be told apart by their paths.
        self._alike = [n for n, lock in enumerate(self._locks) if counted[full_path(lock)] > 1]
        self._timeout = check_timeout(timeout)
        self._on_lost = on_lost
        self._cancels = object()  # another one after each cancel()

    @property
    def paths(self) -> list[str]:
        """The paths of the locks, in the order in which they are acquired.

        With clients of different chroots, this is the order of the full paths. Locks with the same
        full path on different ensembles stand in the order given. They are acquired in the order of
        the transactions that made the paths.
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
        return self._holdings().newest()

    @property
    def held(self) -> bool:
        """Whether this thread or task holds all of the locks."""
        grant = self.grant
        return grant is not None and grant.held

    # For the fronts.

    def _member(self) -> type[Any]:
        """Return the class of the locks."""
        raise NotImplementedError

    def _holdings(self) -> MultiHoldings[M]:
        """Return what the running thread or task has acquired here."""
        raise NotImplementedError

    # Scripts: what the fronts' methods do.

    async def _acquire(self, blocking: bool = True, timeout: float | None = None) -> M | None:
        end = self._end(blocking, timeout)
        check_thread("acquire()")
        cancels = self._cancels
        while True:
            grants: dict[int, GrantBase] = {}
            left: Left = {}
            grant: M | None = None
            try:
                complete = await self._gather(grants, end, cancels)
                if complete and all(each.held for each in grants.values()):
                    in_order = [grants[n] for n in range(len(self._locks))]
                    grant = self._GRANT(self._locks, in_order, self._on_lost)
                    grant._get_ready()
                    self._holdings().keep(grant)
                    return grant  # inside the try: an interrupt before the return must not miss it
                self._drop(grants, left)
            except BaseException:
                try:
                    self._undo(grant, grants, left)
                finally:  # a second interrupt may have struck in it
                    self._undo(grant, grants, left)
                raise
            if not complete:
                return None

    async def _release(self) -> None:
        check_thread("release()")
        grant = self.grant
        if grant is None:
            raise self._nothing_here()
        await grant._release()

    async def _gather(
        self, grants: dict[int, GrantBase], end: float | None, cancels: object
    ) -> bool:
        """Acquire all, in an order that is the same everywhere. Return whether it was in time.

        ``grants`` says what is acquired, however this ends.
        """
        births = await self._births(end, cancels)
        if births is None:
            return False
        order, tickets = self._order(births), _TICKETS
        while rest := order[len(grants) :]:
            asked = self._contenders(rest, end) if tickets and len(rest) > 1 else {}
            if len(asked) > 1:
                if not await self._by_ticket(asked, grants, end, cancels):
                    return False
                self._check_cancelled(cancels)
                got = len(grants) - (len(order) - len(rest))
                tickets -= got < len(asked)
                if got:
                    continue
            grant = await self._one(rest[0], end, cancels)
            if grant is None:
                return False
            grants[rest[0]] = grant
            self._check_cancelled(cancels)
        return True

    async def _one(
        self, n: int, end: float | None, cancels: object, place: Place | None = None
    ) -> Any:
        """Acquire one of the locks; ``None``: not in time."""
        lock = self._locks[n]
        # A cancel() after the last look has reached no pending acquire: so look once more there.
        check = partial(self._check_cancelled, cancels)
        if end is None:
            return await lock._acquire(blocking=False, place=place, check=check)
        return await lock._acquire(timeout=max(0.0, end - self._now()), place=place, check=check)

    def _contenders(self, rest: Sequence[int], end: float | None) -> dict[int, _Contender]:
        """Return contenders for the first of these locks, as far as one ticket can be for them.

        They are on one session, and a contender is all that each needs.
        """
        found: dict[int, _Contender] = {}
        session, size = self._locks[rest[0]]._session, 0
        for n in rest[:_MOST]:
            lock = self._locks[n]
            if lock._session is not session:
                break
            lock._check_acquire()
            entry, terms = lock._contender(patient=end is not None)
            size += len(entry.data) + 2 * len(lock.path)
            if not entry.alone or size > _MOST_BYTES or lock._again() is not None:
                break
            if end == math.inf:
                lock._check_self()
            found[n] = entry, terms
        return found

    async def _by_ticket(
        self,
        asked: Mapping[int, _Contender],
        grants: dict[int, GrantBase],
        end: float | None,
        cancels: object,
    ) -> bool:
        """Acquire what is free of these at once, and wait for the first that is not.

        Return whether it was in time. What stands behind that one is not acquired.
        """
        locks = [self._locks[n] for n in asked]
        session, entries = locks[0]._session, [entry for entry, _ in asked.values()]
        joint = tuple(terms for _, terms in asked.values())
        attempt: Attempt[together.Ticket | None] = session.attempt(
            together.acquire(entries, session.sweep),
            recover=lambda: together.leave(entries),
            terms=joint[0],
            joint=joint,
        )
        front, limit = locks[0]._FRONT, self._limit(locks[0], end)
        try:
            for lock in locks:
                lock._users[attempt] = None
            self._check_cancelled(cancels)
            front.begin(attempt)
            ticket = await outcome(front, attempt, session.moment if limit == 0 else limit)
            if ticket is None:
                return False
            for n, lock, grant in zip(asked, locks, ticket.grants, strict=False):
                grants[n] = grant
                lock._keep(grant)
            if ticket.waiting is not None:
                n, (_, terms) = list(asked.items())[len(ticket.grants)]
                place = ticket.waiting, terms, ticket.listing
                grant = await self._one(n, end, cancels, place)
                if grant is None:
                    return False
                grants[n] = grant
            return True
        except BaseException:
            try:
                undo(attempt)
            finally:  # a second interrupt may have struck in it
                undo(attempt)
            raise
        finally:
            for lock in locks:
                lock._users.pop(attempt, None)

    async def _births(
        self, end: float | None, cancels: object
    ) -> dict[int, tuple[int, int]] | None:
        """Ask when the full paths that occur twice were made; ``None`` if not in time."""
        births: dict[int, tuple[int, int]] = {}
        while len(births) < len(self._alike):
            n = self._alike[len(births)]
            lock = self._locks[n]
            self._check_cancelled(cancels)
            try:
                births[n] = await lock._ask(
                    "acquire()", partial(queries.birth, lock.path), self._limit(lock, end)
                )
            except NoAnswer:
                if end is None or self._now() >= end:
                    return None
        self._check_cancelled(cancels)
        return births

    # Inside.

    def _end(self, blocking: bool, timeout: float | None) -> float | None:
        """Return the time at which the call must end; ``None`` if it may not wait."""
        limit = limit_of(blocking, self._timeout if blocking and timeout is None else timeout)
        return math.inf if limit is None else self._now() + limit if limit else None

    def _now(self) -> float:
        """Return the time of the clock that a whole call goes by: that of the first lock."""
        return self._locks[0]._session.now()

    def _limit(self, lock: L, end: float | None) -> float | None:
        """Return how long to wait for an answer about this lock, in seconds."""
        left = lock._session.moment if end is None else end - self._now()
        return None if left == math.inf else max(0.0, left)

    def _order(self, births: Mapping[int, tuple[int, int]]) -> list[int]:
        """Return the order to acquire in: the same everywhere, so that no two wait in a ring.

        It is the order of the full paths. Two ensembles may have the same full path. Clients may
        know their servers by different names, but the time at which each ensemble made that path
        is the same for all clients.
        """
        keys = [(full_path(lock), births.get(n, (0, 0))) for n, lock in enumerate(self._locks)]
        for n in self._alike:
            if keys.count(keys[n]) > 1:
                raise _twice(self._locks[n])
        return sorted(range(len(keys)), key=keys.__getitem__)

    def _check_cancelled(self, cancels: object) -> None:
        """Raise ``AcquireCancelled`` if ``cancel`` was called; maybe no lock was pending then."""
        if self._cancels is not cancels:
            raise AcquireCancelled(
                f"{', '.join(self.paths)}: the acquire was cancelled", path=self.paths[0]
            )

    def _undo(self, grant: M | None, grants: Mapping[int, GrantBase], left: Left) -> None:
        """Give everything back that a call has acquired. Repeatable."""
        if grant is not None:
            grant._set_over()
        self._drop(grants, left)

    def _drop(self, grants: Mapping[int, GrantBase], left: Left) -> None:
        """Give back the locks gathered so far, which nobody has got. Repeatable; does not wait."""
        for n, grant in reversed(list(grants.items())):
            lock = self._locks[n]
            lock._note_use(grant, left)
            if not left.get(grant):
                grant._kept = False
            lock._give_up_use(grant, left)

    def _nothing_here(self) -> NotHeld:
        return NotHeld(
            f"{', '.join(self.paths)}: nothing to release: acquire first", path=self.paths[0]
        )

    def _timed_out(self) -> AcquireTimeout:
        return AcquireTimeout(
            f"{', '.join(self.paths)}: not all granted within {self._timeout:g} s: try again "
            "later, or wait longer (timeout=)",
            path=self.paths[0],
        )


def full_path(lock: LockBase[Any]) -> str:
    """Return the lock's path with its client's chroot."""
    chroot: str = lock._session.client.chroot
    return chroot.rstrip("/") + lock.path


def _one_ensemble(lock: LockBase[Any], other: LockBase[Any]) -> bool:
    """Whether two clients certainly use one ensemble: they have a server in common."""
    one, two = lock._session.client, other._session.client
    return one is two or not set(one.hosts).isdisjoint(two.hosts)


def _twice(lock: LockBase[Any]) -> ValueError:
    return ValueError(f"{full_path(lock)}: given twice, which would deadlock")
