"""Several contenders that are made in one transaction: how a ``MultiLock`` finds its locks free.

The *ticket* is that transaction. It makes a contender for each of several locks, on one session.
The same batch lists the queues. There is an order of all locks that is the same for everybody, and
``entries`` stand in it.

- A contender that stands first in its queue is granted at once, and so are those after it, up to
  the first contender that does not stand first.
- That one keeps its place: the caller waits there.
- The contenders after it are deleted before the caller waits. The caller asks for those locks again
  when the wait is over.

No deadlock. Suppose that a ring of owners wait for one another, for ever. Each of them waits for a
lock, at one place: a contender of the next owner stands before its own there. Whoever waits for the
lock k has contenders at k and at locks before k. It had contenders after k only for a while: they
are deleted before the wait, and no deletion waits for a lock. So in the ring, each owner waits for
a lock that comes after the lock of the owner before it, or for the same lock at a lower number. No
ring goes only upwards. Those who take the locks one after the other, in this order, wait in the
same way, with this version or with an earlier one: they may be in the ring, and change nothing.

A claim never waits here. If not all can be granted at once, because there is no live lease or
because a node was deleted, all contenders are deleted. The same holds for every answer but the
plain ones. The caller then takes the locks one after the other. So a ticket is never needed, and
may always be given up.

All or none: ZooKeeper carries out a transaction as a whole. If its answer is lost, each contender
is looked for by its name, which is used once, and deleted.

The owner of the new nodes is not in the answer of the transaction. The host knows it: see
``effects.CreateAll``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from zklock._recipes import lock, names, steps
from zklock._recipes.effects import (
    Claim,
    ClaimAll,
    Create,
    CreateAll,
    DeleteAll,
    Failed,
    Failure,
    GiveUp,
    List,
    Listing,
    Recipe,
    SessionReplaced,
)
from zklock.errors import AccessDenied
from zklock.token import FencingToken

_NOTHING_DONE = {Failure.MISSING, Failure.DENIED}
"""With these errors ZooKeeper refuses a transaction. After any other, look what it has done."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What came of a ticket: the grants of the first entries, and the one that has to wait.

    ``listing``: the queue of ``waiting``, whose node is in it. ``sweep`` deletes a node.
    """

    grants: tuple[Any, ...] = ()
    waiting: lock.Entry | None = None
    listing: Listing = steps.ABSENT
    sweep: Callable[[str], object] | None = None

    def abandon(self) -> None:
        """Give back what was granted, and the place in the queue. Repeatable."""
        for grant in reversed(self.grants):
            grant.abandon()
        if self.sweep is not None and self.waiting is not None and self.waiting.node:
            self.sweep(self.waiting.node)


def acquire(entries: Sequence[lock.Entry], sweep: Callable[[str], object]) -> Recipe[Ticket]:
    """Queue for all locks at once → what was free, and the first that was not.

    An empty ticket: nothing is left of it, and the locks have to be taken one after the other.
    """
    for entry in entries:
        entry.uuid, entry.node = entry.new_uuid(), None
    try:
        listings = yield from _enter(entries)
        if listings is not None:
            return (yield from _take_turns(entries, listings, sweep))
    except SessionReplaced as replaced:
        if replaced.final is not None:
            raise replaced.final from None
    except Exception:
        yield from leave(entries)
        raise
    return Ticket()


def _enter(entries: Sequence[lock.Entry]) -> Recipe[list[Listing] | None]:
    """Create the contenders and look at the queues, in one batch; ``None``: nothing is left."""
    creates = tuple(
        Create(f"{entry.path}/{names.prefix(entry.kind, entry.uuid, entry.naming)}", entry.data)
        for entry in entries
    )
    try:
        made, *found = yield (CreateAll(creates), *(List(entry.path) for entry in entries))
    except GiveUp:
        _forget(entries)  # nothing was sent
        raise
    if isinstance(made, Failed):
        if made.why in _NOTHING_DONE:
            _forget(entries)
        yield from leave(entries)
        return None
    for entry, node in zip(entries, made, strict=True):
        entry.node = node
    listings = [listing for listing in found if isinstance(listing, Listing)]
    if len(listings) == len(entries):
        return listings
    yield from leave(entries)
    return None


def _forget(entries: Sequence[lock.Entry]) -> None:
    for entry in entries:
        entry.uuid = ""


def _take_turns(
    entries: Sequence[lock.Entry], listings: Sequence[Listing], sweep: Callable[[str], object]
) -> Recipe[Ticket]:
    turns = [_turn(entry, listing) for entry, listing in zip(entries, listings, strict=True)]
    first = turns.index(None) if None in turns else len(entries)
    behind = entries[first + 1 :]
    if behind:
        yield from leave(behind)
    claims = [_claim(*each) for each in zip(entries, listings, turns[:first], strict=False)]
    # It is asked for without any, too: from then on, the ticket cannot be given up unheard.
    grants = yield ClaimAll(tuple(claims))
    if grants is None:
        yield from leave(entries[: first + 1])
        return Ticket()
    if first == len(entries):
        return Ticket(grants)
    return Ticket(grants, entries[first], listings[first], sweep)


def _turn(entry: lock.Entry, listing: Listing) -> tuple[names.Name, int] | None:
    """Return the name of a contender, and how many stand before it, if it may be granted.

    It may as the queue stands, without a further look.
    """
    assert entry.node is not None
    me, queue = names.parse(entry.node.rpartition("/")[2]), listing.queue
    assert me is not None
    standing = queue.standing(me)
    if standing is None or standing.nearest is not None or steps.worn_out(me, listing):
        return None
    if len(listing.names) > len(queue.contenders) and names.strangers(listing.names, me):
        return None
    if entry.naming is names.Naming.KAZOO and not all(
        names.seen_by_kazoo(name.text) for name in queue.contenders
    ):
        return None
    return me, standing.ahead


def _claim(entry: lock.Entry, listing: Listing, turn: tuple[names.Name, int] | None) -> Claim:
    assert entry.node is not None
    assert turn is not None
    me, ahead = turn
    if entry.queued is not None:
        entry.queued(entry.node, ahead)
    token = FencingToken(listing.epoch, me.sequence)
    return Claim(entry.node, token, partial(lock.leave, entry), alone=entry.alone)


def leave(entries: Sequence[lock.Entry]) -> Recipe[None]:
    """Delete the contenders' nodes; see ``give_back``."""
    yield from give_back(
        [entry.node for entry in entries], [partial(lock.leave, entry) for entry in entries]
    )


def give_back(
    nodes: Sequence[str | None], each: Sequence[Callable[[], Recipe[None]]]
) -> Recipe[None]:
    """Delete contenders' nodes in one transaction; if that does not do it, leave each by itself.

    ``each`` are the recipes to leave, in the order of ``nodes``: each deletes its node, and that is
    all that it does. Giving up does not stop this, nor does an error at one of them.
    """
    known = [node for node in nodes if node]
    final: Exception | None = None
    if 1 < len(known) == len(each) and not any(map(steps.worn, known)):
        try:
            (result,) = yield (DeleteAll(tuple(known)),)
            if result is None:
                return
        except SessionReplaced:
            return  # the nodes are gone with their session
        except GiveUp as error:
            final = error
    for one in each:
        try:
            yield from one()
        except (GiveUp, AccessDenied) as error:
            final = error
    if final is not None:
        raise final
