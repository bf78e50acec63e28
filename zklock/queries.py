"""Read-only recipes: who stands in the queue of a lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from zklock import names, nodedata
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
    ephemeral; ``None``: ACLs forbid reading it), ``path`` the node's full path, ``holds`` whether
    nobody before it was in its way (a contender compares equal with itself at another time).
    ``payload``: what a member of an election says of itself, else empty.
    """

    identity: str
    sequence: int
    token: FencingToken | None
    session_id: int | None
    path: str
    holds: bool = field(compare=False)
    payload: bytes = b""


def steadfast(make: Callable[[], Recipe[T]]) -> Recipe[T]:
    """Run a query, and again when the session is replaced in the middle of it."""
    while True:
        try:
            return (yield from make())
        except SessionReplaced as replaced:
            if replaced.final is not None:
                raise replaced.final from None


def confirm(paths: Sequence[str]) -> Recipe[bool]:
    """Return whether a quorum confirms that the nodes exist."""
    while True:
        results = yield tuple(map(Check, paths))
        if not any(map(_failed, results)):
            return all(result is None for result in results)


def contenders(path: str, limit: int | None = None) -> Recipe[list[Contender]]:
    """Return the contenders in queue order (the first ``limit`` of them), as the leader knows."""
    while True:
        synced, listing = yield (Sync(path), List(path))
        if _failed(synced) or _failed(listing):
            continue
        if not isinstance(listing, Listing):
            return []
        left = listing.queue.contenders[:limit]
        there: list[tuple[names.Name, Node | None]] = []
        while left:
            batch, left = left[:_BATCH], left[_BATCH:]
            nodes = yield tuple(Read(f"{path}/{name.text}") for name in batch)
            told = [None if is_(node, Failure.DENIED) else node for node in nodes]
            if any(map(_failed, told)):
                break
            there += [
                (name, node)
                for name, node in zip(batch, told, strict=True)
                if not isinstance(node, Failed)
            ]
        else:
            return _describe(path, listing.epoch, there)


def _describe(
    path: str, epoch: int, there: list[tuple[names.Name, Node | None]]
) -> list[Contender]:
    queue, passed = names.Queue(name.text for name, _ in there), set()
    found = []
    for name, node in there:
        data = nodedata.parse(node.data if node else b"")
        if data.lets_readers_in:
            passed.add(name.text)
        standing = queue.standing(name, passed if name.kind is names.Kind.READ else ())
        found.append(
            Contender(
                data.identity.decode(errors="replace"),
                name.sequence,
                FencingToken(epoch, name.sequence) if name.sequence >= 0 else None,
                node.owner if node else None,
                f"{path}/{name.text}",
                holds=standing is not None and standing.nearest is None,
                payload=data.payload,
            )
        )
    return found


def holder(path: str) -> Recipe[Contender | None]:
    """Return the first contender, confirmed by a quorum; ``None`` if there seems to be none.

    Nobody can come in before the first; so while it exists, it is the first.
    """
    while True:
        first = yield from contenders(path, limit=1)
        if not first or (yield from confirm([first[0].path])):
            return first[0] if first else None


def _failed(result: object) -> bool:
    """Whether to ask again; other errors are raised, a missing node is an answer."""
    if not isinstance(result, Failed) or result.why is Failure.MISSING:
        return False
    if result.why is Failure.DROPPED:
        return True
    raise result.error
