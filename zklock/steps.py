"""What recipes do in one step. Each goes on until its outcome is known, however often it takes."""

from __future__ import annotations

import contextlib

from zklock import names, nodedata
from zklock.effects import (
    Delete,
    Depart,
    Event,
    Exists,
    Failed,
    Failure,
    List,
    Listing,
    Node,
    Recipe,
    Request,
    SessionReplaced,
    Sync,
    Wait,
    Watch,
    WatchList,
)
from zklock.errors import SequenceExhausted

ABSENT = Listing([], -1)
"""The listing of a parent that does not exist."""


def look(path: str) -> Recipe[Listing]:
    """List the queue; an absent parent is an empty queue."""
    while True:
        (listing,) = yield (List(path),)
        if isinstance(listing, Listing):
            return listing
        if listing.why is Failure.MISSING:
            return ABSENT
        check(listing, Failure.DROPPED)


def find(path: str, uuid: str) -> Recipe[str | None]:
    """Return the node of a create whose reply was lost, if there is one and it is ours."""
    while True:
        synced, listing = yield (Sync(path), List(path))
        check(synced, Failure.DROPPED)
        check(listing, Failure.DROPPED, Failure.MISSING)
        if is_(synced, Failure.DROPPED) or is_(listing, Failure.DROPPED):
            continue
        found = listing.names if isinstance(listing, Listing) else []
        alike = [name for name in found if name.startswith(f"_c_{uuid}-")]
        if not alike:
            return None
        nodes = yield tuple(Exists(f"{path}/{name}") for name in alike)
        for node in nodes:
            check(node, Failure.DROPPED, Failure.MISSING)
        if any(isinstance(node, Failed) for node in nodes):
            continue
        # A node of an earlier session is about to vanish: it is not ours to stand on.
        return next((node.path for node in nodes if node.mine), None)


def delete(
    path: str, node: str, request: Delete | Depart | None = None, *, tidy: bool = False
) -> Recipe[None]:
    """Delete a contender's node, however often it takes; session gone: so is the node.

    A worn-out parent goes with the last of its children; any parent if ``tidy``.
    """
    name = names.parse(node.rpartition("/")[2])
    worn = name is not None and not 0 <= name.sequence < names.RENEW_AT
    first: Request = request or Delete(node)
    flight = (first, Delete(path)) if tidy or worn else (first,)
    with contextlib.suppress(SessionReplaced):
        while True:
            result, *_ = yield flight
            if result is None or result.why is Failure.MISSING:
                return
            check(result, Failure.DROPPED)


def watch(
    blocker: str, own: str | None, reads: bool = False, patient: bool = True
) -> Recipe[Event | None]:
    """Sleep until the blocker or the own node goes. ``None``: the blocker was not there.

    A reader is let in by a writer that has become a reader. The impatient do not sleep.
    """
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
        if reads and isinstance(found, Node) and nodedata.parse(found.data).lets_readers_in:
            return Event.LETS_IN
        event: Event = (yield Wait(first.path, own)) if patient else Event.UNWATCHED
        if event is not Event.UNWATCHED or not patient:
            return event


def worn_out(me: names.Name, listing: Listing) -> bool:
    """Whether nobody may be granted on this number, or on those around it."""
    youngest = listing.queue.contenders[-1:]  # a low number beside a wrapped one has wrapped too
    return any(not 0 <= name.sequence < names.EXHAUSTED_AT for name in (me, *youngest))


def renew(path: str, epoch: int) -> Recipe[None]:
    """Wait for a parent without numbers to drain, and remove it: its successor starts at 0."""
    while True:
        listing = yield from look(path)
        if listing.epoch != epoch or listing is ABSENT:
            return
        if queue := listing.queue.contenders:
            yield from watch(f"{path}/{queue[-1].text}", None)
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


def is_(result: object, why: Failure) -> bool:
    """Whether it failed for this reason."""
    return isinstance(result, Failed) and result.why is why


def check(result: object, *expected: Failure) -> None:
    """Raise the error of a failure that was not expected."""
    if isinstance(result, Failed) and result.why not in expected:
        raise result.error
