"""What is below a path, as locks and pools: made of listings and nodes. Pure."""

from __future__ import annotations

import shlex
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from zklock._ground.addresses import session_text
from zklock._pool import nodes as pool_nodes
from zklock._pool.keys import parse_shards
from zklock._pool.views import PoolMember, members
from zklock._recipes import names, queries, semaphore as semaphore_recipe
from zklock._recipes.effects import Node
from zklock._recipes.queries import Contender

if TYPE_CHECKING:
    from zklock.cli.view.waits import Deadlock, Stand

LOCKS, LEASES = semaphore_recipe.locks("").strip("/"), semaphore_recipe.leases("").strip("/")
POOL = frozenset(
    path.strip("/")
    for places in [pool_nodes.PoolPaths("")]
    for path in (places.leader, places.members, places.assigned, places.owned, places.shards)
)
"""The children of a pool's node."""
WORKERS = frozenset({"members", "assigned", "owned"})
"""Those of them whose children belong to workers."""
POOL_PARTS = WORKERS | {"shards", "returning"}
"""The parts of a pool that are no lock."""
_OF_WORKERS = ("identity", "owned", "assigned", "draining", "capacity")
"""What JSON has of a worker."""

Owner: TypeAlias = tuple[int | None, str]
"""A session and an identity."""

OWN = "/zookeeper"
"""ZooKeeper's own nodes."""


class What(Enum):
    MISSING = "missing"
    LOCK = "lock"
    READ_WRITE = "read-write lock"
    SEMAPHORE = "semaphore"
    PART = "part of a semaphore"
    ELECTION = "election"
    POOL = "pool"
    POOL_PART = "part of a pool"
    CONTENDER = "contender"
    FREE = "free"  # it had contenders before, and has none now
    EMPTY = "empty"  # an unused lock, or any other node
    FOLDER = "folder"


_KINDS = {
    names.Kind.EXCLUSIVE: "lock",
    names.Kind.READ: "reader",
    names.Kind.WRITE: "writer",
    names.Kind.LEASE: "permit",
    names.Kind.LATCH: "member",
}


_told_by = attrgetter(*(known.name for known in fields(Contender)))


@dataclass(frozen=True, slots=True)
class QueuePlace(Contender):
    """A contender. ``created``: when it came, by ZooKeeper's clock. ``behind``: as in ``Facts``."""

    created: float | None = None
    behind: float = field(default=0.0, compare=False)

    @classmethod
    def of(cls, it: Contender, *more: Any) -> QueuePlace:
        """Return the place of a contender."""
        return cls(*_told_by(it), *more)

    @property
    def session(self) -> str | None:
        """The session's id, as ZooKeeper writes it; ``None`` if this client may not see it."""
        return None if self.session_id is None else session_text(self.session_id)

    @property
    def shown_session(self) -> str:
        """The session's id for people: a persistent node has none."""
        return "none" if self.persistent else self.session or "-"

    @property
    def persistent(self) -> bool:
        """Whether its node belongs to no session, and stays when its program has ended."""
        return self.session_id == 0

    @property
    def owner(self) -> Owner:
        """What tells contenders of one owner from others."""
        return self.session_id, self.identity

    @property
    def name(self) -> names.Name:
        name = names.parse(self.path.rpartition("/")[2])
        assert name is not None, self.path
        return name

    @property
    def kind(self) -> str:
        return _KINDS[self.name.kind]

    @property
    def state(self) -> str:
        """``waits``; ``holds``; or ``keeps``: it holds, and nobody can tell if it is idle."""
        if not self.holds:
            return "waits"
        return "keeps" if self.keeps else "holds"

    @property
    def age(self) -> float | None:
        """Seconds since it came; ``None``: unknown."""
        return None if self.created is None else max(0.0, time.time() + self.behind - self.created)

    def to_json(self) -> dict[str, Any]:
        """Return all its fields, for ``json.dumps``."""
        age = self.age
        return {
            "holds": self.holds,
            "keeps": self.keeps,
            "kind": self.kind,
            "token": None if self.token is None else str(self.token),
            "sequence": self.sequence,
            "identity": self.identity,
            "session": self.session,
            "age": None if age is None else round(age, 3),
            "node": self.path,
        }


