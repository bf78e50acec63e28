"""Tables: of locks and pools, of one queue, of the workers of a pool. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from zklock.cli.view.model import LockView, Look, PoolView
from zklock.cli.view.text import CLOCKS_DIFFER, many, named, plain, short


class Table(NamedTuple):
    """Texts in columns that have names; ``keys`` are the names of the rows."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    keys: Sequence[str]

    def first(self, count: int) -> Table:
        """Return the table of the first columns."""
        return Table(self.heads[:count], [row[:count] for row in self.rows], self.keys)

    def lines(self) -> list[str]:
        """Return a line of the names, and one for each row."""
        shown = [[head.upper() for head in self.heads], *self.rows]
        sizes = [max(map(len, column)) for column in zip(*shown, strict=True)]
        return ["  ".join(map(str.ljust, row, sizes)).rstrip() for row in shown]


class Order(StrEnum):
    """What a table of locks is sorted by; the greatest first, but paths from a to z."""

    WAITING = "waiting"
    WAIT = "longest-wait"
    HELD = "time-held"
    PATH = "path"


COLUMNS = ("path", "kind", "holder", "held", "waiting", "wait", "token", "session", "client")
QUEUE_COLUMNS = ("state", "place", "kind", "token", "session", "age", "identity", "client")
WORKER_COLUMNS = ("worker", "owns", "assigned", "state")


class Row(NamedTuple):
    """A lock, a semaphore, an election or a pool: its texts, and what it is sorted by."""

    it: LockView | PoolView
    cells: Sequence[str]
    by: Mapping[Order, float]


def rows(look: Look, order: Order = Order.WAITING, part: str = "") -> list[Row]:
    """Return the rows whose path, kind or holder has ``part`` in it, sorted."""
    found = [_lock(lock, look.addresses) for lock in look.locks]
    found += [_pool(pool) for pool in look.pools]
    wanted = part.casefold()
    found = [row for row in found if wanted in "\0".join(row.cells[:3]).casefold()]
    return sorted(found, key=lambda row: (-row.by.get(order, 0), row.it.key))


def locks(look: Look, order: Order = Order.WAITING, part: str = "") -> Table:
    """Return the table of ``rows``."""
    found = rows(look, order, part)
    return Table(COLUMNS, [row.cells for row in found], [row.it.key for row in found])


def inside(it: LockView | PoolView, addresses: Mapping[int, str]) -> Table:
    """Return the table of a queue, or of the workers of a pool."""
    if isinstance(it, PoolView):
        workers = [
            [
                named(one.identity),
                str(one.owned),
                str(one.assigned),
                "drains" if one.draining else "works",
            ]
            for one in it.workers
        ]
        return Table(WORKER_COLUMNS, workers, [str(at) for at in range(len(workers))])
    queue = [
        [
            place.state,
            "-" if number is None else str(number),
            place.kind,
            str(place.token or "-"),
            place.shown_session,
            short(place.age),
            named(place.identity),
            plain(addresses.get(place.session_id or 0, "-")),
        ]
        for number, place in it.numbered()
    ]
    return Table(QUEUE_COLUMNS, queue, [place.path for place in it.places])


def summary(look: Look) -> str:
    """Return the line above the table."""
    waiting = sum(len(lock.waiting) for lock in look.locks)
    deadlocks = {f"{sure} deadlock": count for sure, count in look.count_deadlocks().items()}
    more = {"pool": len(look.pools), **deadlocks, "hidden node": len(look.denied)}
    parts = [many(len(look.locks), "lock"), f"{waiting} waiting"]
    parts += [many(count, what) for what, count in more.items() if count]
    parts += ["the path does not exist"] * look.missing
    parts += ["ages are approximate"] * (look.behind >= CLOCKS_DIFFER)
    return ", ".join(parts)


def to_json(look: Look, order: Order, part: str) -> dict[str, Any]:
    """Return what is there, for ``json.dumps``."""
    shown = [row.it for row in rows(look, order, part)]

    def contenders(lock: LockView) -> list[dict[str, Any]]:
        addresses = [look.addresses.get(place.session_id or 0) for place in lock.places]
        queue = zip(lock.queue_to_json(), addresses, strict=True)
        return [{**told, "address": address} for told, address in queue]

    return {
        "locks": [
            {**it.to_json(), "contenders": contenders(it)}
            for it in shown
            if isinstance(it, LockView)
        ],
        "pools": [{"path": it.path, **it.to_json()} for it in shown if isinstance(it, PoolView)],
        "deadlocks": look.count_deadlocks(),
    }


def _lock(lock: LockView, addresses: Mapping[int, str]) -> Row:
    holders, waiting = lock.holders, len(lock.waiting)
    names = [named(it.identity) + " (kept)" * it.keeps for it in holders[:1]] or ["nobody"]
    names += [f"{len(holders) - 1} more"] if len(holders) > 1 else []
    only = holders[0] if len(holders) == 1 else None
    cells = [
        plain(lock.path),
        lock.name,
        " and ".join(names),
        short(lock.held),
        str(waiting),
        short(lock.wait),
        str((only and only.token) or "-"),
        only.shown_session if only else "-",
        plain(addresses.get(only.session_id or 0, "-")) if only else "-",
    ]
    by = {Order.WAITING: waiting, Order.WAIT: lock.wait or 0.0, Order.HELD: lock.held or 0.0}
    return Row(lock, cells, by)


def _pool(pool: PoolView) -> Row:
    owned = f"{pool.shards - pool.orphans}/{many(pool.shards, 'shard')}"
    said = f"{owned}, {many(len(pool.workers), 'worker')}"
    return Row(pool, [plain(pool.path), pool.name, said, "-", "0", "-", "-", "-", "-"], {})
