"""The lock recipe: who gets the lock, when, and how a contender leaves.

The algorithm of "Recipes and Solutions, Locks" in ZooKeeper's documentation, with what it leaves
open: lost replies, lost sessions, worn-out sequence numbers. It knows nothing of threads, clocks,
or the client; see ``effects`` for what it may ask for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from zklock import names
from zklock.effects import (
    Claim,
    Create,
    Delete,
    Event,
    Failed,
    Failure,
    GiveUp,
    List,
    Listing,
    MakePath,
    Node,
    Recipe,
    SessionReplaced,
    Wait,
    Watch,
    WatchList,
)
from zklock.errors import SequenceExhausted
from zklock.steps import ABSENT, check, delete, find, is_, look
from zklock.token import FencingToken


@dataclass(slots=True)
class Entry:
    """One contender: where it queues, and its node once that is known."""

    path: str
    data: bytes
    kind: names.Kind
    patient: bool = True
    new_uuid: Callable[[], str] = lambda: str(uuid4())
    uuid: str = ""
    node: str | None = None


_AGAIN = object()


def acquire(entry: Entry) -> Recipe[Any]:
    """Queue until the lock is claimed → the grant; ``None`` if not patient and not free."""
    while True:
        # 1. A contender of its own for every try: a name that was used never comes back.
        entry.uuid, entry.node = entry.new_uuid(), None
        try:
            listing = yield from _enter(entry)
            outcome = yield from _take_turn(entry, listing)
        except SessionReplaced as replaced:
            if replaced.final is not None:
                raise replaced.final from None
            continue  # the node is gone with its session: queue again, at the end
        except Exception:
            yield from leave(entry)
            raise
        if outcome is not _AGAIN:
            return outcome


def _enter(entry: Entry) -> Recipe[Listing]:
    """Create the contender and look at the queue, in one flight."""
    while True:
        prefix = f"{entry.path}/{names.prefix(entry.kind, entry.uuid)}"
        try:
            created, listing = yield (Create(prefix, entry.data), List(entry.path))
        except GiveUp:
            entry.uuid = ""  # nothing was sent
            raise
        if isinstance(created, Node):
            entry.node = created.path
        elif created.why is Failure.MISSING:
            (made,) = yield (MakePath(entry.path),)
            check(made, Failure.DROPPED)
            continue
        elif created.why is Failure.DROPPED:
            entry.node = yield from find(entry.path, entry.uuid)
            if entry.node is None:
                entry.uuid = entry.new_uuid()
                continue
        else:
            raise created.error
        return listing if isinstance(listing, Listing) else (yield from look(entry.path))


def _take_turn(entry: Entry, listing: Listing) -> Recipe[Any]:
    """Wait behind the nearest blocker until none is left, and claim."""
    assert entry.node is not None
    me = names.parse(entry.node.rpartition("/")[2])
    assert me is not None
    youngest = names.queue(listing.names)[-1:]  # a low number beside a wrapped one has wrapped too
    if any(not 0 <= name.sequence < names.EXHAUSTED_AT for name in (me, *youngest)):
        yield from leave(entry)
        yield from _renew(entry.path, listing.epoch)
        return _AGAIN
    while standing := names.standing(me, listing.names):
        # 2. Nobody before me: it is my turn.
        turn = standing.first
        if not turn and not entry.patient:
            yield from leave(entry)
            return None
        # 3. Otherwise watch the nearest blocker only, and the own node. 4. Woken, look again;
        #    but once the sole blocker is gone there is nothing to look for: nobody can have come
        #    in before me, and had my node gone earlier, its watch would have said so earlier.
        if not turn:
            event = yield from _watch(f"{entry.path}/{standing.nearest.text}", entry.node)
            if event is Event.OWN_GONE:
                break
            turn = event is Event.BLOCKER_GONE and standing.sole
        token = FencingToken(listing.epoch, me.sequence)
        if turn and (grant := (yield Claim(entry.node, token))):
            return grant
        listing = yield from look(entry.path)
    return _AGAIN  # somebody deleted my node


def _watch(blocker: str, own: str | None) -> Recipe[Event | None]:
    """Sleep until the blocker or the own node goes. ``None``: the blocker was not there."""
    path, _, name = blocker.rpartition("/")
    first: Watch | WatchList = Watch(blocker)
    beside = (Watch(own),) if own else ()
    while True:
        found, *results = yield (first, *beside)
        if is_(found, Failure.DENIED) and isinstance(first, Watch):
            first = WatchList(path)  # who may not read a node is not told when it goes
            continue
        for result in (found, *results):
            check(result, Failure.DROPPED, Failure.MISSING)
        if any(is_(result, Failure.DROPPED) for result in (found, *results)):
            continue
        if own and not (isinstance(results[0], Node) and results[0].mine):
            return Event.OWN_GONE
        if isinstance(found, Failed) or (isinstance(found, Listing) and name not in found.names):
            return None
        event: Event = yield Wait(first.path, own)
        if event is not Event.UNWATCHED:
            return event


def leave(entry: Entry) -> Recipe[None]:
    """Delete the contender's node, if there is or may be one; giving up does not stop that."""
    gave_up = None
    while True:
        try:
            with contextlib.suppress(SessionReplaced):
                node = entry.node or (entry.uuid and (yield from find(entry.path, entry.uuid)))
                if node:
                    yield from delete(entry.path, node)
            break
        except GiveUp as error:
            gave_up = error
    if gave_up is not None:
        raise gave_up


def _renew(path: str, epoch: int) -> Recipe[None]:
    """Wait for a parent without numbers to drain, and remove it: its successor starts at 0."""
    while True:
        listing = yield from look(path)
        if listing.epoch != epoch or listing is ABSENT:
            return
        queue = names.queue(listing.names)
        if queue:
            yield from _watch(f"{path}/{queue[-1].text}", None)
            continue
        if listing.names:
            raise SequenceExhausted(
                f"{path}: its sequence numbers are used up, and children that are no contenders "
                f"(such as {listing.names[0]!r}) keep it from being renewed: remove them, or use "
                "another path",
                path=path,
            )
        (deleted,) = yield (Delete(path),)
        check(deleted, Failure.DROPPED, Failure.MISSING, Failure.NOT_EMPTY)
