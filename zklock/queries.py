"""Read-only recipes: who stands in the queue of a lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from zklock import names
from zklock.effects import (
    Check,
    Failed,
    Failure,
    List,
    Listing,
    Node,
    Read,
    Recipe,
    SessionReplaced,
    Sync,
)
from zklock.steps import is_
from zklock.token import FencingToken

T = TypeVar("T")
_BATCH = 256


@dataclass(frozen=True, slots=True)
class Contender:
    """One that queues for a lock, or holds it.

    ``identity`` is the text stored in its node (of a foreign contender: whatever that client
    stores, undecodable bytes replaced; empty where ACLs forbid reading it), ``sequence`` its
    place in the order, ``token`` the fencing token that its grant has or would have,
    ``session_id`` the ZooKeeper session that owns the node (0: none does, the node is not
    ephemeral; ``None``: ACLs forbid reading it), ``path`` the node's full path.
    """

    identity: str
    sequence: int
    token: FencingToken | None
    session_id: int | None
    path: str


def steadfast(make: Callable[[], Recipe[T]]) -> Recipe[T]:
    """Run a query, and again when the session is replaced in the middle of it."""
    while True:
        try:
            return (yield from make())
        except SessionReplaced as replaced:
            if replaced.final is not None:
                raise replaced.final from None


def confirm(path: str) -> Recipe[bool]:
    """Return whether a quorum confirms that the node exists."""
    while True:
        (result,) = yield (Check(path),)
        if not _failed(result):
            return result is None


def contenders(path: str, limit: int | None = None) -> Recipe[list[Contender]]:
    """Return the contenders in queue order (the first ``limit`` of them), as the leader knows."""
    while True:
        synced, listing = yield (Sync(path), List(path))
        if _failed(synced) or _failed(listing):
            continue
        if not isinstance(listing, Listing):
            return []
        queue = names.queue(listing.names)
        found: list[Contender] = []
        while queue and (limit is None or len(found) < limit):
            size = _BATCH if limit is None else min(_BATCH, limit - len(found))
            batch, queue = queue[:size], queue[size:]
            nodes = yield tuple(Read(f"{path}/{name.text}") for name in batch)
            told = [None if is_(node, Failure.DENIED) else node for node in nodes]
            if any(map(_failed, told)):
                break
            found += [
                _contender(name, node, f"{path}/{name.text}", listing.epoch)
                for name, node in zip(batch, told, strict=True)
                if not isinstance(node, Failed)
            ]
        else:
            return found


def holder(path: str) -> Recipe[Contender | None]:
    """Return the first contender, confirmed by a quorum; ``None`` if there seems to be none.

    Nobody can come in before the first; so while it exists, it is the first.
    """
    while True:
        first = yield from contenders(path, limit=1)
        if not first or (yield from confirm(first[0].path)):
            return first[0] if first else None


def _contender(name: names.Name, node: Node | None, path: str, epoch: int) -> Contender:
    sequence = name.sequence
    token = FencingToken(epoch, sequence) if sequence >= 0 else None
    identity, owner = (node.data.decode(errors="replace"), node.owner) if node else ("", None)
    return Contender(identity, sequence, token, owner, path)


def _failed(result: object) -> bool:
    """Whether to ask again; other errors are raised, a missing node is an answer."""
    if not isinstance(result, Failed) or result.why is Failure.MISSING:
        return False
    if result.why is Failure.DROPPED:
        return True
    raise result.error
