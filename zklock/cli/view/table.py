"""Tables: of locks and pools, of one queue, of the workers of a pool. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from zklock.cli.view.model import LockView, Look, PoolView, QueuePlace, What
from zklock.cli.view.text import many, named, plain, rough, short

_GAP = "..."
_LEAST = 16


def middle(text: str, size: int) -> str:
    """Return the text, or its two ends if it is longer than ``size``."""
    if len(text) <= size:
        return text
    left = max(0, size - len(_GAP)) // 2
    return f"{text[:left]}{_GAP}{text[len(text) - max(0, size - len(_GAP) - left) :]}"[:size]


@dataclass(frozen=True, slots=True)
class Table:
    """Texts in columns that have names; ``keys`` are the names of the rows.

    Where there is little room, texts of the columns ``shrinks`` lose their middles, but are not
    made shorter than 16, or than ``least`` says for their column. If that is not enough, columns of
    ``drops`` go, in this order.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    keys: Sequence[str] = ()
    shrinks: Sequence[str] = ()
    drops: Sequence[str] = ()
    least: Mapping[str, int] = field(default_factory=dict)

    def only(self, *names: str) -> Table:
        """Return the table of these columns, in this order."""
        places = [self.heads.index(name) for name in names]
        return replace(self, heads=names, rows=[[row[at] for at in places] for row in self.rows])

    def fitted(self, width: int, *, headed: bool = True) -> Table:
        """Return a table whose lines are no longer than ``width``, as far as that can be."""
        kept = self
        for drop in (None, *self.drops):
            kept = kept.only(*(name for name in kept.heads if name != drop))
            sizes = kept._sizes(width, headed)
            if _long(sizes) <= width:
                break
        return replace(kept, rows=[list(map(middle, row, sizes)) for row in kept.rows])

    def _sizes(self, width: int, headed: bool) -> list[int]:
        """Return how wide each column is to be; the longest of those that shrink shrinks first."""
        sizes = _sizes([self.heads, *self.rows] if headed else self.rows)
        able = [at for at, name in enumerate(self.heads) if name in self.shrinks]
        while _long(sizes) > width and able:
            longest = max(able, key=sizes.__getitem__)
            least = self.least.get(self.heads[longest], _LEAST)
            if sizes[longest] > least:
                others = [sizes[at] for at in able if at != longest]
                spare = sizes[longest] - max(least, *others, 0)
                sizes[longest] -= max(1, min(spare, _long(sizes) - width))
            else:
                able.remove(longest)
        return sizes

    def lines(self, width: int | None = None, *, headed: bool = True) -> list[str]:
        """Return a line for each row, below the names if ``headed``; cut to ``width`` if given."""
        if not self.rows:
            return []
        kept = self if width is None else self.fitted(width, headed=headed)
        shown = [list(map(str.upper, kept.heads)), *kept.rows] if headed else kept.rows
        sizes = _sizes(shown)
        found = ["  ".join(map(str.ljust, row, sizes)).rstrip() for row in shown]
        cut = max(map(len, found)) if width is None else width
        return [line if len(line) <= cut else f"{line[: cut - 1]}>" for line in found]


