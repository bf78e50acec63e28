"""The lock recipe: who gets the lock, when, and how a contender leaves.

The algorithm of "Recipes and Solutions, Locks" in ZooKeeper's documentation, with what it leaves
open: lost replies, lost sessions, worn-out sequence numbers. It knows nothing of threads, clocks,
or the client; see ``effects`` for what it may ask for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from zklock import names
from zklock.effects import (
    Claim,
    Create,
    Delete,
    Depart,
    Event,
    Failure,
    GiveUp,
    List,
    Listing,
    MakePath,
    Node,
    Recipe,
    SessionReplaced,
)
from zklock.steps import check, delete, find, look, renew, watch, worn_out
from zklock.token import FencingToken

AGAIN = object()
"""What a turn comes to if the queue must be looked at again."""


@dataclass(slots=True)
class Entry:
    """One contender: where it queues, and its node once that is known."""

    path: str
    data: bytes
    kind: names.Kind
    patient: bool = True
    tidy: bool = False
    new_uuid: Callable[[], str] = lambda: str(uuid4())
    uuid: str = ""
    node: str | None = None
    granted: bool = False

    def turn(self, token: FencingToken) -> Recipe[Any]:
        """Do what is to be done once nobody is before it → the grant, ``AGAIN``, or not free."""
        return claim(self, token)

    def departure(self, node: str) -> Delete | Depart:
        """Return the request that removes its node."""
        return Delete(node)

    def before_leaving(self) -> Recipe[None]:
        """Remove what else it has left in ZooKeeper; may be run more than once."""
        yield from ()


def acquire(entry: Entry) -> Recipe[Any]:
    """Queue until the lock is claimed → the grant; ``None`` if not patient and not free."""
    while True:
        # 1. A contender of its own for every try: a name that was used never comes back.
        entry.uuid, entry.node = entry.new_uuid(), None
        try:
            listing = yield from enter(entry)
            outcome = yield from _take_turn(entry, listing)
        except SessionReplaced as replaced:
            if replaced.final is not None:
                raise replaced.final from None
            continue  # the node is gone with its session: queue again, at the end
        except Exception:
            yield from leave(entry)
            raise
        if outcome is None:
            yield from leave(entry)
        if outcome is not AGAIN:
            return outcome


def enter(entry: Entry) -> Recipe[Listing]:
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
    """Wait behind the nearest blocker until none is left, and take the turn."""
    assert entry.node is not None
    me = names.parse(entry.node.rpartition("/")[2])
    assert me is not None
    if worn_out(me, listing):
        yield from leave(entry)
        yield from renew(entry.path, listing.epoch)
        return AGAIN
    reads, passed = me.kind is names.Kind.READ, set[str]()
    while standing := listing.queue.standing(me, passed):
        # 2. Nobody before me: it is my turn.
        blocker = standing.nearest
        turn = blocker is None
        # 3. Otherwise watch the nearest blocker only, and the own node. 4. Woken, look again;
        #    but once the sole blocker is gone there is nothing to look for: nobody can have come
        #    in before me, and had my node gone earlier, its watch would have said so earlier. The
        #    same holds for a blocker that was granted: those before it were gone by then. Behind
        #    a writer look in any case: Curator's become readers of the same number.
        if blocker is not None:
            event = None
            if entry.patient or reads:
                event = yield from watch(
                    f"{entry.path}/{blocker.text}", entry.node, reads, entry.patient
                )
            if event is Event.OWN_GONE:
                break
            if event is Event.LETS_IN:
                passed.add(blocker.text)
                continue
            if not entry.patient:
                return None
            turn = event is Event.BLOCKER_GONE and standing.sole
            turn &= blocker.kind is not names.Kind.WRITE
            turn |= event is Event.HOLDER_GONE and (
                standing.sole or blocker.kind is not names.Kind.READ
            )
        if turn:
            outcome = yield from entry.turn(FencingToken(listing.epoch, me.sequence))
            if outcome is not AGAIN:
                return outcome
        listing = yield from look(entry.path)
    return AGAIN  # somebody deleted my node


def claim(
    entry: Entry, token: FencingToken, *, node: str | None = None, **more: Any
) -> Recipe[Any]:
    """Take the grant, on the contender's node or another → it, or ``AGAIN``: no live lease."""
    grant = yield Claim(node or entry.node or "", token, partial(leave, entry), **more)
    entry.granted = grant is not None
    return grant or AGAIN


def leave(entry: Entry) -> Recipe[None]:
    """Delete the contender's node, if there is or may be one; giving up does not stop that."""
    gave_up = None
    while True:
        try:
            with contextlib.suppress(SessionReplaced):
                yield from entry.before_leaving()
                node = entry.node or (entry.uuid and (yield from find(entry.path, entry.uuid)))
                if node:
                    tidy = entry.tidy and entry.granted
                    yield from delete(entry.path, node, entry.departure(node), tidy=tidy)
            break
        except GiveUp as error:
            gave_up = error
    if gave_up is not None:
        raise gave_up
