"""The semaphore recipe: Curator's ``InterProcessSemaphoreV2``, so that both share permits.

Below the semaphore's path, ``locks`` is the queue of an exclusive lock, and ``leases`` has a node
for each permit. The first in the queue makes its leases, and waits until the number of all leases
is within the limit. Then it leaves the queue, and the next one comes in. So:

- Permits are given in the order in which contenders ask.
- A contender gets all its permits, or none: two contenders cannot each hold some and wait for more.
- A permit that is given back wakes one waiter.

The limit stands in the data of the semaphore's path, as decimal text.

The transaction that leaves the queue gives the permits. It also checks that the limit is still the
one that was read. Let P be such a transaction, and L the limit at P.

- The leases were counted before P. The count included the contender's own, and was not above L.
- Only the first in the queue makes leases. The contender was first from before its count until P:
  otherwise P would have found nothing to delete. So nobody made a lease between the count and P.

Hence at each P the number of leases is within the limit at P. ZooKeeper orders each write of the
limit before or after each P. So a permit that somebody gets after such a write was given before the
write, or is within the new limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from zklock._ground.interrupts import raised_by_zklock
from zklock._recipes import lock as lock_recipe, names, queries, steps
from zklock._recipes.effects import (
    Check,
    Delete,
    Failed,
    Failure,
    Listing,
    Node,
    Read,
    Recipe,
    Sync,
    Transaction,
    Wait,
    Wakeup,
    Watch,
    WatchList,
    Write,
)
from zklock._recipes.queries import Contender
from zklock.errors import AccessDenied, LimitMismatch, ZkLockError
from zklock.token import FencingToken

_C = TypeVar("_C", bound=Contender)


def locks(root: str) -> str:
    return f"{root}/locks"


def leases(root: str) -> str:
    return f"{root}/leases"


@dataclass(frozen=True, slots=True)
class Kept:
    """The limit that ZooKeeper keeps, and the version of the data that holds it."""

    limit: int
    version: int


@dataclass(slots=True, kw_only=True)
class PermitEntry(lock_recipe.Entry):
    """A contender for some permits of the semaphore at ``root``."""

    root: str
    limit: int | None
    permits: int
    _leases: list[lock_recipe.Entry] = field(default_factory=list)
    _kept: Kept | None = None

    def wait_behind(self, blocker: str, reads: bool, sole: bool) -> Recipe[Wakeup | None]:
        """Sleep until the blocker is gone; if not patient, only while enough permits are idle.

        Permits are idle while the contenders before it are about to take them. A queue alone does
        not mean that a semaphore is not free.
        """
        if self.patient:
            return (yield from lock_recipe.Entry.wait_behind(self, blocker, reads, sole))
        assert self.node is not None
        while True:
            batch = (Watch(blocker), Watch(self.node), WatchList(leases(self.root)))
            before, *rest = yield from steps.ask(
                (*batch, Read(self.root)), Failure.MISSING, Failure.DENIED
            )
            own, listed, root = rest
            for result in rest:
                steps.check(result, Failure.MISSING)
            if not isinstance(own, Node) or not own.mine:
                return Wakeup.OWN_GONE
            if steps.is_(before, Failure.MISSING):
                return None
            if isinstance(before, Node):
                self.saw(before)
            out = len(listed.names) if isinstance(listed, Listing) else 0
            if isinstance(root, Node) and root.data:
                self._kept = _checked(self.root, root, self.limit, self.permits)
                if out + self.permits > self._kept.limit:
                    return Wakeup.UNWATCHED
            event = yield Wait(blocker, self.node, beside=leases(self.root))
            if event is not Wakeup.UNWATCHED:
                return Wakeup.OWN_GONE if event is Wakeup.OWN_GONE else None

    def before_making(self) -> Recipe[None]:
        """Raise ``LimitMismatch`` if there is no limit; nothing is left behind."""
        if self.limit is None:
            (root,) = yield from steps.ask((Read(self.root),), Failure.MISSING)
            if isinstance(root, Failed) or not root.data:
                self.uuid = ""
                raise _no_limit(self.root)

    def turn(self, token: FencingToken) -> Recipe[Any]:
        """Gather the permits, then let the next contender gather its own."""
        self._kept = self._kept or (yield from _agree(self.root, self.limit, self.permits))
        listing = yield from self._make_leases()
        while listing is not None and self._stand(listing):
            if len(listing.names) <= self._kept.limit:
                given = yield from self._pass(self._kept.version)
                if given:
                    return (yield from self._claim(listing))
                if given is None:
                    break
                self._kept = yield from _agree(self.root, self.limit, self.permits)
                listing = yield from steps.look(leases(self.root))
            elif self.patient:
                listing = yield from self._wait()
            else:
                return None
        yield from self.before_leaving()
        return lock_recipe.AGAIN

    def _wait(self) -> Recipe[Listing | None]:
        """Sleep until there may be room → the present leases; ``None``: its node was deleted."""
        assert self.node is not None
        while True:
            batch = (WatchList(leases(self.root)), Watch(self.node), Watch(self.root))
            listed, own, root = yield from steps.ask(batch, Failure.MISSING)
            if not isinstance(own, Node) or not own.mine:
                return None
            if isinstance(root, Node):
                self._kept = _checked(self.root, root, self.limit, self.permits)
            assert self._kept is not None
            listing = listed if isinstance(listed, Listing) else steps.ABSENT
            if not self._stand(listing) or len(listing.names) <= self._kept.limit:
                return listing
            event = yield Wait(leases(self.root), self.node, beside=self.root)
            return None if event is Wakeup.OWN_GONE else (yield from steps.look(leases(self.root)))

    def _make_leases(self) -> Recipe[Listing | None]:
        """Make a lease for each permit → the listing; ``None``: sequence numbers had run out."""
        self._leases.clear()
        listing = steps.ABSENT
        for _ in range(self.permits):
            lease = lock_recipe.Entry(
                leases(self.root), self.data, names.Kind.LEASE, new_uuid=self.new_uuid
            )
            lease.uuid = lease.new_uuid()
            self._leases.append(lease)
            listing = yield from lock_recipe.enter(lease)
            name = names.parse(_name(lease))
            assert name is not None
            if steps.exhausted(name, listing):
                yield from self.before_leaving()
                yield from steps.renew(leases(self.root), listing.epoch)
                return None
        return listing

    def _stand(self, listing: Listing) -> bool:
        return {_name(lease) for lease in self._leases} <= set(listing.names)

    def _pass(self, version: int) -> Recipe[bool | None]:
        """Leave the queue if the limit is unchanged → whether it was; ``None``: node deleted."""
        assert self.node is not None
        unknown = False
        while True:
            # In this order: if the version is refused, the node is still there.
            leaving = Transaction((Delete(self.node), Check(self.root, version)))
            (result,) = yield (leaving,)
            steps.check(result, Failure.DROPPED, Failure.MISSING, Failure.CHANGED)
            if steps.is_(result, Failure.DROPPED):
                unknown = True
                continue
            if steps.is_(result, Failure.CHANGED):
                return False
            # The answer was lost, and the node is gone: an operator may have deleted it. Then the
            # limit must still be the one that was read; otherwise the permits are given back.
            if result is not None and not (unknown and (yield from self._unchanged(version))):
                return None
            self.node, self.uuid = None, ""
            return True

    def _unchanged(self, version: int) -> Recipe[bool]:
        batch = (Sync(self.root), Read(self.root))
        _, root = yield from steps.ask(batch, Failure.MISSING)
        return isinstance(root, Node) and root.version == version

    def _claim(self, listing: Listing) -> Recipe[Any]:
        *others, (node, token) = [
            (lease.node or "", FencingToken(listing.epoch, int(_name(lease)[-10:])))
            for lease in self._leases
        ]
        while self._stand(listing):
            grant = yield from lock_recipe.claim(self, token, node=node, others=tuple(others))
            if grant is not lock_recipe.AGAIN:
                return grant
            listing = yield from steps.look(leases(self.root))
        yield from self.before_leaving()
        return lock_recipe.AGAIN

    def before_leaving(self) -> Recipe[bool | None]:
        """Give back the permits that it has gathered. ``False``: one was gone before."""
        refused: AccessDenied | None = None
        there: bool | None = None
        while self._leases:
            try:
                if (yield from lock_recipe.leave(self._leases[-1])) is False:
                    there = False
            except raised_by_zklock(AccessDenied) as error:  # it stays: the others need not
                refused = error
            self._leases.pop()
        if refused is not None:
            raise refused
        return there


def _name(lease: lock_recipe.Entry) -> str:
    return (lease.node or "").rpartition("/")[2]


def _agree(root: str, limit: int | None, permits: int) -> Recipe[Kept]:
    """Return the limit that ZooKeeper keeps; the first contender sets it."""
    while True:
        (node,) = yield from steps.ask((Read(root),), Failure.MISSING)
        if isinstance(node, Failed):
            yield from steps.make_path(root)
        elif node.data or limit is None:
            return _checked(root, node, limit, permits)
        else:
            (written,) = yield (Write(root, str(limit).encode(), node.version),)
            steps.check(written, Failure.DROPPED, Failure.MISSING, Failure.CHANGED)


def number_in(data: bytes) -> int | None:
    """Return the number that is all of the data; ``None`` if there is none, or a far too long one.

    Python refuses to read a number of thousands of digits.
    """
    return int(data) if data.isdigit() and len(data) <= len(str(names.EXHAUSTED_AT)) else None


def _checked(root: str, node: Node, limit: int | None, permits: int) -> Kept:
    data = node.data
    if not data:
        raise _no_limit(root)
    kept = number_in(data)
    if kept is None or not 0 < kept < names.EXHAUSTED_AT:
        raise ZkLockError(
            f"{root}: its data is not a semaphore's limit ({data[:20]!r}): use another path",
            path=root,
        )
    if limit not in (None, kept):
        raise LimitMismatch(
            f"{root}: the stored limit is {kept}, not {limit}: use the same limit everywhere, or "
            "change it by set_limit()",
            path=root,
            kept=kept,
        )
    if permits > kept:
        raise LimitMismatch(
            f"{root}: {permits} permits will never be free: the limit is {kept}",
            path=root,
            kept=kept,
        )
    return Kept(kept, node.version)


def _no_limit(root: str) -> LimitMismatch:
    return LimitMismatch(f"{root}: this semaphore has no limit yet: give it one", path=root)


def set_limit(root: str, limit: int) -> Recipe[None]:
    """Write the limit, whatever it was."""
    while not (yield from steps.overwrite(root, str(limit).encode())):
        yield from steps.make_path(root)


def limit_of(root: str) -> Recipe[int | None]:
    """Return the limit that ZooKeeper keeps, or ``None`` if there is none yet."""
    (node,) = yield from steps.ask((Read(root),), Failure.MISSING)
    return _checked(root, node, None, 1).limit if isinstance(node, Node) and node.data else None


def contenders(root: str) -> Recipe[list[Contender]]:
    """Return the holders, one entry for each permit, and then the waiters, in order."""
    limit = (yield from limit_of(root)) or 0
    having = yield from queries.contenders(leases(root))
    waiting = yield from queries.contenders(locks(root))
    return arrange(limit, having, waiting)


def arrange(limit: int, having: list[_C], waiting: list[_C]) -> list[_C]:
    """Return the holders, one entry for each permit, and then the waiters, in order.

    A lease beyond the limit has one of two causes. It was given before the limit was lowered, or
    the first waiter has gathered it. The identity and the session tell which.
    """
    gathering = {(one.session_id, one.identity) for one in waiting[:1]}
    beyond = [one for one in having[limit:] if (one.session_id, one.identity) not in gathering]
    return [
        *(replace(one, holds=True) for one in (*having[:limit], *beyond)),
        *(replace(one, holds=False, token=None) for one in waiting),
    ]


def holder(root: str) -> Recipe[Contender | None]:
    """Return the holder of the oldest permit, confirmed by a quorum."""
    return (yield from queries.holder(leases(root)))
