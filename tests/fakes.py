"""An in-memory ZooKeeper and its clients, stepped by hand, for recipes and attempts.

``Server`` is the ensemble: one leader and a log of transactions. A ``FakeLink`` is one client's
connection to a server of it, which may lag behind the leader, answers in the order asked, and
sends watch events in line with its answers. ``Client`` is what an ``Attempt`` runs on, in the place
of a ``Session``. It sends through a link that can break at any moment, before or after a request
was carried out. Nothing happens by itself: a test decides what is served, delivered, or lost.

``tests/contract/test_fake_is_faithful.py`` holds requests and answers against a real server.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

from zklock._core.attempt import Attempt
from zklock._core.link import Flight
from zklock._core.wire import WATCHING
from zklock._recipes import lock as lock_recipe, names, steps
from zklock._recipes.effects import (
    Batch,
    Claim,
    Create,
    Delete,
    Exists,
    Failed,
    Failure,
    List,
    Listing,
    Make,
    Node,
    Read,
    Recipe,
    Request,
    Sync,
    Transaction,
    Watch,
    WatchExists,
    WatchList,
    Write,
)
from zklock.errors import AccessDenied, ZkLockError
from zklock.token import FencingToken

COUNTER_END = 2**31 - 1
PERSISTENT = 0


def failure(why: Failure, path: str) -> Failed:
    kind = AccessDenied if why is Failure.DENIED else ZkLockError
    return Failed(why, kind(f"{path}: {why.value}", path=path))


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


@dataclass(slots=True)
class Znode:
    data: bytes
    owner: int
    czxid: int
    counter: int = 0  # children ever created; it numbers the sequential ones
    children: set[str] = field(default_factory=set)
    version: int = 0

    @property
    def changes(self) -> int:
        """Children that have ever come or gone."""
        return 2 * self.counter - len(self.children)


class Change(Enum):
    """What watches tell of."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class Created:
    path: str
    data: bytes
    owner: int


@dataclass(frozen=True, slots=True)
class Deleted:
    path: str


@dataclass(frozen=True, slots=True)
class Written:
    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Counted:
    """Not a transaction of ZooKeeper's: stands for millions of creates."""

    path: str
    counter: int


@dataclass(frozen=True, slots=True)
class Closed:
    session: int


Txn: TypeAlias = Created | Deleted | Written | Counted | Closed


class Tree:
    """What one server knows: the transactions up to ``zxid``."""

    def __init__(self) -> None:
        self.zxid = 0
        self.nodes = {"/": Znode(b"", PERSISTENT, 0)}

    def apply(self, txn: Txn) -> list[tuple[str, Change]]:
        """Return what changed, in order."""
        self.zxid += 1
        match txn:
            case Created(path, data, owner):
                parent = self.nodes[parent_of(path)]
                parent.children.add(path.rpartition("/")[2])
                parent.counter += parent.counter < COUNTER_END
                self.nodes[path] = Znode(data, owner, self.zxid)
                return [(path, Change.CREATED), (parent_of(path), Change.CHILD)]
            case Deleted(path):
                return self._delete(path)
            case Written(path, data):
                self.nodes[path].data = data
                self.nodes[path].version += 1
                return [(path, Change.CHANGED)]
            case Counted(path, counter):
                self.nodes[path].counter = counter
                return []
            case Closed(session):
                gone = [path for path, node in self.nodes.items() if node.owner == session]
                return [change for path in gone for change in self._delete(path)]

    def _delete(self, path: str) -> list[tuple[str, Change]]:
        del self.nodes[path]
        self.nodes[parent_of(path)].children.discard(path.rpartition("/")[2])
        return [(path, Change.DELETED), (parent_of(path), Change.CHILD)]

    def names(self, path: str) -> list[str]:
        return sorted(self.nodes[path].children) if path in self.nodes else []


