"""What a pool shows of its shards and its workers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from zklock._pool.keys import Key, in_order
from zklock._pool.nodes import Found, WorkerRecord
from zklock.token import FencingToken

if TYPE_CHECKING:
    from zklock._election.membership import Present


@dataclass(frozen=True, slots=True)
class ShardOwner:
    """The worker that should have a shard, and the worker that has it.

    ``shard`` is its number or name. ``wanted`` is the identity of the worker that the leader has
    assigned it to. ``owner`` is the identity of the worker that said last that it owns the shard,
    and ``token`` is that worker's token. All but the shard may be ``None``: nobody. A token that is
    no longer the newest says nothing.
    """

    shard: Any
    wanted: str | None
    owner: str | None
    token: FencingToken | None


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A live worker: what it says of itself, and how many shards it should have and has."""

    identity: str
    capacity: float
    draining: bool
    assigned: int
    owned: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class PoolWorker:
    """A live worker, and what it says of itself."""

    identity: str
    capacity: float
    draining: bool
    payload: bytes


def owners(shards: Iterable[Key], workers: Iterable[Found]) -> list[ShardOwner]:
    """Return who should have each shard and who has it; of several, who has the newest token."""
    found = list(workers)
    wanted = {key: it.profile.identity for it in found for key in it.assigned}
    said = [(token, it.profile.identity, key) for it in found for key, token in it.owned.items()]
    owned = {key: (owner, token) for token, owner, key in sorted(said, key=itemgetter(0, 1))}
    return [
        ShardOwner(key, wanted.get(key), *owned.get(key, (None, None)))
        for key in in_order({*shards, *owned})
    ]


def members(workers: Iterable[Found]) -> list[PoolMember]:
    """Return what each worker says, and how many shards it should have and has."""
    return [
        PoolMember(
            it.profile.identity,
            it.profile.capacity,
            it.profile.draining,
            len(it.assigned),
            len(it.owned),
            it.profile.payload_bytes,
        )
        for it in workers
    ]


def workers_of(present: Present) -> dict[str, PoolWorker]:
    """Return the workers by the names of their nodes, in the order of their identities."""
    said = {
        name: WorkerRecord.parse(node.data)
        for name, node in present.nodes.items()
        if node is not None
    }
    found = {
        name: PoolWorker(it.identity, it.capacity, it.draining, it.payload_bytes)
        for name, it in said.items()
        if it is not None
    }
    return dict(sorted(found.items(), key=lambda each: (each[1].identity, each[0])))