def _sizes(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _long(sizes: Sequence[int]) -> int:
    """Return how long the lines of columns are that have these sizes."""
    return sum(sizes) + 2 * (len(sizes) - 1)


class Order(Enum):
    """What a table of locks is sorted by; the greatest first, but paths from a to z."""

    WAITING = "waiting"
    WAIT = "longest-wait"
    HELD = "time-held"
    PATH = "path"


class Row(NamedTuple):
    """A lock, a semaphore, an election or a pool: its texts, and the numbers for the order."""

    it: LockView | PoolView
    cells: Sequence[str]
    waiting: int = 0
    wait: float | None = None
    held: float | None = None

    @property
    def key(self) -> str:
        return self.it.key


COLUMNS = ("path", "kind", "holder", "held", "waiting", "wait", "token", "session", "client")
QUEUE_COLUMNS = ("place", "state", "kind", "identity", "age", "token", "session", "client")
WORKER_COLUMNS = ("worker", "owns", "assigned", "state")


def rows(look: Look, order: Order = Order.WAITING, part: str = "") -> list[Row]:
    """Return the rows whose path, kind or holder has ``part`` in it, sorted."""
    found = [_lock(lock, look.addresses) for lock in look.locks]
    found += [_pool(pool) for pool in look.pools]
    wanted = part.casefold()
    found = [row for row in found if wanted in "\0".join(row.cells[:3]).casefold()]
    keys: dict[Order, Any] = {
        Order.WAITING: lambda row: (-row.waiting, row.key),
        Order.WAIT: lambda row: (-(row.wait or 0.0), row.key),
        Order.HELD: lambda row: (-(row.held or 0.0), row.key),
        Order.PATH: lambda row: row.key,
    }
    return sorted(found, key=keys[order])


def locks(look: Look, order: Order = Order.WAITING, part: str = "") -> Table:
    """Return the table of ``rows``. Where there is little room, a pool's text stays whole."""
    found = rows(look, order, part)
    pools = [len(row.cells[2]) for row in found if isinstance(row.it, PoolView)]
    holder = min(max(pools, default=0), 24)
    table = Table(
        COLUMNS,
        [row.cells for row in found],
        [row.key for row in found],
        shrinks=("path", "holder"),
        drops=("session", "token", "client"),
        least={"holder": holder, "path": 32 - holder} if holder > 16 else {},
    )
    return _addressed(table, look.addresses)


def opened(look: Look, key: str) -> tuple[str, str, Table]:
    """Return what is behind the row with this key: its path, a line, and its table."""
    for pool in look.pools:
        if pool.key == key:
            head = f"pool, {pool.shards} shards, {pool.orphans} without an owner"
            return pool.path, head, _workers(pool)
    for lock in look.locks:
        if lock.key == key:
            head = f"{lock.what.value}, {len(lock.holders)} hold, {len(lock.waiting)} wait"
            return lock.path, head, queue(lock, look.addresses)
    return key.rstrip("\0"), "nobody holds or waits", Table(QUEUE_COLUMNS[:-1], [])


def queue(lock: LockView, addresses: Mapping[int, str]) -> Table:
    """Return the table of one queue."""
    found = [
        [
            "-" if number is None else str(number),
            place.state,
            place.kind,
            named(place.identity),
            short(place.age),
            str(place.token or "-"),
            place.shown_session,
            plain(addresses.get(place.session_id or 0, "-")),
        ]
        for number, place in lock.numbered()
    ]
    table = Table(
        QUEUE_COLUMNS,
        found,
        [place.path for place in lock.places],
        shrinks=("identity",),
        drops=("token", "session", "client"),
    )
    return _addressed(table, addresses)


def _addressed(table: Table, addresses: Mapping[int, str]) -> Table:
    """Return the table without the last column, unless the address of any client is known."""
    return table if addresses else table.only(*table.heads[:-1])


def _workers(pool: PoolView) -> Table:
    found = [
        [
            plain(worker.identity),
            str(worker.owned),
            str(worker.assigned),
            "drains" if worker.draining else "works",
        ]
        for worker in pool.workers
    ]
    return Table(WORKER_COLUMNS, found, list(map(str, range(len(found)))), shrinks=("worker",))


def summary(look: Look) -> str:
    """Return the line above the table."""
    locks = look.locks
    waiting = sum(len(lock.waiting) for lock in locks)
    parts = [many(len(locks), "lock"), f"{waiting} waiting"]
    if look.pools:
        parts.append(many(len(look.pools), "pool"))
    deadlocks = look.count_deadlocks()
    if certain := deadlocks["certain"]:
        parts.append(f"{many(certain, 'deadlock').upper()}: see 'zklock graph'")
    if possible := deadlocks["possible"]:
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
    shown = [row.it for row in rows(look, order, part)]
    return {
        "locks": [
            {
                **lock.to_json(),
                "contenders": [
                    {**told, "address": look.addresses.get(place.session_id or 0)}
                    for told, place in zip(lock.queue_to_json(), lock.places, strict=True)
                ],
            }
            for lock in shown
            if isinstance(lock, LockView)
        ],
        "pools": [
            {"path": pool.path, **pool.to_json()} for pool in shown if isinstance(pool, PoolView)
        ],
        "deadlocks": look.count_deadlocks(),
    }


def _lock(lock: LockView, addresses: Mapping[int, str]) -> Row:
    holders, waiting = lock.holders, len(lock.waiting)
    held, wait = lock.held, lock.wait
    first = holders[0] if len(holders) == 1 else None
    cells = [
        plain(lock.path),
        lock.name,
        _names(holders),
        short(held),
        str(waiting),
        short(wait),
        str((first and first.token) or "-"),
        first.shown_session if first else "-",
        plain(addresses.get(first.session_id or 0, "-")) if first else "-",
    ]
    return Row(lock, cells, waiting, wait, held)


def _pool(pool: PoolView) -> Row:
    owned = f"{pool.shards - pool.orphans}/{many(pool.shards, 'shard')}"
    said = f"{owned}, {many(len(pool.workers), 'worker')}"
    return Row(pool, [plain(pool.path), What.POOL.value, said, "-", "0", "-", "-", "-", "-"])


def _names(holders: Sequence[QueuePlace]) -> str:
    if not holders:
        return "nobody"
    first = named(holders[0].identity)
    if holders[0].keeps:
        first += " (kept)"
    return first if len(holders) == 1 else f"{first} and {len(holders) - 1} more"