class Server:
    """The ensemble as its leader sees it."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.log: list[Txn] = []
        self.sessions: set[int] = set()
        self._opened = 0x1000
        self._dead: list[int] = []
        self.denied: set[Any] = set()  # types of requests, and shapes of transactions
        self.grants: list[FakeGrant] = []  # in the order given, to whichever client

    def commit(self, *txns: Txn) -> None:
        for txn in txns:
            self.log.append(txn)
            self.tree.apply(txn)

    @property
    def dying(self) -> tuple[int, ...]:
        """The sessions that have ended, and whose nodes stay."""
        return tuple(self._dead)

    def open_session(self) -> int:
        self._opened += 1
        self.sessions.add(self._opened)
        return self._opened

    def expire(self, session: int, *, lingering: bool = False) -> None:
        """End a session; its nodes stay until ``bury()`` if they are to linger."""
        if session in self.sessions:
            self.sessions.discard(session)
            self._dead.append(session)
            if not lingering:
                self.bury()

    def bury(self) -> None:
        """Remove the nodes of ended sessions."""
        dead, self._dead = self._dead, []
        self.commit(*map(Closed, dead))

    def create(self, prefix: str, data: bytes, owner: int) -> str | Failure:
        """Create a sequential node; return its path."""
        parent = self.tree.nodes.get(parent_of(prefix))
        if parent is None:
            return Failure.MISSING
        path = f"{prefix}{parent.counter:010d}"
        # The counter stands at its end; or ephemeral nodes have no children.
        if path in self.tree.nodes or parent.owner != PERSISTENT:
            return Failure.OTHER
        self.commit(Created(path, data, owner))
        return path

    def make_path(self, path: str) -> None:
        if path not in self.tree.nodes:
            self.make_path(parent_of(path))
            self.commit(Created(path, b"", PERSISTENT))

    def delete(self, path: str) -> Failure | None:
        return self._carry_out((Delete(path),))[0]

    def _carry_out(self, ops: tuple[Any, ...]) -> tuple[Failure | None, str]:
        """Do all, or nothing → why not, and at which path."""
        removed: set[str] = set()
        written: Counter[str] = Counter()
        for op in ops:
            node = self.tree.nodes.get(op.path)
            if node is None or op.path in removed:
                return Failure.MISSING, op.path
            if op.version not in (-1, node.version + written[op.path]):
                return Failure.CHANGED, op.path
            if isinstance(op, Delete):
                left = {f"{op.path}/{name}" for name in node.children} - removed
                if left:
                    return Failure.NOT_EMPTY, op.path
                removed.add(op.path)
            if isinstance(op, Write):
                written[op.path] += 1
        for op in ops:
            if isinstance(op, Delete):
                self.commit(Deleted(op.path))
            elif isinstance(op, Write):
                self.commit(Written(op.path, op.data))
        return None, ""

    def write(self, session: int, request: Request) -> Any:
        """Carry out a request that goes through the leader."""
        if session not in self.sessions:
            return failure(Failure.DROPPED, "session expired")
        match request:
            case Create(prefix, data):
                path = self.create(prefix, data, session)
                if isinstance(path, Failure):
                    return failure(path, prefix)
                return Node(path, data, session, mine=True)
            case Make(path):
                if path in self.tree.nodes:
                    return None
                parent = self.tree.nodes.get(parent_of(path))
                if parent is None:
                    return failure(Failure.MISSING, path)
                if parent.owner != PERSISTENT:
                    return failure(Failure.OTHER, path)
                self.commit(Created(path, b"", PERSISTENT))
                return None
            case Sync():
                return None
        whole = request.operations if isinstance(request, Transaction) else (request,)
        why, path = self._carry_out(whole)
        return failure(why, path) if why else None


def shape_of(request: Request) -> tuple[type, ...] | None:
    """Return the types of a transaction's operations, each once; ``None``: it is none."""
    if isinstance(request, Transaction):
        return tuple(dict.fromkeys(map(type, request.operations)))
    return None


_READS = (List, WatchList, Watch, WatchExists, Read, Exists, Sync)


