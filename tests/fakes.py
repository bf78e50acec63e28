"""An in-memory ZooKeeper and its clients, stepped by hand, for recipes and attempts.

``Server`` is the ensemble: one leader and a log of transactions. A ``Link`` is one client's
connection to a server of it, which may lag behind the leader, answers in the order asked, and
sends watch events in line with its answers. ``Client`` is what an ``Attempt`` runs on
(``attempt.Host``) and sends through a link that can break at any moment, before or after a request
was carried out. Nothing happens by itself: a test decides what is served, delivered, or lost.

``tests/contract/test_fake_is_faithful.py`` holds requests and answers against a real server.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from zklock import names, recipe, steps
from zklock.attempt import Attempt
from zklock.effects import (
    Check,
    Claim,
    Create,
    Delete,
    Depart,
    Exists,
    Failed,
    Failure,
    Flight,
    HandOver,
    List,
    Listing,
    MakePath,
    Mark,
    Node,
    Read,
    Request,
    Sync,
    Watch,
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
    counter: int = 0  # children ever created, which numbers the sequential ones
    children: set[str] = field(default_factory=set)
    version: int = 0


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

    def apply(self, txn: Txn) -> list[tuple[str, bool]]:
        """Return the paths that changed, and whether by deletion."""
        self.zxid += 1
        match txn:
            case Created(path, data, owner):
                parent = self.nodes[parent_of(path)]
                parent.children.add(path.rpartition("/")[2])
                parent.counter += parent.counter < COUNTER_END
                self.nodes[path] = Znode(data, owner, self.zxid)
                return []
            case Deleted(path):
                return [self._delete(path)]
            case Written(path, data):
                self.nodes[path].data = data
                self.nodes[path].version += 1
                return [(path, False)]
            case Counted(path, counter):
                self.nodes[path].counter = counter
                return []
            case Closed(session):
                gone = [path for path, node in self.nodes.items() if node.owner == session]
                return [self._delete(path) for path in gone]

    def _delete(self, path: str) -> tuple[str, bool]:
        del self.nodes[path]
        self.nodes[parent_of(path)].children.discard(path.rpartition("/")[2])
        return path, True

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
        self.denied: set[type[Request]] = set()
        self.grants: list[FakeGrant] = []  # in the order given, to whichever client

    def commit(self, *txns: Txn) -> None:
        for txn in txns:
            self.log.append(txn)
            self.tree.apply(txn)

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
        if path in self.tree.nodes:  # the counter stands at its end
            return Failure.OTHER
        self.commit(Created(path, data, owner))
        return path

    def make_path(self, path: str) -> None:
        if path not in self.tree.nodes:
            self.make_path(parent_of(path))
            self.commit(Created(path, b"", PERSISTENT))

    def delete(self, path: str) -> Failure | None:
        node = self.tree.nodes.get(path)
        if node is None:
            return Failure.MISSING
        if node.children:
            return Failure.NOT_EMPTY
        self.commit(Deleted(path))
        return None

    def _write(self, path: str, data: bytes, version: int) -> Failed | None:
        node = self.tree.nodes.get(path)
        if node is None:
            return failure(Failure.MISSING, path)
        if version not in (-1, node.version):
            return failure(Failure.CHANGED, path)
        self.commit(Written(path, data))
        return None

    def write(self, session: int, request: Request) -> Any:  # noqa: PLR0912
        """Carry out a request that goes through the leader."""
        if session not in self.sessions:
            return failure(Failure.DROPPED, "session expired")
        match request:
            case Create(prefix, data):
                path = self.create(prefix, data, session)
                if isinstance(path, Failure):
                    return failure(path, prefix)
                return Node(path, data, session, mine=True)
            case Delete(path):
                why = self.delete(path)
                return failure(why, path) if why else None
            case MakePath(path):
                return self.make_path(path)
            case Check(path):
                return None if path in self.tree.nodes else failure(Failure.MISSING, path)
            case Write(path, data, version):
                return self._write(path, data, version)
            case Mark(path, data):
                if path not in self.tree.nodes:
                    return failure(Failure.MISSING, path)
                self.commit(Written(parent_of(path), data))
                return None
            case Depart(path, data):
                why = self.delete(path)
                if why is None:
                    self.commit(Written(parent_of(path), data))
                return failure(why, path) if why else None
            case HandOver(path, others, successor):
                gone = [each for each in (successor, *others, path) if each not in self.tree.nodes]
                if gone:
                    return failure(Failure.MISSING, gone[0])
                self.commit(*map(Deleted, (*others, path)))
                return None
            case Sync():
                return None
        raise NotImplementedError(request)


class Link:
    """One connection of a session, to a server that has applied the log up to ``zxid``."""

    def __init__(self, server: Server, session: int, zxid: int) -> None:
        self.server = server
        self.session = session
        self.tree = Tree()
        self.watches: set[str] = set()
        self.asked: deque[Request] = deque()
        self.inbox: deque[tuple[str, Any, int]] = deque()  # "answer" or "event", what, zxid
        self.closed = False
        self.advance(zxid)

    @property
    def lag(self) -> int:
        return len(self.server.log) - self.tree.zxid

    def advance(self, count: int) -> None:
        """Have the server apply some more of the log."""
        for txn in self.server.log[self.tree.zxid : self.tree.zxid + count]:
            for path, deleted in self.tree.apply(txn):
                if path in self.watches:
                    self.watches.discard(path)
                    self.inbox.append(("event", (path, deleted), self.tree.zxid))
            self.closed = self.closed or txn == Closed(self.session)

    def serve(self) -> None:
        """Carry out the oldest request and send its answer."""
        result = self._serve(self.asked.popleft())
        self.inbox.append(("answer", result, self.tree.zxid))

    def _serve(self, request: Request) -> Any:
        if type(request) in self.server.denied:
            return failure(Failure.DENIED, str(request))
        match request:
            case List(path):
                node = self.tree.nodes.get(path)
                return Listing(self.tree.names(path), node.czxid) if node else self._missing(path)
            case Watch(path):
                if path in self.tree.nodes:
                    self.watches.add(path)
                return self._node(path, with_data=True)
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
    over: bool = False  # released, or known to be lost

    @property
    def stands(self) -> bool:
        """Whether it is not over and its node exists, in fact."""
        return not self.over and self.path in self.client.server.tree.nodes


class _Landing:
    def __init__(self, count: int, done: Callable[[tuple[Any, ...]], None]) -> None:
        self.results: list[Any] = [None] * count
        self.missing = count
        self.done = done

    def put(self, slot: int, result: Any) -> None:
        self.results[slot] = result
        self.missing -= 1
        if not self.missing:
            self.done(tuple(self.results))


class Client:
    """One client process (``attempt.Host``), connected from the start."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.guard: AbstractContextManager[object] = threading.RLock()
        self.connected = True
        self.session = server.open_session()
        self.link: Link | None = Link(server, self.session, len(server.log))
        self.seen = 0  # the newest zxid it was told of: no server behind that serves it
        self.refusals = 0  # claims to come for which the lease is not live
        self.sent: list[Request] = []
        self.interrupt_in: int | None = None  # flights until a KeyboardInterrupt
        self.on_flight: Callable[[], object] | None = None
        self._puts: deque[Callable[[Any], None]] = deque()  # of what was asked, unanswered
        self._unsent: list[tuple[Request, Callable[[Any], None]]] = []
        self._attempts: set[Attempt[Any]] = set()
        self._watching: dict[Attempt[Any], tuple[str, ...]] = {}
        self._parked: list[Attempt[Any]] = []
        self._awaiting: list[Attempt[Any]] = []
        self._jobs: deque[Callable[[], object]] = deque()
        self._own: set[str] = set()

    # attempt.Host

    def enter(self, attempt: Attempt[Any]) -> None:
        self._attempts.add(attempt)

    def leave(self, attempt: Attempt[Any]) -> None:
        self._attempts.discard(attempt)
        self._watching.pop(attempt, None)

    def park(self, attempt: Attempt[Any]) -> None:
        self._parked.append(attempt)

    def fly(self, flight: Flight, done: Callable[[tuple[Any, ...]], None]) -> None:
        if self.interrupt_in is not None:
            self.interrupt_in -= 1
            if self.interrupt_in < 0:
                self.interrupt_in = None
                raise KeyboardInterrupt
        if self.on_flight is not None:
            hook, self.on_flight = self.on_flight, None
            hook()
        landing = _Landing(len(flight), done)
        for slot, request in enumerate(flight):
            self._ask(request, partial(self._answered, request, partial(landing.put, slot)))

    def watch(self, attempt: Attempt[Any], paths: Iterable[str]) -> None:
        self._watching[attempt] = tuple(paths)

    def pause(self, seconds: float, done: Callable[[], object]) -> Callable[[], object]:
        self.later(done)
        return lambda: None

    def claim(self, attempt: Attempt[Any], claim: Claim) -> FakeGrant | None:
        if self.refusals or not self.alive or claim.path not in self._own:
            self.refusals -= self.refusals > 0
            self._awaiting.append(attempt)
            return None
        name = names.parse(claim.path.rpartition("/")[2])
        assert name is not None
        stood = claim.path in self.server.tree.nodes
        grant = FakeGrant(self, self.session, claim.path, claim.token, name.kind, stood)
        self.server.grants.append(grant)
        return grant

    def sweep(self, node: str) -> None:
        self.later(lambda: self.delete(node))

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
            or bool(self._jobs or self._awaiting)
            or not self.alive
        )

    @property
    def attempts(self) -> int:
        return len(self._attempts)

    def acquire(self, entry: recipe.Entry) -> Attempt[FakeGrant | None]:
        """Return an attempt at the lock, to be started."""
        return Attempt(self, recipe.acquire(entry), recover=lambda: recipe.leave(entry))

    def delete(self, node: str) -> Attempt[None]:
        make = partial(steps.delete, parent_of(node), node)
        return Attempt(self, make(), recover=make).start()

    def release(self, grant: FakeGrant) -> None:
        grant.over = True
        try:
            self.delete(grant.path)
        except KeyboardInterrupt:
            self.sweep(grant.path)

    def serve(self, count: int = 1) -> None:
        """Have some requests carried out."""
        link = self.link
        while link is not None and link.asked and count and not link.closed:
            link.serve()
            count -= 1

    def deliver(self, count: int = 1) -> None:
        """Hear some of what the server sent."""
        while self.link is not None and self.link.inbox and count:
            kind, what, self.seen = self.link.inbox.popleft()
            if kind == "answer":
                self._puts.popleft()(what)
            else:
                self._happened(*what)
            count -= 1

    def run_job(self) -> None:
        if self._jobs:
            self._jobs.popleft()()

    def renew_lease(self) -> None:
        """Have the lease proven."""
        if self.alive and self.connected:
            waiting, self._awaiting = self._awaiting, []
            for attempt in waiting:
                attempt.lease_live()

    def lose_connection(self, *, carried_out: int = 0, state_first: bool = True) -> None:
        """Lose the connection; some of the requests under way are carried out nevertheless.

        ``state_first``: whether the client shows as disconnected when its requests fail, or only
        afterwards, so that what is asked meanwhile waits in its queue.
        """
        if self.link is None:
            return
        self.serve(carried_out)
        self.link = None
        self.connected = not state_first
        puts, self._puts = self._puts, deque()
        for put in puts:
            put(failure(Failure.DROPPED, "connection"))
        self.connected = False
        for attempt in list(self._watching):
            attempt.watched(None, deleted=False)

    def reconnect(self, *, lag: int = 0) -> None:
        """Connect to a server, as far behind as this client can meet; a lost session is heard."""
        if self.link is not None:
            return
        if not self.alive:
            self._lose(lambda grant: True)
            self._own.clear()
            for attempt in list(self._attempts):
                attempt.session_replaced()
            unsent, self._unsent = self._unsent, []
            for _, put in unsent:
                put(failure(Failure.DROPPED, "session expired"))
            self.session = self.server.open_session()  # a transaction of its own: no lag yet
            self.seen = len(self.server.log)
        at = max(self.seen, len(self.server.log) - lag)
        self.link = Link(self.server, self.session, at)
        self.connected = True
        unsent, self._unsent = self._unsent, []
        for request, put in unsent:
            self._ask(request, put)
        parked, self._parked = self._parked, []
        for attempt in parked:
            attempt.resume()

    def settle(self) -> bool:
        """Do everything that would happen by itself if nothing fails; whether anything did."""
        if not self.busy:
            return False
        if self.link is not None and (self.link.closed or not self.alive):
            self.server.bury()
            self.lose_connection()
        self.reconnect()
        assert self.link is not None
        self.link.advance(self.link.lag)
        self.serve(len(self.link.asked))
        self.deliver(len(self.link.inbox))
        self.run_job()
        self.refusals = 0
        self.renew_lease()
        return True

    # Inside.

    def _ask(self, request: Request, put: Callable[[Any], None]) -> None:
        if self.link is None:
            self._unsent.append((request, put))
            return
        self.sent.append(request)
        self.link.asked.append(request)
        self._puts.append(put)

    def _answered(self, request: Request, put: Callable[[Any], None], result: Any) -> None:
        if isinstance(request, Create | Exists) and isinstance(result, Node) and result.mine:
            self._own.add(result.path)
        put(result)

    def _lose(self, which: Callable[[FakeGrant], bool]) -> None:
        for grant in self.server.grants:
            if grant.client is self and which(grant):
                grant.over = True

    def _happened(self, path: str, deleted: bool) -> None:
        held = deleted and any(
            grant.client is self and grant.path == path for grant in self.server.grants
        )
        if deleted:
            self._own.discard(path)
            self._lose(lambda grant: grant.path == path)
        for attempt, paths in list(self._watching.items()):
            if path in paths:
                attempt.watched(path, deleted, held)


def settle(clients: Iterable[Client], limit: int = 1000) -> None:
    """Let everything happen that happens without faults; fails if it does not come to an end."""
    clients = list(clients)
    for _ in range(limit):
        progress = [client.settle() for client in clients]
        if not any(progress):
            return
    raise AssertionError("it goes on and on: a livelock")


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
