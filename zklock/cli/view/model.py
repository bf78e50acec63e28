"""What is below a path, as locks and pools: made of listings and nodes. Pure."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from zklock._ground.addresses import session_text
from zklock._ground.clock import clock
from zklock._pool import nodes as pool_nodes
from zklock._pool.keys import Key, parse_shards
from zklock._recipes import names, queries, semaphore as semaphore_recipe
from zklock._recipes.effects import Node
from zklock._recipes.queries import Contender

if TYPE_CHECKING:
    from zklock.cli.view.waits import Deadlock

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
_WORD = 2**64 - 1

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


class Times:
    """What ZooKeeper's clock shows at least: nodes tell when they were made.

    The clock itself cannot be asked. So a clock of this machine that is behind is noticed, and one
    that is ahead is not.
    """

    def __init__(self) -> None:
        self._newest: tuple[float, float] | None = None  # by ZooKeeper's clock, and by ``clock``

    def note(self, moment: float) -> None:
        """Note a moment that ZooKeeper's clock has shown; in seconds, as of ``time.time``."""
        if self._newest is None or moment > self._least():
            self._newest = moment, clock()

    def now(self) -> float:
        """Return the time: this machine's, or the least that ZooKeeper's clock must show by now."""
        return max(time.time(), self._least())

    @property
    def behind(self) -> float:
        """By how many seconds this machine's clock is behind at least; 0.0 if it may be right."""
        return max(0.0, self._least() - time.time())

    def _least(self) -> float:
        if self._newest is None:
            return -math.inf
        moment, noted = self._newest
        return moment + clock() - noted


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A contender's place in the queue. ``created``: when it came, by ZooKeeper's clock."""

    contender: Contender
    created: float | None = None
    times: Times = field(default_factory=Times, compare=False, repr=False)

    @property
    def session(self) -> str | None:
        """The session's id, as ZooKeeper writes it; ``None`` if this client may not see it."""
        number = self.contender.session_id
        return None if number is None else session_text(number)

    @property
    def shown_session(self) -> str:
        """The session's id for people: a persistent node has none."""
        return "none" if self.persistent else self.session or "-"

    @property
    def persistent(self) -> bool:
        """Whether its node belongs to no session, and stays when its program has ended."""
        return self.contender.session_id == 0

    @property
    def owner(self) -> Owner:
        """What tells contenders of one owner from others."""
        return self.contender.session_id, self.contender.identity

    @property
    def name(self) -> names.Name:
        name = names.parse(self.contender.path.rpartition("/")[2])
        assert name is not None, self.contender.path
        return name

    @property
    def kind(self) -> str:
        return _KINDS[self.name.kind]

    @property
    def state(self) -> str:
        """``waits``; ``holds``; or ``keeps``: it holds, and nobody can tell if it is idle."""
        if not self.contender.holds:
            return "waits"
        return "keeps" if self.contender.keeps else "holds"

    @property
    def age(self) -> float | None:
        """Seconds since it came, by ``times``; ``None``: unknown."""
        return None if self.created is None else max(0.0, self.times.now() - self.created)

    def to_json(self) -> dict[str, Any]:
        """Return all its fields, for ``json.dumps``."""
        it, age = self.contender, self.age
        return {
            "holds": it.holds,
            "keeps": it.keeps,
            "kind": self.kind,
            "token": None if it.token is None else str(it.token),
            "sequence": it.sequence,
            "identity": it.identity,
            "session": self.session,
            "age": None if age is None else round(age, 3),
            "node": it.path,
        }


@dataclass(frozen=True, slots=True)
class Folder:
    """A node whose children are known.

    ``epoch``: the transaction that made it. ``changes``: how often a child came or went; ZooKeeper
    lets this number wrap. ``data`` is read only where the children may be those of a semaphore.
    """

    names: Sequence[str]
    epoch: int = 0
    changes: int = 0
    data: bytes | None = None
    owner: int = 0
    size: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A node that was read. ``born``: the transaction that made it."""

    data: bytes
    owner: int | None
    created: float | None = None
    born: int = 0


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
    def holders(self) -> list[QueuePlace]:
        return [place for place in self.places if place.contender.holds]

    @property
    def waiting(self) -> list[QueuePlace]:
        return [place for place in self.places if not place.contender.holds]

    @property
    def name(self) -> str:
        """What it is, with the limit if there is one."""
        return self.what.value if self.limit is None else f"{self.what.value} of {self.limit}"

    def orphans(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with each persistent contender, and how to remove it."""
        for place in self.places:
            it = place.contender
            if place.persistent:
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
            number += not place.contender.holds
            yield None if place.contender.holds else number, place

    def to_json(self) -> dict[str, Any]:
        """Return its fields but for the contenders, for ``json.dumps``."""
        kind = self.what.value
        return {"path": self.path, "kind": kind, "limit": self.limit, "pool": self.pool}

    def queue_to_json(self) -> list[dict[str, Any]]:
        """Return the contenders with their places, for ``json.dumps``."""
        return [{**place.to_json(), "place": number} for number, place in self.numbered()]