class FakeLink:
    """One connection of a session, to a server that has applied the log up to ``zxid``."""

    def __init__(self, server: Server, session: int, zxid: int) -> None:
        self.server = server
        self.session = session
        self.tree = Tree()
        self.watches: set[str] = set()
        self.child_watches: set[str] = set()
        self.asked: deque[Request] = deque()
        self.inbox: deque[tuple[str, Any, int]] = deque()  # "answer" or "event", what, zxid
        self.closed = False
        self.advance(zxid)

    @property
    def lag(self) -> int:
        return len(self.server.log) - self.tree.zxid

    @property
    def writes(self) -> list[Request]:
        """What it was asked for and is not carried out, but for what changes nothing."""
        return [request for request in self.asked if not isinstance(request, _READS)]

    def advance(self, count: int) -> None:
        """Have the server apply some more of the log."""
        for txn in self.server.log[self.tree.zxid : self.tree.zxid + count]:
            for path, change in self.tree.apply(txn):
                if self._tells(path, change):
                    event = path, change is Change.DELETED
                    self.inbox.append(("event", event, self.tree.zxid))
            self.closed = self.closed or txn == Closed(self.session)

    def _tells(self, path: str, change: Change) -> bool:
        """Use up the watches that this change fires; whether there is one."""
        fired = []
        if change is not Change.CHILD:
            fired.append(self.watches)
        if change in {Change.CHILD, Change.DELETED}:
            fired.append(self.child_watches)
        told = any(path in watches for watches in fired)
        for watches in fired:
            watches.discard(path)
        return told

    def serve(self) -> None:
        """Carry out the oldest request and send its answer."""
        result = self._serve(self.asked.popleft())
        self.inbox.append(("answer", result, self.tree.zxid))

    def _serve(self, request: Request) -> Any:
        if self.server.denied & {type(request), shape_of(request)}:
            return failure(Failure.DENIED, str(request))
        match request:
            case List(path) | WatchList(path):
                node = self.tree.nodes.get(path)
                if node is None:
                    return self._missing(path)
                if isinstance(request, WatchList):
                    self.child_watches.add(path)
                names = self.tree.names(path)
                return Listing(names, node.czxid, node.changes, size=len(node.data))
            case Watch(path):
                if path in self.tree.nodes:
                    self.watches.add(path)
                return self._node(path, with_data=True)
            case WatchExists(path):
                self.watches.add(path)
                return self._node(path, with_data=False)
            case Read(path):
                return self._node(path, with_data=True)
            case Exists(path):
                return self._node(path, with_data=False)
            case _:
                # A server has applied a write, and what was ordered before it, when it answers.
                result = self.server.write(self.session, request)
                self.advance(self.lag)
                return result

    def _node(self, path: str, *, with_data: bool) -> Any:
        node = self.tree.nodes.get(path)
        if node is None:
            return self._missing(path)
        data, mine = node.data if with_data else b"", node.owner == self.session
        return Node(path, data, node.owner, mine, node.version)

    def _missing(self, path: str) -> Failed:
        return failure(Failure.MISSING, path)


@dataclass(eq=False, slots=True)
class FakeGrant:
    client: Client
    session: int
    path: str
    token: FencingToken
    kind: names.Kind
    stood: bool  # its node still existed, in fact, when it was given
    others: tuple[str, ...] = ()  # more nodes that it needs
    give_back: Callable[[], Recipe[None]] | None = None  # the recipe that does it
    over: bool = False  # released, or known to be lost

    def abandon(self) -> None:
        """Give it back; no error if it is over."""
        if not self.over:
            self.client.release(self)

    @property
    def stands(self) -> bool:
        """Whether it is not over and its node exists, in fact."""
        return not self.over and self.path in self.client.server.tree.nodes


class NoSession:
    """A session that can do nothing but run jobs later; a fake adds what it can."""

    timeout = moment = lease_end = 1.0
    final: Exception | None = None
    interrupted = False

    @property
    def shell(self) -> Any:
        return self

    @property
    def post(self) -> Callable[[Callable[[], object]], object]:
        return self.later

    def step(self, call: Callable[..., Any], *what: Any) -> Any:
        return call(*what)

    def now(self) -> float:
        raise NotImplementedError

    def remaining(self) -> float:
        raise NotImplementedError

    def attempt(self, make: Callable[[], Recipe[Any]], **more: Any) -> Any:
        raise NotImplementedError

    def pause(self, seconds: float, job: Callable[[], object]) -> Callable[[], object]:
        raise NotImplementedError

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        raise NotImplementedError

    def read_for(self, pending: Any) -> None:
        """Nothing comes by itself."""

    def release_grant(self, grant: Any, *, awaited: bool = False) -> Any:
        raise NotImplementedError

    def finish(self, grant: Any, end: Any) -> None:
        raise NotImplementedError

    def confirmed(self, grant: Any, sent: float, there: bool) -> None:
        raise NotImplementedError

    def notify(self, calls: list[Callable[[], object]]) -> None:
        raise NotImplementedError

    def check_usable(self) -> None:
        """It can be asked."""

    def later(self, job: Callable[[], object]) -> None:
        raise NotImplementedError


