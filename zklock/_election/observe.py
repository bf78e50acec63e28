"""Who leads an election, from one leader to the next: the recipe of observers.

An observer watches only the leader's node, and the data of the election's own node, where changed
payloads are. Without a leader, it watches the election's children. So an observer wakes no member,
and a member that comes or goes in the queue wakes no observer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zklock._recipes import names, nodedata, notes, steps
from zklock._recipes.effects import (
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
from zklock._recipes.queries import Contender
from zklock.token import FencingToken


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """A new leader, or no leader: ``leader`` is ``None`` then.

    ``gap``: other leaders may have come and gone, unseen, since the previous change. The observer
    was slow or disconnected, or those leaders were quick. If ``gap`` is false, there were none.
    ``same_leader``: it is the leader of the previous change, whose payload has changed.
    """

    leader: Contender | None
    gap: bool = False
    same_leader: bool = False

    @property
    def token(self) -> FencingToken | None:
        """The leader's fencing token; a later leader has a greater one."""
        return None if self.leader is None else self.leader.token


class ObservedQueue:
    """Compares looks at the election: did the leader change, and were changes unseen? Pure."""

    def __init__(self) -> None:
        self._before: Listing | None = None
        self._payload = b""  # the leader's

    def news_of(self, payload: bytes) -> bool:
        """Note the leader's payload; whether it is another one than before."""
        before, self._payload = self._payload, payload
        return payload != before

    def look(self, now: Listing) -> bool | None:
        """Note a look → whether others may have led unseen; ``None``: nothing has changed."""
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
        # Nobody can come in between: only those who stood before it at the last look can have led.
        behind = was[1:]
        if same and first in behind:
            return first != behind[0]
        return not known or bool(behind)


def observe(path: str, tell: Callable[[LeaderChange], object]) -> Recipe[None]:
    """Report the present leader and every change, until given up.

    ``tell`` must not block.
    """
    sight = ObservedQueue()
    while True:
        try:
            yield from _observe(path, sight, tell)
        except SessionReplaced as replaced:
            if replaced.final is not None:
                raise replaced.final from None


def _observe(
    path: str, sight: ObservedQueue, tell: Callable[[LeaderChange], object]
) -> Recipe[None]:
    # This server may lag behind the previous one.
    yield from steps.ask((Sync(path),), *Failure)
    while True:
        listing = yield from steps.look(path)
        if listing.queue.contenders:
            watched = yield from _watch_leader(path, listing, sight, tell)
        else:
            watched = yield from _watch_vacancy(path, sight, tell)
        if watched is not None:
            yield Wait(watched, None, path)


def _watch_leader(
    path: str, listing: Listing, sight: ObservedQueue, tell: Callable[[LeaderChange], object]
) -> Recipe[str | None]:
    """Watch the first in the queue, and report it → the watched path; ``None``: look again."""
    first = listing.queue.contenders[0]
    node = f"{path}/{first.text}"
    found, root = yield (Watch(node), Watch(path))
    watched = node
    if steps.is_(found, Failure.DENIED):
        # Without read permission, no watch event when it goes.
        found, root = yield (WatchList(path), Watch(path))
        watched = path
    steps.check(found, Failure.DROPPED, Failure.MISSING)
    steps.check(root, Failure.DROPPED, Failure.MISSING)
    if isinstance(found, Failed) or (isinstance(found, Listing) and first.text not in found.names):
        return None
    if isinstance(root, Failed):
        return None
    gap = sight.look(listing)
    leader = _leader(node, first, listing.epoch, found, notes.parse(root.data))
    news = sight.news_of(leader.payload)
    if gap is not None:
        tell(LeaderChange(leader, gap))
    elif news:
        tell(LeaderChange(leader, same_leader=True))
    return watched


def _leader(
    node: str, name: names.Name, epoch: int, found: Node | Listing, noted: notes.Notes
) -> Contender:
    said = nodedata.parse(found.data if isinstance(found, Node) else b"")
    return Contender(
        said.identity.decode(errors="replace"),
        name.sequence,
        FencingToken(epoch, name.sequence) if name.sequence >= 0 else None,
        found.owner if isinstance(found, Node) else None,
        node,
        holds=True,
        payload=noted.payloads.get(name.text, said.payload),
    )


def _watch_vacancy(
    path: str, sight: ObservedQueue, tell: Callable[[LeaderChange], object]
) -> Recipe[str | None]:
    """Watch for a first member, and report that nobody leads → see ``_watch_leader``."""
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
