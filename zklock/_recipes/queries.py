"""Read-only recipes: who stands in the queue of a lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from zklock._recipes import names, nodedata, notes as election_notes
from zklock._recipes.effects import (
    Check,
    Failure,
    List,
    Listing,
    Node,
    Read,
    Recipe,
    SessionReplaced,
    Sync,
)
from zklock._recipes.notes import Notes
from zklock._recipes.steps import ask, is_
from zklock.token import FencingToken

T = TypeVar("T")
_BATCH = 256


@dataclass(frozen=True, slots=True)
class Contender:
    """A holder of a lock, or a waiter in its queue.

    - ``identity``: the text stored in its node. A contender of another client has what that client
      stores there, with undecodable bytes replaced. Empty if ACLs forbid reading it.
    - ``sequence``: its place in the order.
    - ``token``: the fencing token that its grant has or would have.
    - ``session_id``: the ZooKeeper session that owns the node. 0: no session does, the node is not
      ephemeral. ``None``: ACLs forbid reading it.
    - ``path``: the node's full path.
    - ``holds``: whether nobody before it blocked it when it was read. Comparison ignores ``holds``,
      so a contender equals itself at another time.
    - ``payload``: what a member of an election says about itself now, else empty.
    - ``keeps``: whether its client may keep the lock after a release (``keep=``). If so, the lock
      may be idle while it ``holds``: the znode is not written for each use, so nobody can tell.
    """

    identity: str
    sequence: int
    token: FencingToken | None
    session_id: int | None
    path: str
    holds: bool = field(compare=False)
    payload: bytes = b""
    keeps: bool = False


def retry_on_new_session(make: Callable[[], Recipe[T]]) -> Recipe[T]:
    """Run a query; run it again if the session is replaced in the middle of it."""
    while True:
        try:
            return (yield from make())
        except SessionReplaced as replaced:
            if replaced.final is not None:
                raise replaced.final from None


def confirm(paths: Sequence[str]) -> Recipe[bool]:
    """Return whether a quorum confirms that the nodes exist."""
    results = yield from ask(tuple(map(Check, paths)), Failure.MISSING)
    return all(result is None for result in results)


def contenders(path: str, limit: int | None = None) -> Recipe[list[Contender]]:
    """Return the contenders (the first ``limit`` of them) in queue order, as the leader has it."""
    _, listing = yield from ask((Sync(path), List(path)), Failure.MISSING)
    if not isinstance(listing, Listing):
        return []
    left = listing.queue.contenders[:limit]
    there: list[tuple[names.Name, Node | None]] = []
    while left:
        batch, left = left[:_BATCH], left[_BATCH:]
        reads = tuple([Read(f"{path}/{name.text}") for name in batch])
        nodes = yield from ask(reads, Failure.MISSING, Failure.DENIED)
        there += [
            (name, node if isinstance(node, Node) else None)
            for name, node in zip(batch, nodes, strict=True)
            if not is_(node, Failure.MISSING)
        ]
    noted = listing.size and any(name.kind is names.Kind.LATCH for name, _ in there)
    notes = (yield from _notes(path)) if noted else None
    return describe(path, listing.epoch, there, notes)


def _notes(path: str) -> Recipe[Notes | None]:
    """Return what the election's own node says; ``None`` if it is gone."""
    (found,) = yield from ask((Read(path),), Failure.MISSING)
    return election_notes.parse(found.data) if isinstance(found, Node) else None


def describe(
    path: str,
    epoch: int,
    there: Sequence[tuple[names.Name, Node | None]],
    notes: Notes | None = None,
) -> list[Contender]:
    """Return the contenders that these nodes are; ``None`` stands for one that may not be read.

    ``notes`` are those of an election.
    """
    payloads = notes.payloads if notes is not None else {}
    queue, passed = names.Queue(name.text for name, _ in there), set()
    found = []
    for name, node in there:
        data = nodedata.parse(node.data if node else b"")
        if data.lets_readers_in:
            passed.add(name.text)
        standing = queue.standing(name, passed if name.kind is names.Kind.READ else ())
        keeps = data.payload == nodedata.KEEPS and name.kind is not names.Kind.LATCH
        found.append(
            Contender(
                data.identity.decode(errors="replace"),
                name.sequence,
                FencingToken(epoch, name.sequence) if name.sequence >= 0 else None,
                node.owner if node else None,
                f"{path}/{name.text}",
                holds=standing is not None and standing.nearest is None,
                payload=b"" if keeps else payloads.get(name.text, data.payload),
                keeps=keeps,
            )
        )
    return found


def holder(path: str) -> Recipe[Contender | None]:
    """Return the first contender, confirmed by a quorum; ``None`` if there seems to be none.

    Nobody can come in before the first. So while the first exists, it stays the first.
    """
    while True:
        first = yield from contenders(path, limit=1)
        if not first or (yield from confirm([first[0].path])):
            return first[0] if first else None
