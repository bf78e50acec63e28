"""Several contenders that are made in one transaction: how a ``MultiLock`` finds its locks free.

The *ticket* is that transaction. It makes a contender for each of several locks, on one session.
The same batch lists the queues. Those up to the first that does not stand first in its queue are
granted at once. That one and all after it are deleted, and the caller takes the next lock by
itself.

So a ticket waits for nobody, and no ring of owners that wait for one another can close through it.

A claim never waits here, either. If not all can be granted at once, because there is no live lease
or because a node was deleted, all contenders are deleted. The same holds for every answer but the
plain ones. So a ticket is never needed, and may always be given up.

All or none: ZooKeeper carries out a transaction as a whole. If its answer is lost, each contender
is looked for by its name, which is used once, and deleted.

The owner of the new nodes is not in the answer of the transaction. The host knows it: see
``effects.Transaction``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from zklock._recipes import lock, names, steps
from zklock._recipes.effects import (
    Cancelled,
    Claim,
    ClaimAll,
    Create,
    Delete,
    Failed,
    Failure,
    List,
    Listing,
    Recipe,
    SessionReplaced,
    Transaction,
)
from zklock.errors import AccessDenied
from zklock.token import FencingToken

_NOTHING_DONE = {Failure.MISSING, Failure.DENIED}
"""With these errors ZooKeeper refuses a transaction. After any other, look what it has done."""


def acquire(entries: Sequence[lock.Entry]) -> Recipe[tuple[Any, ...]]:
    """Ask for all locks at once → the grants of the first ones, up to one that is not free.

    Nothing is left of the others.
    """
    for entry in entries:
        entry.uuid, entry.node = entry.new_uuid(), None
    try:
        listings = yield from _enter(entries)
        claims = tuple(_claims(entries, listings))
        yield from leave(entries[len(claims) :])
        grants = (yield ClaimAll(claims)) if claims else ()
        if grants is not None:
            return grants
        yield from leave(entries)
    except SessionReplaced as replaced:
        if replaced.final is not None:
            raise replaced.final from None
    except Exception:
        yield from leave(entries)
        raise
    return ()


def _enter(entries: Sequence[lock.Entry]) -> Recipe[Sequence[Listing]]:
    """Create the contenders and look at the queues, in one batch → none, or all of the queues."""
    creates = tuple(
        Create(f"{entry.path}/{names.prefix(entry.kind, entry.uuid, entry.naming)}", entry.data)
        for entry in entries
    )
    try:
        made, *found = yield (Transaction(creates), *(List(entry.path) for entry in entries))
    except Cancelled:
        _forget(entries)  # nothing was sent
        raise
    if isinstance(made, Failed):
        if made.why in _NOTHING_DONE:
            _forget(entries)
        return ()
    for entry, node in zip(entries, made, strict=True):
        entry.node = node
    listings = [listing for listing in found if isinstance(listing, Listing)]
    return listings if len(listings) == len(entries) else ()


def _forget(entries: Sequence[lock.Entry]) -> None:
    for entry in entries:
        entry.uuid = ""


def _claims(entries: Sequence[lock.Entry], listings: Sequence[Listing]) -> Iterator[Claim]:
    """Yield the claims of the contenders before the first that is not free."""
    for entry, listing in zip(entries, listings, strict=False):
        assert entry.node is not None
        me = names.parse(entry.node.rpartition("/")[2])
        assert me is not None
        ahead = _free(entry, me, listing)
        if ahead is None:
            return
        if entry.queued is not None:
            entry.queued(entry.node, ahead)
        token = FencingToken(listing.epoch, me.sequence)
        yield Claim(entry.node, token, partial(lock.leave, entry), alone=entry.alone)


def _free(entry: lock.Entry, me: names.Name, listing: Listing) -> int | None:
    """Return how many stand before it, if it may be granted as the queue stands; else ``None``."""
    queue = listing.queue
    standing = queue.standing(me)
    if standing is None or standing.nearest is not None or steps.exhausted(me, listing):
        return None
    if len(listing.names) > len(queue.contenders) and names.strangers(listing.names, me):
        return None
    if entry.naming is names.Naming.KAZOO and not all(
        names.seen_by_kazoo(name.text) for name in queue.contenders
    ):
        return None
    return standing.ahead


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
            (result,) = yield (Transaction(tuple(map(Delete, known))),)
            if result is None:
                return
        except SessionReplaced:
            return  # the nodes are gone with their session
        except Cancelled as error:
            final = error
    for one in each:
        try:
            yield from one()
        except (Cancelled, AccessDenied) as error:
            final = error
    if final is not None:
        raise final
