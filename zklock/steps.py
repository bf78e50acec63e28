"""What recipes do in one step. Each goes on until its outcome is known, however often it takes."""

from __future__ import annotations

import contextlib

from zklock import names
from zklock.effects import (
    Delete,
    Exists,
    Failed,
    Failure,
    List,
    Listing,
    Recipe,
    Request,
    SessionReplaced,
    Sync,
)

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


def delete(path: str, node: str) -> Recipe[None]:
    """Delete a contender's node, however often it takes; session gone: so is the node.

    A worn-out parent goes with the last of its children.
    """
    name = names.parse(node.rpartition("/")[2])
    worn = name is not None and not 0 <= name.sequence < names.RENEW_AT
    flight: tuple[Request, ...] = (Delete(node), Delete(path)) if worn else (Delete(node),)
    with contextlib.suppress(SessionReplaced):
        while True:
            result, *_ = yield flight
            if result is None or result.why is Failure.MISSING:
                return
            check(result, Failure.DROPPED)


def is_(result: object, why: Failure) -> bool:
    """Whether it failed for this reason."""
    return isinstance(result, Failed) and result.why is why


def check(result: object, *expected: Failure) -> None:
    """Raise the error of a failure that was not expected."""
    if isinstance(result, Failed) and result.why not in expected:
        raise result.error