@dataclass(frozen=True, slots=True)
class WorkerView:
    identity: str
    owned: int
    assigned: int
    draining: bool
    capacity: float


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool. ``orphans``: the shards that no worker says it owns."""

    path: str
    shards: int
    workers: Sequence[WorkerView]
    orphans: int

    def to_json(self) -> dict[str, Any]:
        """Return its fields but for the path, for ``json.dumps``."""
        return {
            "shards": self.shards,
            "without_owner": self.orphans,
            "workers": [asdict(worker) for worker in self.workers],
        }


@dataclass(frozen=True, slots=True)
class Found:
    """What is at one path: with its queue if it has one, with its workers if it is a pool.

    A pool's path may have both: the queue is that of a lock at the same path.
    """

    path: str
    what: What
    children: int = 0
    lock: LockView | None = None
    pool: PoolView | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """All that was found below a path, in order of the paths.

    ``connected``: whether changes are told; if not, it may be out of date. ``behind``: seconds by
    which this machine's clock is behind ZooKeeper's, at least. ``addresses``: of the clients of
    sessions, as far as they are known.
    """

    locks: Sequence[LockView] = ()
    pools: Sequence[PoolView] = ()
    deadlocks: Sequence[Deadlock] = ()
    connected: bool = True
    missing: bool = False
    denied: Sequence[str] = ()
    behind: float = 0.0
    addresses: Mapping[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Facts:
    """What was read so far: nodes with children, contenders and workers by path, what is hidden."""

    folders: dict[str, Folder] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    times: Times = field(default_factory=Times)


def signed(number: int) -> int:
    """Return the session's id as kazoo's number."""
    return (number & _WORD) - (number & _WORD > _WORD >> 1) * (_WORD + 1)


def below(path: str, name: str) -> str:
    """Return the path of a child."""
    return f"{path.rstrip('/')}/{name}"


def is_pool(path: str, children: Sequence[str]) -> bool:
    """Whether a node with these children is a pool."""
    return path != "/" and set(children) >= POOL


def may_be_semaphore(path: str, children: Sequence[str]) -> bool:
    """Whether a node with these children may be a semaphore; its data and its children decide."""
    return path != "/" and LOCKS in children and LEASES in children


def is_semaphore(path: str, folders: Mapping[str, Folder]) -> bool:
    """Whether a node is a semaphore: other folders may have the same names.

    zklock keeps the limit in a semaphore's data. Curator does not, so then there must be permits.
    """
    folder = folders.get(path)
    if folder is None or not may_be_semaphore(path, folder.names):
        return False
    queue, leases = folders.get(below(path, LOCKS)), folders.get(below(path, LEASES))
    if queue is None or leases is None:
        return False
    permits = [name and name.kind for name in map(names.parse, leases.names)]
    if any(kind is not names.Kind.LEASE for kind in permits):
        return False
    if not all(map(names.parse, queue.names)):
        return False
    data = folder.data or b""
    return data.isdigit() or (not data and bool(queue.names or leases.names))


def find(path: str, facts: Facts) -> Found:
    """Return what is at the path. The facts have to know its parent, too, and a pool's parts."""
    folder = facts.folders.get(path)
    if folder is None:
        return Found(path, What.MISSING)
    what, lock, pool = _what(path, facts), None, None
    match what:
        case What.SEMAPHORE:
            lock = _semaphore(path, facts)
        case What.LOCK | What.READ_WRITE | What.ELECTION:
            lock = _queue(path, facts)
        case What.POOL:
            queue = _queue(path, facts)  # a lock's contenders may stand beside the pool's nodes
            lock, pool = queue if queue.places else None, _pool(path, facts)
    return Found(path, what, len(folder.names), lock, pool)


def _what(path: str, facts: Facts) -> What:
    folder = facts.folders[path]
    queue = names.Queue(folder.names).contenders
    if (special := _special(path, facts.folders)) is not None:
        return special
    if queue:
        return _kind({one.kind for one in queue})
    if folder.names:
        return What.FOLDER
    if folder.changes:
        return What.FREE
    return What.EMPTY if names.parse(path.rpartition("/")[2]) is None else What.CONTENDER


def _special(path: str, folders: Mapping[str, Folder]) -> What | None:
    """Whether a node is a semaphore or a pool, or has to do with one."""
    parent, _, name = path.rpartition("/")
    above = folders.get(parent)
    if is_pool(path, folders[path].names):
        return What.POOL
    if is_semaphore(path, folders):
        return What.SEMAPHORE
    if name in {LOCKS, LEASES} and is_semaphore(parent, folders):
        return What.PART
    if name in POOL_PARTS and above is not None and is_pool(parent, above.names):
        return What.POOL_PART
    return None