@dataclass(frozen=True, slots=True)
class Znode:
    """What was read of a node: ``names``, its children, if it was listed; ``data``, if it was read.

    ``born``: the transaction that made it. ``changes``: how often a child came or went; ZooKeeper
    lets this number wrap.
    """

    names: Sequence[str] | None = None
    data: bytes | None = None
    owner: int = 0
    created: float = 0.0
    born: int = 0
    changes: int = 0
    size: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class LockView:
    """A lock, a semaphore or an election that has contenders: the holders first, in queue order.

    ``limit``: of a semaphore, ``None`` where it is not known. ``short``: how many permits must be
    given back before the first waiter has its own. ``pool``: the pool that it is a part of.
    """

    path: str
    what: What
    places: Sequence[QueuePlace]
    limit: int | None = None
    short: int = 0
    pool: str | None = None

    @property
    def key(self) -> str:
        """What tells it from all else at and below a path."""
        return self.path

    @property
    def holders(self) -> list[QueuePlace]:
        return [place for place in self.places if place.holds]

    @property
    def waiting(self) -> list[QueuePlace]:
        return [place for place in self.places if not place.holds]

    @property
    def held(self) -> float | None:
        """The greatest age of a holder."""
        return _oldest(self.holders)

    @property
    def wait(self) -> float | None:
        """The greatest age of a waiter."""
        return _oldest(self.waiting)

    @property
    def name(self) -> str:
        """What it is, with the limit if there is one."""
        return self.what.value if self.limit is None else f"{self.what.value} of {self.limit}"

    @property
    def head(self) -> str:
        """What it is, and how many hold and wait."""
        return f"{self.name}, {len(self.holders)} hold, {len(self.waiting)} wait"

    def orphans(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with each persistent contender, and how to remove it."""
        for it in self.places:
            if it.persistent:
                yield (
                    f"{it.path} belongs to no session: it stays when its process ends, and later "
                    "contenders wait for ever",
                    "if nobody needs it, delete it: "
                    + (
                        f"zklock break {shlex.quote(self.path)} {it.token}"
                        if it.holds and it.token
                        else f"zkCli.sh delete {shlex.quote(it.path)}"
                    ),
                )

    def numbered(self) -> Iterator[tuple[int | None, QueuePlace]]:
        """Yield each with its number among those who wait, ``None`` for those who hold."""
        number = 0
        for place in self.places:
            number += not place.holds
            yield None if place.holds else number, place

    def to_json(self) -> dict[str, Any]:
        """Return its fields but for the contenders, for ``json.dumps``."""
        kind = self.what.value
        return {"path": self.path, "kind": kind, "limit": self.limit, "pool": self.pool}

    def queue_to_json(self) -> list[dict[str, Any]]:
        """Return the contenders with their places, for ``json.dumps``."""
        return [{**place.to_json(), "place": number} for number, place in self.numbered()]


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool. ``orphans``: the shards that no worker says it owns."""

    path: str
    shards: int
    workers: Sequence[PoolMember]
    orphans: int
    name = What.POOL.value

    @property
    def key(self) -> str:
        """What tells it from all else: a lock may stand at the same path, and no path has a NUL."""
        return f"{self.path}\0"

    @property
    def head(self) -> str:
        """What it is, and what its workers own."""
        return (
            f"pool, {self.shards} shards, {self.orphans} without an owner, "
            f"{len(self.workers)} workers"
        )

    def to_json(self) -> dict[str, Any]:
        """Return its fields but for the path, for ``json.dumps``."""
        return {
            "shards": self.shards,
            "without_owner": self.orphans,
            "workers": [{name: getattr(it, name) for name in _OF_WORKERS} for it in self.workers],
        }


@dataclass(frozen=True, slots=True)
class Found:
    """What is at one path: with its queue if it has one, with its workers if it is a pool.

    A pool's path may have both: the queue is that of a lock at the same path.
    """

    path: str
    what: What
    lock: LockView | None = None
    pool: PoolView | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """All that was found below a path, in order of the paths.

    ``stands``: all contenders, and who waits behind whom. ``connected``: whether changes are told;
    if not, it may be out of date. ``behind``: as in ``Facts``. ``addresses``: of the clients of
    sessions, as far as they are known.
    """

    locks: Sequence[LockView] = ()
    pools: Sequence[PoolView] = ()
    stands: Sequence[Stand] = ()
    deadlocks: Sequence[Deadlock] = ()
    connected: bool = True
    missing: bool = False
    denied: Sequence[str] = ()
    behind: float = 0.0
    addresses: Mapping[int, str] = field(default_factory=dict)

    def count_deadlocks(self) -> dict[str, int]:
        """Return how many are certain, and how many possible."""
        certain = sum(one.certain for one in self.deadlocks)
        return {"certain": certain, "possible": len(self.deadlocks) - certain}


@dataclass(slots=True)
class Facts:
    """What was read so far, by path, and what is hidden.

    ``behind``: seconds by which this machine's clock is behind ZooKeeper's, at least: nodes tell
    when they were made. The clock itself cannot be asked: one that is ahead is not noticed.
    """

    nodes: dict[str, Znode] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    behind: float = 0.0

    def children(self, path: str) -> Sequence[str] | None:
        """Return the names of a node's children; ``None`` if it was not listed."""
        node = self.nodes.get(path)
        return None if node is None else node.names

    def data(self, path: str) -> bytes | None:
        """Return the data of a node; ``None`` if it was not read."""
        node = self.nodes.get(path)
        return None if node is None else node.data

    def is_pool(self, path: str) -> bool:
        return path != "/" and POOL.issubset(self.children(path) or ())

    def may_be_semaphore(self, path: str) -> bool:
        """Whether a node has the children of a semaphore; its data and its children decide."""
        return path != "/" and {LOCKS, LEASES}.issubset(self.children(path) or ())

    def is_semaphore(self, path: str) -> bool:
        """Whether a node is a semaphore: other folders may have the same names.

        zklock keeps the limit in a semaphore's data. Curator does not, so then there must be
        permits.
        """
        if not self.may_be_semaphore(path):
            return False
        queue, leases = (self.children(below(path, part)) for part in (LOCKS, LEASES))
        if queue is None or leases is None:
            return False
        if any(names.kind_of(name) is not names.Kind.LEASE for name in leases):
            return False
        data = self.data(path) or b""
        limited = data.isdigit() or (not data and bool(queue or leases))
        return limited and all(map(names.parse, queue))


def signed(number: int) -> int:
    """Return the session's id as kazoo's number."""
    return (number + 2**63) % 2**64 - 2**63


def below(path: str, name: str) -> str:
    """Return the path of a child."""
    return f"{path.rstrip('/')}/{name}"


def find(path: str, facts: Facts) -> Found:
    """Return what is at the path. The facts have to know its parent, too, and a pool's parts."""
    children = facts.children(path)
    if children is None:
        return Found(path, What.MISSING)
    what, lock, pool = _what(path, children, facts), None, None
    match what:
        case What.SEMAPHORE:
            lock = _semaphore(path, facts)
        case What.LOCK | What.READ_WRITE | What.ELECTION:
            lock = _queue(path, facts)
        case What.POOL:
            queue = _queue(path, facts)  # a lock's contenders may stand beside the pool's nodes
            lock, pool = queue if queue.places else None, _pool(path, facts)
    return Found(path, what, lock, pool)


def _what(path: str, children: Sequence[str], facts: Facts) -> What:
    parent, _, name = path.rpartition("/")
    kinds = {one.kind for one in names.Queue(children).contenders}
    signs = (
        (facts.is_pool(path), What.POOL),
        (facts.is_semaphore(path), What.SEMAPHORE),
        (name in {LOCKS, LEASES} and facts.is_semaphore(parent), What.PART),
        (name in POOL_PARTS and facts.is_pool(parent), What.POOL_PART),
        (kinds, _kind(kinds)),
        (children, What.FOLDER),
        (facts.nodes[path].changes, What.FREE),
        (names.parse(name), What.CONTENDER),
    )
    return next((what for there, what in signs if there), What.EMPTY)


def _kind(kinds: Container[names.Kind]) -> What:
    if names.Kind.LATCH in kinds:
        return What.ELECTION
    if names.Kind.READ in kinds or names.Kind.WRITE in kinds:
        return What.READ_WRITE
    return What.LOCK


def picture(facts: Facts) -> Look:
    """Return what the facts describe."""
    listed = (path for path, node in facts.nodes.items() if node.names is not None and path != "/")
    found = [find(path, facts) for path in sorted(listed)]
    locks = [it.lock for it in found if it.lock is not None and it.lock.places]
    pools = [it.pool for it in found if it.pool is not None]
    return Look(locks, pools, denied=sorted(facts.denied), behind=facts.behind)


def _pool_around(path: str, facts: Facts) -> str | None:
    """Return the pool whose leader is elected, or whose shard is locked, at this path."""
    parent, _, name = path.rpartition("/")
    above, _, part = parent.rpartition("/")
    pool = parent if name == "leader" else above if part == "shards" else ""
    return pool if facts.is_pool(pool) else None


def _queue(path: str, facts: Facts) -> LockView:
    places = _places(path, facts)
    what = _kind({place.name.kind for place in places})
    places.sort(key=lambda place: not place.holds)
    return LockView(path, what, places, pool=_pool_around(path, facts))


def _semaphore(path: str, facts: Facts) -> LockView:
    limit = semaphore_recipe.number_in(facts.data(path) or b"")
    having, waiting = (_places(below(path, part), facts) for part in (LEASES, LOCKS))
    places = semaphore_recipe.arrange(limit or 0, having, waiting)
    short = 0
    if waiting:
        gathered = len(having) - sum(place.holds for place in places)
        short = max(1, len(having) - limit) if limit is not None and gathered else 1
        if limit is not None and not gathered and len(having) < limit:
            short = 0  # it is about to take what is there
    return LockView(path, What.SEMAPHORE, places, limit, short)


def _places(path: str, facts: Facts) -> list[QueuePlace]:
    """Return the contenders in queue order; without those that are not read yet."""
    there: list[tuple[names.Name, Node | None]] = []
    dates: list[float | None] = []
    for name in names.Queue(facts.children(path) or ()).contenders:
        path_of_it = below(path, name.text)
        seen = facts.nodes.get(path_of_it)
        if seen is not None:
            there.append((name, Node(path_of_it, seen.data or b"", seen.owner, mine=False)))
            dates.append(seen.created)
        elif path_of_it in facts.denied:
            there.append((name, None))
            dates.append(None)
    found = queries.describe(path, facts.nodes[path].born, there)
    return [QueuePlace.of(one, date, facts.behind) for one, date in zip(found, dates, strict=True)]


def _oldest(places: Iterable[QueuePlace]) -> float | None:
    return max((place.age for place in places if place.age is not None), default=None)


def _pool(path: str, facts: Facts) -> PoolView:
    def data(*parts: str) -> bytes:
        return facts.data("/".join([path, *parts])) or b""

    shards = parse_shards(data("shards")) or ()
    names_of_members = facts.children(f"{path}/members") or ()
    records = (pool_nodes.WorkerRecord.parse(data("members", it)) for it in names_of_members)
    found = [
        pool_nodes.Found.of(it, data("assigned", it.assigned), data("owned", it.owned))
        for it in records
        if it is not None
    ]
    workers = sorted(members(found), key=lambda worker: worker.identity)
    owned = {key for it in found for key in it.owned}
    return PoolView(path, len(shards), workers, len(set(shards) - owned))


def garbage(facts: Facts, root: str) -> list[str]:
    """Return the nodes below ``root`` that had children and have none left, children first.

    They belong to no session and have no data. Semaphores and pools stay: they keep their limit and
    their number of shards.
    """
    pools = tuple(f"{path}/" for path in facts.nodes if facts.is_pool(path))
    found: dict[str, None] = {}
    for path in sorted(facts.nodes, key=lambda path: (-path.count("/"), path)):
        node = facts.nodes[path]
        if node.names is None or not node.changes or node.owner or node.size:
            continue
        if any(below(path, name) not in found for name in node.names):
            continue
        kept = path in {root, "/"} or f"{path}/".startswith(pools)
        if not kept and _what(path, node.names, facts) not in {What.SEMAPHORE, What.PART}:
            found[path] = None
    return list(found)