class Client(NoSession):
    """One client process, connected from the start."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.advancing: list[Attempt[Any]] = []
        self.session = server.open_session()
        self.link: FakeLink | None = FakeLink(server, self.session, len(server.log))
        self.seen = 0  # the newest zxid it was told of: no server behind that serves it
        self.refusals = 0  # claims to come for which the lease is not live
        self.sent: list[Request] = []
        self.pauses: list[float] = []  # how long its contenders were to pause
        self.interrupt_in: int | None = None  # batches until a KeyboardInterrupt
        self.on_batch: Callable[[], object] | None = None
        self._stepping = self._torn = False
        self._due: deque[tuple[Request, Flight, int]] = deque()  # what was asked, unanswered
        self._attempts: dict[Attempt[Any], None] = {}
        self._watching: dict[Attempt[Any], tuple[str, ...]] = {}
        self._awaiting: dict[Attempt[Any], None] = {}
        self._jobs: deque[Callable[[], object]] = deque()
        self._own: set[str] = set()
        # What another server still has of a connection that is lost, and may carry out.
        self._late: deque[tuple[int, Request]] = deque()
        self._slow = False  # whether there has been any
        self._abandoned_creates: list[tuple[str, str]] = []

    # For attempts.

    def step(self, call: Callable[..., Any], *what: Any) -> Any:
        """Call; what an exception has torn apart begins anew, as after a cut."""
        if self._stepping:
            return call(*what)
        if self._torn:
            self._mend()
        self._stepping = self._torn = True
        try:
            result = call(*what)
        finally:
            self._stepping = False
        self._torn = False
        return result

    def _mend(self) -> None:
        for attempt in self.advancing:
            attempt.torn()
        self.advancing.clear()
        self._torn = False
        self.lose_connection()

    @property
    def connected(self) -> bool:
        return self.link is not None

    def enter(self, attempt: Attempt[Any]) -> None:
        self._attempts[attempt] = None

    def leave(self, attempt: Attempt[Any]) -> None:
        self._attempts.pop(attempt, None)
        self._watching.pop(attempt, None)
        self._awaiting.pop(attempt, None)

    def send(self, attempt: Attempt[Any], batch: Batch) -> None:
        if watched := [each.path for each in batch if isinstance(each, WATCHING)]:
            attempt.watches()
            self._watching[attempt] = tuple(watched)
        if self.interrupt_in is not None:
            self.interrupt_in -= 1
            if self.interrupt_in < 0:
                self.interrupt_in = None
                raise KeyboardInterrupt
        if self.on_batch is not None:
            hook, self.on_batch = self.on_batch, None
            hook()
        flight = Flight(batch, partial(attempt.answered, batch))
        for slot, request in enumerate(batch):
            self.sent.append(request)
            if self.link is not None:
                self.link.asked.append(request)
                self._due.append((request, flight, slot))

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        return seconds

    def pause(self, seconds: float, job: Callable[[], object]) -> Callable[[], object]:
        self.pauses.append(seconds)
        self.later(job)
        return _nothing

    def claim(self, attempt: Attempt[Any], claim: Claim) -> FakeGrant | None:
        if self.refusals or not self.alive or claim.path not in self._own:
            self.refusals -= self.refusals > 0
            self._awaiting[attempt] = None
            return None
        attempt.accept()
        grant = self._give(claim)
        attempt.made = (grant,)
        return grant

    def _give(self, claim: Claim) -> FakeGrant:
        name = names.parse(claim.path.rpartition("/")[2])
        assert name is not None
        stood = claim.path in self.server.tree.nodes
        grant = FakeGrant(
            self,
            self.session,
            claim.path,
            claim.token,
            name.kind,
            stood,
            tuple(path for path, _ in claim.others),
            claim.release,
        )
        self.server.grants.append(grant)
        return grant

    def delete_orphan(self, node: str) -> None:
        self.later(lambda: self.delete(node))

    def abandon_create(self, path: str, uuid: str) -> None:
        if self._slow:
            self._abandoned_creates.append((path, uuid))
            self._settle_disowned()

    def later(self, job: Callable[[], object]) -> None:
        self._jobs.append(job)

    # What a test does with it.

    @property
    def alive(self) -> bool:
        """Whether its session lives; a lease never outlives it."""
        return self.session in self.server.sessions

    @property
    def busy(self) -> bool:
        """Whether anything would happen without a fault or a change from outside."""
        link = self.link
        return (
            link is None
            or link.closed
            or bool(link.asked or link.inbox or link.lag)
            or bool(self._jobs or self._awaiting or self._late)
            or not self.alive
            or self._torn
        )

    @property
    def attempts(self) -> int:
        return len(self._attempts)

    @property
    def own(self) -> frozenset[str]:
        """The nodes that its session may have, as far as it has heard: it may claim them."""
        return frozenset(self._own)

    @property
    def pending(self) -> tuple[object, ...]:
        """All that it has not finished, for a comparison of states."""
        return (
            self._due,
            self._awaiting,
            self._attempts,
            self._watching,
            self._jobs,
            self._slow,
            self._abandoned_creates,
        )

    @property
    def late(self) -> list[tuple[int, Request]]:
        """The sessions and requests of lost connections that may still be carried out."""
        return list(self._late)

    @property
    def jobs(self) -> int:
        """How many things it has put off."""
        return len(self._jobs)

    @property
    def awaiting(self) -> int:
        """How many claims wait for a live lease."""
        return len(self._awaiting)

    @property
    def unanswered(self) -> int:
        """How many requests have no answer yet."""
        return len(self._due)

    def attempt(self, make: Callable[[], Recipe[Any]], **more: Any) -> Attempt[Any]:
        session: Any = self
        return Attempt(session, make, **more)

    def acquire(self, entry: lock_recipe.Entry) -> Attempt[FakeGrant | None]:
        """Return an attempt at the lock, to be started."""
        return self.attempt(
            partial(lock_recipe.acquire, entry), recover=partial(lock_recipe.leave, entry)
        )

    def delete(self, node: str) -> Attempt[None]:
        make = partial(steps.delete, parent_of(node), node)
        return self.attempt(make, recover=make).start()

    def release(self, grant: FakeGrant) -> None:
        grant.over = True
        make = partial(steps.delete, parent_of(grant.path), grant.path)
        attempt = self.attempt(make, recover=make)
        try:
            attempt.start()
        except KeyboardInterrupt:
            self.later(attempt.start)  # as who is struck posts it

    def serve(self, count: int = 1) -> None:
        """Have some requests carried out."""
        link = self.link
        while link is not None and link.asked and count and not link.closed:
            link.serve()
            count -= 1

    def deliver(self, count: int = 1) -> None:
        """Hear some of what the server sent."""
        if self._torn:
            self._mend()
        while self.link is not None and self.link.inbox and count:
            kind, what, self.seen = self.link.inbox.popleft()
            self.step(self._answered if kind == "answer" else self._happened, what)
            count -= 1

    def run_job(self) -> None:
        if self._jobs:
            self._jobs.popleft()()

    def renew_lease(self) -> None:
        """Have the lease proven."""
        if self.alive and self.connected:
            waiting, self._awaiting = self._awaiting, {}
            for attempt in waiting:
                self.step(attempt.granted)

    def lose_connection(self, *, carried_out: int = 0, late: bool = False) -> None:
        """Lose the connection; some of the requests under way are carried out nevertheless.

        Nobody hears of it before the next one. ``late``: whether the rest is carried out later
        (``land()``).
        """
        if self.link is None:
            return
        self.serve(carried_out)
        if late:
            self._slow = True
            self._late.extend((self.session, request) for request in self.link.writes)
        self.link = None
        self._due.clear()

    def land(self) -> None:
        """Have a request of a lost connection carried out, though its client is elsewhere by now.

        A client looks for what it has disowned for longer than a request can be late. So here it
        looks when nothing can be late any more.
        """
        session, request = self._late.popleft()
        self.server.write(session, request)
        self._settle_disowned()

    def _settle_disowned(self) -> None:
        if not self._late:
            disowned, self._abandoned_creates = self._abandoned_creates, []
            for path, uuid in disowned:
                self.later(partial(self._settle, path, uuid))

    def _settle(self, path: str, uuid: str) -> Attempt[None]:
        make = partial(steps.reap_late_creates, path, lambda: [uuid], lambda: steps.FIRST_LOOK)
        return self.attempt(make, recover=make).start()

    def reconnect(self, *, lag: int = 0) -> None:
        """Connect to a server, as far behind as this client can meet; a lost session is heard."""
        if self.link is not None:
            return
        if not self.alive:
            self._lose(lambda grant: True)
            self._own.clear()
            for attempt in list(self._attempts):
                self.step(attempt.replaced)
            self.session = self.server.open_session()  # a transaction of its own: no lag yet
            self.seen = len(self.server.log)
        at = max(self.seen, len(self.server.log) - lag)
        self.link = FakeLink(self.server, self.session, at)
        for attempt in list(self._attempts):
            self.step(attempt.again)

    def settle(self) -> bool:
        """Do everything that would happen by itself if nothing fails; whether anything did."""
        if not self.busy:
            return False
        if self.link is not None and (self.link.closed or not self.alive):
            self.server.bury()
            self.lose_connection()
        self.reconnect()
        while self._late:
            self.land()
        assert self.link is not None
        self.link.advance(self.link.lag)
        self.serve(len(self.link.asked))
        self.deliver(len(self.link.inbox))
        self.run_job()
        self.refusals = 0
        self.renew_lease()
        return True

    # Inside.

    def _answered(self, result: Any) -> None:
        request, flight, slot = self._due.popleft()
        if isinstance(request, Create | Exists) and isinstance(result, Node) and result.mine:
            self._own.add(result.path)
        flight.set_result(slot, result)

    def _lose(self, which: Callable[[FakeGrant], bool]) -> None:
        for grant in self.server.grants:
            if grant.client is self and which(grant):
                grant.over = True

    def _happened(self, event: tuple[str, bool]) -> None:
        path, deleted = event
        held = deleted and any(
            grant.client is self and grant.path == path for grant in self.server.grants
        )
        if deleted:
            self._own.discard(path)
            self._lose(lambda grant: grant.path == path)
        for attempt, paths in list(self._watching.items()):
            if path in paths:
                attempt.watched(path, deleted, held)


def _nothing() -> None:
    pass


def settle(clients: Iterable[Client], limit: int = 1000) -> None:
    """Let everything happen that happens without faults; fails if it does not come to an end."""
    clients = list(clients)
    for _ in range(limit):
        progress = [client.settle() for client in clients]
        if not any(progress):
            return
    raise AssertionError("it goes on and on: a livelock")


def sent(client: Client) -> list[type]:
    """Return the kinds of the requests that the client has sent since the last look."""
    kinds = [type(request) for request in client.sent]
    client.sent.clear()
    return kinds


def uuids(label: str = "") -> Iterator[str]:
    """Yield texts in place of UUIDs, the same ones in every run."""
    count = 0
    while True:
        count += 1
        yield f"{label or '0'}{count:07d}-0000-4000-8000-000000000000"


def outcome(attempt: Attempt[Any]) -> Any:
    """Return what an attempt has come to: its value or its error; ``...`` while it is pending."""
    if not attempt.done:
        return ...
    try:
        return attempt.result()
    except BaseException as error:
        return error


def no_thread(thread: threading.Thread) -> None:
    """Stand in for ``Thread.start`` where no thread can be started."""
    raise RuntimeError("can't start new thread")


def interrupted_starter() -> Callable[[threading.Thread], None]:
    """Return a stand-in for ``Thread.start`` that is interrupted once the thread runs."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    return interrupted