def _kind(kinds: Container[names.Kind]) -> What:
    if names.Kind.LATCH in kinds:
        return What.ELECTION
    if names.Kind.READ in kinds or names.Kind.WRITE in kinds:
        return What.READ_WRITE
    return What.LOCK


def picture(facts: Facts) -> Look:
    """Return what the facts describe."""
    found = [find(path, facts) for path in sorted(facts.folders) if path != "/"]
    locks = [it.lock for it in found if it.lock is not None and it.lock.places]
    pools = [it.pool for it in found if it.pool is not None]
    return Look(locks, pools, denied=sorted(facts.denied), behind=facts.times.behind)


def _pool_around(path: str, folders: Mapping[str, Folder]) -> str | None:
    """Return the pool whose election or shard this is."""
    parent, _, name = path.rpartition("/")
    above, _, part = parent.rpartition("/")
    pool = parent if name == "leader" else above if part == "shards" else ""
    return pool if pool in folders and is_pool(pool, folders[pool].names) else None


def _queue(path: str, facts: Facts) -> LockView:
    places = _places(path, facts.folders[path], facts)
    what = _kind({place.name.kind for place in places})
    places.sort(key=lambda place: not place.contender.holds)
    return LockView(path, what, places, pool=_pool_around(path, facts.folders))


def _semaphore(path: str, facts: Facts) -> LockView:
    limit = semaphore_recipe.number_in(facts.folders[path].data or b"")
    parts = [below(path, part) for part in (LEASES, LOCKS)]
    having, waiting = (_places(part, facts.folders[part], facts) for part in parts)
    before = {place.contender.path: place for place in (*having, *waiting)}
    arranged = semaphore_recipe.arrange(
        limit or 0, [one.contender for one in having], [one.contender for one in waiting]
    )
    places = [replace(before[one.path], contender=one) for one in arranged]
    short = 0
    if waiting:
        gathered = len(having) - sum(place.contender.holds for place in places)
        short = max(1, len(having) - limit) if limit is not None and gathered else 1
        if limit is not None and not gathered and len(having) < limit:
            short = 0  # it is about to take what is there
    return LockView(path, What.SEMAPHORE, places, limit, short)


def _places(path: str, folder: Folder, facts: Facts) -> list[QueuePlace]:
    """Return the contenders in queue order; without those that are not read yet."""
    queue = names.Queue(folder.names).contenders
    there: list[tuple[names.Name, Node | None]] = []
    dates: list[float | None] = []
    for name in queue:
        node = below(path, name.text)
        seen = facts.seen.get(node)
        if seen is None and node not in facts.denied:
            continue
        shown = None if seen is None else Node(node, seen.data, seen.owner or 0, mine=False)
        there.append((name, shown))
        dates.append(None if seen is None else seen.created)
    found = queries.describe(path, folder.epoch, there)
    return [QueuePlace(one, date, facts.times) for one, date in zip(found, dates, strict=True)]


def _pool(path: str, facts: Facts) -> PoolView:
    data = facts.seen.get(f"{path}/shards")
    shards = (parse_shards(data.data) if data else None) or ()
    workers, owned = [], set[Key]()
    members = facts.folders.get(f"{path}/members")
    for name in members.names if members else ():
        seen = facts.seen.get(f"{path}/members/{name}")
        record = pool_nodes.WorkerRecord.parse(seen.data) if seen else None
        if record is None:
            continue
        has = facts.seen.get(f"{path}/owned/{record.owned}")
        wants = facts.seen.get(f"{path}/assigned/{record.assigned}")
        mine = set(pool_nodes.parse_owned(has.data)) if has else set()
        owned |= mine
        assigned = (pool_nodes.parse_assigned(wants.data) if wants else None) or frozenset()
        workers.append(
            WorkerView(record.identity, len(mine), len(assigned), record.draining, record.capacity)
        )
    workers.sort(key=lambda worker: worker.identity)
    return PoolView(path, len(shards), workers, len(set(shards) - owned))


def garbage(facts: Facts, root: str) -> list[str]:
    """Return the nodes below ``root`` that had children and have none left, children first.

    They belong to no session and have no data. Semaphores and pools stay: they keep their limit and
    their number of shards.
    """
    folders = facts.folders
    kept: set[str] = {root, "/"}
    for path, folder in folders.items():
        if is_pool(path, folder.names):
            kept |= {other for other in folders if other == path or other.startswith(f"{path}/")}
        elif is_semaphore(path, folders):
            kept |= {path, below(path, LOCKS), below(path, LEASES)}
    found: list[str] = []
    gone: set[str] = set()
    for path in sorted(folders, key=lambda path: (-path.count("/"), path)):
        folder = folders[path]
        used = folder.changes != 0 and not folder.owner and not folder.size
        empty = all(below(path, name) in gone for name in folder.names)
        if used and empty and path not in kept:
            found.append(path)
            gone.add(path)
    return found
