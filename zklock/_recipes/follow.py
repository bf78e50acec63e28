"""What a node says, and who is below it, again after every change. Recipes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zklock._recipes import steps
from zklock._recipes.effects import (
    Failed,
    Failure,
    Listing,
    Node,
    Recipe,
    SessionReplaced,
    Sync,
    Wait,
    Wakeup,
    Watch,
    WatchExists,
    WatchList,
)


@dataclass(frozen=True, slots=True)
class Folder:
    """A node and the names of its children. ``epoch``: its czxid, -1 if there is no node."""

    names: tuple[str, ...]
    epoch: int
    data: bytes


def follow(path: str, tell: Callable[[Node | None, bool], object]) -> Recipe[None]:
    """Tell what a node says, at first and after each change; ``None`` once it is gone, then end.

    The second argument of ``tell`` says whether the node was deleted just as it was last told:
    nothing was written to it just before. ``tell`` must not block.
    """
    told: Node | None = None
    while True:
        with steadfast():
            (found,) = yield from steps.ask((Watch(path),), Failure.MISSING)
            if isinstance(found, Failed):
                tell(None, False)
                return
            if found != told:
                told = found
                tell(found, False)
            if (yield Wait(path, None)) is not Wakeup.UNWATCHED:
                tell(None, True)
                return


def follow_folder(path: str, tell: Callable[[Folder], object]) -> Recipe[None]:
    """Tell a node's data and its children's names, at first and after changes.

    It makes no node: one that is missing is empty. ``tell`` must not block.
    """
    told: Folder | None = None
    while True:
        with steadfast():
            # This server may lag behind the previous one.
            yield from steps.ask((Sync(path),), *Failure)
            while True:
                batch = WatchList(path), Watch(path)
                listing, node = yield from steps.ask(batch, Failure.MISSING)
                if isinstance(listing, Listing) and isinstance(node, Node):
                    folder = Folder(tuple(sorted(listing.names)), listing.epoch, node.data)
                else:
                    (there,) = yield (WatchExists(path),)
                    steps.check(there, Failure.DROPPED, Failure.MISSING)
                    if not steps.is_(there, Failure.MISSING):
                        continue
                    folder = Folder((), -1, b"")
                if folder != told:
                    told = folder
                    tell(folder)
                yield Wait(path, None)


@contextlib.contextmanager
def steadfast() -> Iterator[None]:
    """Go on in the next session, if there will be one."""
    try:
        yield
    except SessionReplaced as replaced:
        if replaced.final is not None:
            raise replaced.final from None
