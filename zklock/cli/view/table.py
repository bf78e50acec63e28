"""The rows of a table of locks and pools, sorted and filtered; and of one queue. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from zklock.cli.view.live import Look
from zklock.cli.view.model import LockView, Place, PoolView, What
from zklock.cli.view.text import many, named, plain, rough, short


class Order(Enum):
    """What a table of locks is sorted by; the greatest first, but paths from a to z."""

    WAITING = "waiting"
    WAIT = "longest wait"
    HELD = "time held"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class Row:
    """A lock, a semaphore, an election or a pool."""

    path: str
    kind: str
    holder: str
    held: float | None
    waiting: int
    wait: float | None
    token: str
    session: str
    client: str | None = None
    """``None`` if there is no such column."""

    @property
    def key(self) -> str:
        """What tells this row from all others: beside a pool's nodes, a lock's may stand."""
        return f"{self.path}{POOL_ROW}" if self.kind == What.POOL.value else self.path

    def cells(self) -> list[str]:
        """Return the texts of the columns."""
        return [
            plain(self.path),
            self.kind,
            plain(self.holder),
            short(self.held),
            str(self.waiting),
            short(self.wait),
            self.token,
            self.session,
            *([] if self.client is None else [self.client]),
        ]


COLUMNS = ("path", "kind", "holder", "held", "waiting", "wait", "token", "session")
QUEUE_COLUMNS = ("place", "state", "kind", "identity", "age", "token", "session")
WORKER_COLUMNS = ("worker", "owns", "assigned", "state")
SHRINKS = ("path", "holder", "identity", "worker")
"""The columns whose texts lose their middles where there is little room."""
DROPS = ("session", "token", "client")
"""The columns of locks that go where there is too little room, one after the other."""
QUEUE_DROPS = ("token", "session", "client")
"""The columns of a queue that go where there is too little room, one after the other."""
POOL_ROW = "\0pool"
"""The end of the key of a pool's row. No path has it."""
CLIENT = "client"
"""The last column of locks and queues, if the address of any client is known."""


def heads(columns: Sequence[str], look: Look) -> list[str]:
    """Return the columns of ``COLUMNS`` or ``QUEUE_COLUMNS`` that this look fills."""
    return [*columns, CLIENT] if look.addresses else [*columns]


def rows(look: Look, order: Order = Order.WAITING, part: str = "") -> list[Row]:
    """Return the rows whose path, kind or holder has ``part`` in it, sorted."""
    found = [_lock(lock, look.addresses) for lock in look.picture.locks]
    found += [_pool(pool, look.addresses) for pool in look.picture.pools]
    wanted = part.casefold()
    found = [row for row in found if wanted in f"{row.path}\0{row.kind}\0{row.holder}".casefold()]
    keys: dict[Order, Any] = {
        Order.WAITING: lambda row: (-row.waiting, row.path),
        Order.WAIT: lambda row: (-(row.wait or 0.0), row.path),
        Order.HELD: lambda row: (-(row.held or 0.0), row.path),
        Order.PATH: lambda row: row.path,
    }
    return sorted(found, key=keys[order])


def least(rows: Sequence[Row]) -> dict[str, int]:
    """Return the least widths of the columns that shrink: the text of a pool stays whole."""
    pools = [len(row.holder) for row in rows if row.kind == What.POOL.value]
    holder = min(max(pools, default=0), 24)
    return {"holder": holder, "path": 32 - holder} if holder > 16 else {}


def queue_rows(lock: LockView, addresses: Mapping[int, str]) -> list[list[str]]:
    """Return the rows of one queue."""
    return [
        [
            "-" if number is None else str(number),
            place.state,
            place.kind,
            named(place.contender.identity),
            short(place.age),
            "-" if place.contender.token is None else str(place.contender.token),
            place.shown_session,
            *([_client(place, addresses)] if addresses else []),
        ]
        for number, place in lock.numbered()
    ]


def worker_rows(pool: PoolView) -> list[list[str]]:
    """Return the rows of a pool's workers."""
    return [
        [
            plain(worker.identity),
            str(worker.owned),
            str(worker.assigned),
            "drains" if worker.draining else "works",
        ]
        for worker in pool.workers
    ]


def summary(look: Look) -> str:
    """Return the line above the table."""
    locks = look.picture.locks
    waiting = sum(len(lock.waiting) for lock in locks)
    parts = [many(len(locks), "lock"), f"{waiting} waiting"]
    if look.picture.pools:
        parts.append(many(len(look.picture.pools), "pool"))
    certain = sum(one.certain for one in look.deadlocks)
    possible = len(look.deadlocks) - certain
    if certain:
        parts.append(f"{many(certain, 'deadlock').upper()}: see 'zklock graph'")
    if possible:
        parts.append(f"{many(possible, 'possible deadlock')}: see 'zklock graph'")
    if look.denied:
        parts.append(f"{many(len(look.denied), 'node')} hidden by ACLs")
    if look.missing:
        parts.append("the path does not exist")
    if rough(look.behind):
        parts.append(f"ages are approximate: this clock is {short(look.behind)} behind")
    return ", ".join(parts)


def to_json(look: Look, order: Order, part: str) -> dict[str, Any]:
    """Return what is there, for ``json.dumps``."""
    locks = {lock.path: lock for lock in look.picture.locks}
    pools = {f"{pool.path}{POOL_ROW}": pool for pool in look.picture.pools}
    shown = [row.key for row in rows(look, order, part)]
    return {
        "locks": [
            {
                **lock.to_json(),
                "contenders": [
                    {**told, "address": look.addresses.get(place.contender.session_id or 0)}
                    for told, place in zip(lock.queue_to_json(), lock.places, strict=True)
                ],
            }
            for lock in (locks[at] for at in shown if at in locks)
        ],
        "pools": [
            {"path": pool.path, **pool.to_json()}
            for pool in (pools[at] for at in shown if at in pools)
        ],
        "deadlocks": {
            "certain": sum(one.certain for one in look.deadlocks),
            "possible": sum(not one.certain for one in look.deadlocks),
        },
    }


def _client(place: Place, addresses: Mapping[int, str]) -> str:
    return plain(addresses.get(place.contender.session_id or 0, "-"))


def _lock(lock: LockView, addresses: Mapping[int, str]) -> Row:
    holders, waiting = lock.holders, lock.waiting
    names = _names(holders)
    first = holders[0] if len(holders) == 1 else None
    token = first.contender.token if first is not None else None
    return Row(
        lock.path,
        lock.name,
        names,
        _oldest(holders),
        len(waiting),
        _oldest(waiting),
        "-" if token is None else str(token),
        "-" if first is None else first.shown_session,
        (_client(first, addresses) if first else "-") if addresses else None,
    )


def _pool(pool: PoolView, addresses: Mapping[int, str]) -> Row:
    owned = f"{pool.shards - pool.orphans}/{many(pool.shards, 'shard')}"
    said = f"{owned}, {many(len(pool.workers), 'worker')}"
    client = "-" if addresses else None
    return Row(pool.path, What.POOL.value, said, None, 0, None, "-", "-", client)


def _names(holders: Sequence[Place]) -> str:
    if not holders:
        return "nobody"
    first = named(holders[0].contender.identity)
    if holders[0].contender.keeps:
        first += " (kept)"
    return first if len(holders) == 1 else f"{first} and {len(holders) - 1} more"


def _oldest(places: Sequence[Place]) -> float | None:
    return max((place.age for place in places if place.age is not None), default=None)
