"""The semaphore recipe: Curator's ``InterProcessSemaphoreV2``, so that both share permits.

Below the semaphore's path, ``locks`` is the queue of an exclusive lock, and ``leases`` has a node
for each permit. Who is first in the queue makes its leases, waits until there are no more of them
than the limit, and lets the next one in. So permits are given in the order of asking, nobody gets
some of them only while others get the rest, and a permit that is given back wakes one waiter. The
limit stands in the data of the semaphore's path, as decimal text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from zklock import names, queries, recipe, steps
from zklock.effects import (
    Event,
    Failed,
    Failure,
    Listing,
    MakePath,
    Node,
    Read,
    Recipe,
    Wait,
    Watch,
    WatchList,
    Write,
)
from zklock.errors import LimitMismatch, ZkLockError
from zklock.queries import Contender
from zklock.token import FencingToken


def locks(root: str) -> str:
    """Return where contenders queue."""
    return f"{root}/locks"


def leases(root: str) -> str:
    """Return where permits are."""
    return f"{root}/leases"


@dataclass(slots=True)
class Entry(recipe.Entry):
    """A contender for some permits of the semaphore at ``root``."""

    root: str = ""
    limit: int | None = None
    permits: int = 1
    _leases: list[recipe.Entry] = field(default_factory=list)

    def turn(self, token: FencingToken) -> Recipe[Any]:
        """Gather the permits, and let the next one gather its own."""
        limit = yield from _agree(self.root, self.limit, self.permits)
        listing = yield from self._make_leases()
        if not isinstance(listing, Listing):
            return recipe.AGAIN
        while True:
            if not self._stand(listing):
                yield from self.before_leaving()
                return recipe.AGAIN
            if len(listing.names) <= limit:
                grant = yield from self._claim(listing)
                if grant is not recipe.AGAIN:
                    return grant
                listing = yield from steps.look(leases(self.root))
                continue
            if not self.patient:
                return None
            assert self.node is not None
            flight = (WatchList(leases(self.root)), Watch(self.node), Watch(self.root))
            listed, own, root = yield flight
            for result in (listed, own, root):
                steps.check(result, Failure.DROPPED, Failure.MISSING)
            if any(steps.is_(result, Failure.DROPPED) for result in (listed, own, root)):
                continue
            if not isinstance(own, Node) or not own.mine:
                yield from self.before_leaving()
                return recipe.AGAIN
            if isinstance(root, Node):
                limit = _checked(self.root, root.data, self.limit, self.permits)
            listing = listed if isinstance(listed, Listing) else steps.ABSENT
            if self._stand(listing) and len(listing.names) > limit:
                event = yield Wait(leases(self.root), self.node, beside=self.root)
                if event is not Event.OWN_GONE:
                    listing = yield from steps.look(leases(self.root))

    def _make_leases(self) -> Recipe[Listing | None]:
        """Make a lease for each permit → their listing; ``None`` if numbers had run out."""
        self._leases.clear()
        listing = steps.ABSENT
        for _ in range(self.permits):
            lease = recipe.Entry(
                leases(self.root), self.data, names.Kind.LEASE, new_uuid=self.new_uuid
            )
            lease.uuid = lease.new_uuid()
            self._leases.append(lease)
            listing = yield from recipe.enter(lease)
            name = names.parse(_name(lease))
            assert name is not None
            if steps.worn_out(name, listing):
                yield from self.before_leaving()
                yield from steps.renew(leases(self.root), listing.epoch)
                return None
        return listing

    def _stand(self, listing: Listing) -> bool:
        return {_name(lease) for lease in self._leases} <= set(listing.names)

    def _claim(self, listing: Listing) -> Recipe[Any]:
        assert self.node is not None
        *others, (node, token) = [
            (lease.node or "", FencingToken(listing.epoch, int(_name(lease)[-10:])))
            for lease in self._leases
        ]
        grant = yield from recipe.claim(self, token, node=node, others=tuple(others))
        if grant is not recipe.AGAIN:
            yield from steps.delete(self.path, self.node)
            self.node, self.uuid = None, ""
        return grant

    def before_leaving(self) -> Recipe[None]:
        """Give back what permits there are."""
        for lease in self._leases:
            yield from recipe.leave(lease)


def _name(lease: recipe.Entry) -> str:
    return (lease.node or "").rpartition("/")[2]


def _agree(root: str, limit: int | None, permits: int) -> Recipe[int]:
    """Return the limit that is kept; the first to come sets it."""
    while True:
        (node,) = yield (Read(root),)
        steps.check(node, Failure.DROPPED, Failure.MISSING)
        if isinstance(node, Failed):
            (made,) = yield (MakePath(root),)
            steps.check(made, Failure.DROPPED)
        elif node.data or limit is None:
            return _checked(root, node.data, limit, permits)
        else:
            (written,) = yield (Write(root, str(limit).encode(), node.version),)
            steps.check(written, Failure.DROPPED, Failure.MISSING, Failure.CHANGED)


def _checked(root: str, data: bytes, limit: int | None, permits: int) -> int:
    if not data:
        raise LimitMismatch(f"{root}: no limit is kept here yet: pass limit=", path=root)
    if not (data.isdigit() and 0 < int(data) < names.EXHAUSTED_AT):
        raise ZkLockError(
            f"{root}: its data is not a semaphore's limit ({data[:20]!r}): use another path",
            path=root,
        )
    kept = int(data)
    if limit not in (None, kept):
        raise LimitMismatch(
            f"{root}: the limit that is kept is {kept}, not {limit}: use the same one everywhere, "
            "or change it by set_limit()",
            path=root,
            kept=kept,
        )
    if permits > kept:
        raise LimitMismatch(
            f"{root}: {permits} permits will never be free: the limit is {kept}",
            path=root,
            kept=kept,
        )
    return kept


def set_limit(root: str, limit: int) -> Recipe[None]:
    """Write the limit, whatever it was."""
    while True:
        (written,) = yield (Write(root, str(limit).encode()),)
        steps.check(written, Failure.DROPPED, Failure.MISSING)
        if written is None:
            return
        if written.why is Failure.MISSING:
            (made,) = yield (MakePath(root),)
            steps.check(made, Failure.DROPPED)


def limit_of(root: str) -> Recipe[int | None]:
    """Return the limit that is kept, ``None`` if there is none yet."""
    while True:
        (node,) = yield (Read(root),)
        steps.check(node, Failure.DROPPED, Failure.MISSING)
        if isinstance(node, Node):
            return _checked(root, node.data, None, 1) if node.data else None
        if node.why is Failure.MISSING:
            return None


def contenders(root: str) -> Recipe[list[Contender]]:
    """Return who has permits, one entry for each, and who waits, in order.

    Leases beyond the limit are those that the first who waits has gathered so far.
    """
    limit = (yield from limit_of(root)) or 0
    having = yield from queries.contenders(leases(root))
    waiting = yield from queries.contenders(locks(root))
    return [
        *(replace(one, holds=True) for one in having[:limit]),
        *(replace(one, holds=False, token=None) for one in waiting),
    ]


def holder(root: str) -> Recipe[Contender | None]:
    """Return the oldest permit's holder, confirmed by a quorum."""
    return (yield from queries.holder(leases(root)))
