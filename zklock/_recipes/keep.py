"""What a kept lock watches: whether anybody else queues."""

from __future__ import annotations

from collections.abc import Callable

from zklock._recipes.effects import (
    Failure,
    Listing,
    Recipe,
    SessionReplaced,
    Wait,
    WatchList,
    parent_of,
)
from zklock._recipes.steps import is_


def watch_queue(node: str, alone: Callable[[bool], object]) -> Recipe[None]:
    """End when a contender beside ``node`` is or was there, or it is not known whether one is.

    ``alone(True)`` is called after each look that finds nobody else: the watch for the next one to
    come is placed by then. ``alone(False)`` is called before each further look. It must not block.
    """
    path, name = parent_of(node), node.rpartition("/")[2]
    changes: int | None = None  # at the last look
    try:
        while True:
            (listing,) = yield (WatchList(path),)
            if is_(listing, Failure.DROPPED):
                continue
            if not isinstance(listing, Listing):
                return
            if [each.text for each in listing.queue.contenders] != [name]:
                return
            if changes not in {None, listing.changes}:  # one that does not wait has gone
                return
            changes = listing.changes
            alone(True)
            yield Wait(path, None)
            alone(False)
    except SessionReplaced:
        return
