"""What a non-holder can do about a lock: ask for its release, or break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

from zklock._recipes import names, nodedata, notes, steps
from zklock._recipes.effects import (
    Check,
    Failed,
    Failure,
    List,
    Listing,
    Node,
    Read,
    Recipe,
    Transaction,
    Write,
)
from zklock._recipes.nodedata import NodeData
from zklock._recipes.queries import Contender
from zklock.errors import NotOwner, ZkLockError
from zklock.token import FencingToken


def request_release(contenders: Callable[[], Recipe[list[Contender]]]) -> Recipe[list[Contender]]:
    """Ask all present holders to release → the holders that were asked.

    A leader is asked through its election's own node, and others through their nodes; see
    ``notes``.
    """
    request = str(uuid4())
    holders = [one for one in (yield from contenders()) if one.holds]
    there = set()
    for holder in holders:
        if names.kind_of(holder.path) is names.Kind.LATCH:
            asked = yield from _ask_leader(holder.path)
        else:
            asked = yield from _change(holder.path, lambda data: replace(data, asked=request))
        if asked:
            there.add(holder)
    return [holder for holder in holders if holder in there]


def _ask_leader(node: str) -> Recipe[bool]:
    """Note in the election's own node that this leader is asked → whether it was still there.

    Two notes at the same time do not overwrite each other: ZooKeeper refuses one write, which is
    done again. One transaction checks the leader's node and writes, so a request is never noted for
    a leader that is gone. If the answer is lost, and the node is gone at the next look, it counts
    as gone.
    """
    path, _, name = node.rpartition("/")
    while True:
        found, listing = yield from steps.ask((Read(path), List(path)), Failure.MISSING)
        there = listing.names if isinstance(listing, Listing) else []
        if name not in there or not isinstance(found, Node):
            return False
        before = notes.parse(found.data)
        if name in before.asked:
            return True
        data = bytes(before.asking(name, there))
        if len(data) > notes.MAX_ASKED:
            raise ZkLockError(
                f"{path}: its data would have {len(data)} bytes with the request to release, "
                f"above {notes.MAX_ASKED}: remove foreign data",
                path=path,
            )
        (written,) = yield (Transaction((Check(node), Write(path, data, found.version))),)
        steps.check(written, Failure.DROPPED, Failure.MISSING, Failure.CHANGED)
        if written is None:
            return True


def let_readers_in(node: str) -> Recipe[bool]:
    """Mark a held write lock's node: readers may come in → whether the node was still there."""
    return _change(node, lambda data: replace(data, lets_readers_in=True))


def _change(node: str, change: Callable[[NodeData], NodeData]) -> Recipe[bool]:
    """Change the node's data, with as many tries as it takes → whether it was still there.

    The answer to the write counts, not a look after it: a holder that was asked may be gone then.
    If that answer is lost, and the node is gone at the next look, nobody knows: it counts as gone.
    """
    while True:
        (found,) = yield from steps.ask((Read(node),), Failure.MISSING)
        if isinstance(found, Failed):
            return False
        said = nodedata.parse(found.data)
        if change(said) == said:
            return True
        (written,) = yield (Write(node, bytes(change(said)), found.version),)
        steps.check(written, Failure.DROPPED, Failure.MISSING, Failure.CHANGED)
        if not isinstance(written, Failed):
            return True


def break_lock(
    path: str, contenders: Callable[[], Recipe[list[Contender]]], token: FencingToken | None
) -> Recipe[Contender | None]:
    """Delete the node of the oldest holder, or of the holder with this token → that holder."""
    holders = [one for one in (yield from contenders()) if one.holds]
    chosen = [one for one in holders if token in (None, one.token)]
    if not chosen:
        if token is None:
            return None
        raise NotOwner(
            f"{path}: token {token} does not hold it (any more): check the holder, and decide "
            "again",
            path=path,
            token=token,
            holder=holders[0].identity if holders else None,
        )
    (holder, *_) = chosen
    yield from steps.delete(holder.path.rpartition("/")[0], holder.path)
    return holder
