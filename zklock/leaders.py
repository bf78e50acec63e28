"""Who leads an election, from one leader to the next: what observers are told, and its recipe.

An observer watches the leader's node only; without a leader, the election's children. So no member
is woken for an observer, and a member that comes or goes in the queue wakes no observer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from zklock import names, nodedata, steps
from zklock.effects import (
    Failed,
    Failure,
    Listing,
    Node,
    Recipe,
    SessionReplaced,
    Sync,
    Wait,
    Watch,
    WatchExists,
    WatchList,
)
from zklock.queries import Contender
from zklock.token import FencingToken

KEPT = 64
"""Changes that are kept for an observer which is slow; then only the newest."""


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """Another leader than before, or none: ``leader`` is ``None`` then.

    ``gap``: other leaders may have come and gone since the change before, unseen (the observer
    was slow, disconnected, or they were quick). Without it, there were none.
    """

    leader: Contender | None
    gap: bool = False

    @property
    def token(self) -> FencingToken | None:
        """The leader's fencing token; a later leader has a greater one."""
        return None if self.leader is None else self.leader.token


class Feed:
    """The changes that one observer has not yet been told of, oldest first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._changes: deque[LeaderChange] = deque()

    def put(self, change: LeaderChange) -> None:
        """Add a change; what is too much for a slow observer gives way to the newest."""
        with self._lock:
            if len(self._changes) >= self._kept:
                self._changes.clear()
                change = replace(change, gap=True)
            self._changes.append(change)

    def take(self) -> LeaderChange | None:
        """Remove and return the oldest; ``None`` if there is none."""
        with self._lock:
            return self._changes.popleft() if self._changes else None


class Sight:
    """What the looks at the election show: whether another leads, and what went unseen. Pure."""

    def __init__(self) -> None:
        self._before: Listing | None = None

    def look(self, now: Listing) -> bool | None:
        """Note a look → whether others may have led unseen; ``None`` if nothing has changed."""
        before, self._before = self._before, now
        if before is None:
            return False
        was, queue = before.queue.contenders, now.queue.contenders
        same = before.epoch == now.epoch
        if same and was and queue and was[0] == queue[0]:
            return None
        # ZooKeeper counts the children that come and go: have all of them been seen?
        changed = set(before.names).symmetric_difference(now.names)
        known = same or before is steps.ABSENT
        known = known and now.changes - before.changes == len(changed)
        if not queue:
            return None if known and not was else not (known and len(was) == 1)
        first = queue[0]
        if same and was and first.sequence == was[0].sequence + 1:
            return False
        # Nobody can come in between: only those who stood before it then can have led.
        behind = was[1:]
        if same and first in behind:
            return first != behind[0]
        return not known or bool(behind)


def observe(path: str, tell: Callable[[LeaderChange], object]) -> Recipe[None]:
    """Tell of the present leader and of every change, until given up.

    ``tell`` must not block.
    """
    sight = Sight()
    while True:
        try:
            yield from _observe(path, sight, tell)
        except SessionReplaced as replaced:
            if replaced.final is not None:
                raise replaced.final from None


def _observe(path: str, sight: Sight, tell: Callable[[LeaderChange], object]) -> Recipe[None]:
    # Another server may be behind the one before.
    while steps.is_((yield (Sync(path),))[0], Failure.DROPPED):
        pass
    while True:
        listing = yield from steps.look(path)
        if listing.queue.contenders:
            watched = yield from _watch_leader(path, listing, sight, tell)
        else:
            watched = yield from _watch_vacancy(path, sight, tell)
        if watched is not None:
            yield Wait(watched, None)


def _watch_leader(
    path: str, listing: Listing, sight: Sight, tell: Callable[[LeaderChange], object]
) -> Recipe[str | None]:
    """Watch the first of the queue, and tell of it → what is watched; ``None``: look again."""
    first = listing.queue.contenders[0]
    node = f"{path}/{first.text}"
    (found,) = yield (Watch(node),)
    watched = node
    if steps.is_(found, Failure.DENIED):
        (found,) = yield (WatchList(path),)  # who may not read a node is not told when it goes
        watched = path
    steps.check(found, Failure.DROPPED, Failure.MISSING)
    if isinstance(found, Failed) or (isinstance(found, Listing) and first.text not in found.names):
        return None
    gap = sight.look(listing)
    if gap is not None:
        tell(LeaderChange(_leader(node, first, listing.epoch, found), gap))
    return watched


def _leader(node: str, name: names.Name, epoch: int, found: Node | Listing) -> Contender:
    said = nodedata.parse(found.data if isinstance(found, Node) else b"")
    return Contender(
        said.identity.decode(errors="replace"),
        name.sequence,
        FencingToken(epoch, name.sequence) if name.sequence >= 0 else None,
        found.owner if isinstance(found, Node) else None,
        node,
        holds=True,
        payload=said.payload,
    )


def _watch_vacancy(
    path: str, sight: Sight, tell: Callable[[LeaderChange], object]
) -> Recipe[str | None]:
    """Watch for the first to come, and tell that there is nobody → as ``_watch_leader``."""
    (found,) = yield (WatchList(path),)
    if steps.is_(found, Failure.MISSING):
        (there,) = yield (WatchExists(path),)
        steps.check(there, Failure.DROPPED, Failure.MISSING)
        if not steps.is_(there, Failure.MISSING):
            return None
        found = steps.ABSENT
    steps.check(found, Failure.DROPPED)
    if isinstance(found, Failed) or found.queue.contenders:
        return None
    gap = sight.look(found)
    if gap is not None:
        tell(LeaderChange(None, gap))
    return path
