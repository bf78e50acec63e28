"""An in-memory ZooKeeper and its clients, stepped by hand, for recipes and attempts.

``Server`` is the ensemble: one leader and a log of transactions. A ``FakeLink`` is one client's
connection to a server of it, which may lag behind the leader, answers in the order asked, and
sends watch events in line with its answers. Each of these servers is the embedded server's state
machine, and gets requests as the bytes that a client sends. ``Client`` is what an ``Attempt`` runs
on, in the place of a ``Session``. It sends through a link that can break at any moment, before or
after a request was carried out. Nothing happens by itself: a test decides what is served,
delivered, or lost.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

from zklock._core.attempt import Attempt
from zklock._core.link import Flight
from zklock._core.wire import WATCHING, Codec
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
from zklock.testing.zookeeper import codec, messages, tree as znodes
from zklock.testing.zookeeper.machine import Body, Machine, Rules, _Link
from zklock.testing.zookeeper.messages import Answer, WatchEvent
from zklock.testing.zookeeper.sessions import ServerSession
from zklock.token import FencingToken

Written = Write
PERSISTENT = 0
"""In place of the session that owns a node: nobody does."""


def failure(why: Failure, path: str) -> Failed:
    kind = AccessDenied if why is Failure.DENIED else ZkLockError
    return Failed(why, kind(f"{path}: {why.value}", path=path))


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


@dataclass(frozen=True, slots=True)
class Counted:
    """Not a transaction of ZooKeeper's: stands for millions of creates."""

    path: str
    counter: int


Txn: TypeAlias = tuple[int, bytes | Counted]
"""A session and its request; an empty one ends the session."""


class Znode(znodes.Znode):
    data: bytes  # no client of ours makes a node without data


class Tree(znodes.Tree):
    nodes: dict[str, Znode]  # type: ignore[assignment]

    def names(self, path: str) -> list[str]:
        return sorted(self.nodes[path].children) if path in self.nodes else []


class Replica(Machine[Any]):
    """A server that has carried out the first ``zxid`` transactions of the log."""

    tree: Tree

    def __init__(self) -> None:
        super().__init__(Rules(), 0)
        self.tree = Tree()
        self._changed = False

    def apply(self, txn: Txn) -> None:
        """Carry out the next transaction."""
        session, what = txn
        if isinstance(what, Counted):
            self.zxid += 1
            self.set_child_counter(what.path, what.counter)
        elif what:
            self.ask(None, session, what)
        else:
            self.sessions._all[session] = ServerSession(session, b"", 0)
            self.expire(session, 0)

    def ask(self, connection: object, session: int, request: bytes) -> tuple[Answer, bool]:
        """Return the answer, and whether anything has changed."""
        before, self._changed = self.zxid, False
        self._serve(connection, _link(session), 0, _read(request), 0)
        if not self._changed:
            self.zxid = before
        _, answer = self.outbox.pop()
        assert isinstance(answer, Answer)
        return answer, self._changed

    def _write(self, txn: znodes.Transaction, link: Any, request: Any) -> Body:
        body = super()._write(txn, link, request)
        self._changed = bool(txn.changes)
        return body


@cache
def _link(session: int) -> _Link[Any]:
    return _Link(ServerSession(session, b"", 0), 0)


@cache
def _read(request: bytes) -> Any:
    return messages.read_request(request)[1]


@cache
def _encoded(request: Request) -> bytes:
    body = Codec("", lambda: None, lambda: PERSISTENT).encode(request)
    assert isinstance(body, bytes)
    return codec.INT.write(0) + body


class Server:
    """The ensemble as its leader sees it."""

    def __init__(self) -> None:
        self.log: list[Txn] = []
        self.leader = Replica()
        self.sessions: set[int] = set()
        self._opened = 0x1000
        self._dead: list[int] = []
        self.denied: set[Any] = set()  # types of requests, and shapes of transactions
        self.grants: list[FakeGrant] = []  # in the order given, to whichever client

    @property
    def tree(self) -> Tree:
        return self.leader.tree

    def _append(self, txn: Txn) -> None:
        self.log.append(txn)
        self.leader.apply(txn)

    def commit(self, request: Written | Counted) -> None:
        """Have this carried out, for nobody's session."""
        if isinstance(request, Counted):
            self._append((PERSISTENT, request))
        else:
            assert not self.write(PERSISTENT, request).code

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
        for session in dead:
            self._append((session, b""))

    def create(self, prefix: str, data: bytes, owner: int) -> str | None:
        """Create a sequential node; return its path, ``None`` if it is refused."""
        answer = self.write(owner, Create(prefix, data))
        return answer.body[0] if answer.body else None

    def make_path(self, path: str) -> None:
        if path not in self.tree.nodes:
            self.make_path(parent_of(path))
            self.write(PERSISTENT, Make(path))

    def delete(self, path: str) -> None:
        self.write(PERSISTENT, Delete(path))

    def write(self, session: int, request: Request) -> Answer:
        """Carry out a request that goes through the leader; log it if it changes something."""
        if session not in (PERSISTENT, *self.sessions):
            return Answer(0, 0, messages.Code.SESSION_EXPIRED)
        answer, changed = self.leader.ask(None, session, _encoded(request))
        if changed:
            owner = session if isinstance(request, Create) else PERSISTENT
            self.log.append((owner, _encoded(request)))
        return answer


_READS = (List, WatchList, Watch, WatchExists, Read, Exists)


class FakeLink:
    """One connection of a session, to a server that has carried out ``zxid`` transactions."""

    def __init__(self, server: Server, session: int, zxid: int) -> None:
        self.server = server
        self.session = session
        self.replica = Replica()
        self.replica._links[self] = _link(session)
        self.asked: deque[Request] = deque()
        self.inbox: deque[tuple[str, Any, int]] = deque()  # "answer" or "event", what, zxid
        self.closed = False
        self.advance(zxid)

    @property
    def lag(self) -> int:
        return len(self.server.log) - self.replica.zxid

    @property
    def watched(self) -> list[list[str]]:
        """The paths that it watches: nodes, and nodes whose children it watches."""
        watches = self.replica.watches
        return [sorted(watches._data), sorted(watches._children)]

    @property
    def writes(self) -> list[Request]:
        """What it was asked for and is not carried out, but for what changes nothing."""
        return [request for request in self.asked if not isinstance(request, (*_READS, Sync))]

    def advance(self, count: int) -> None:
        """Have the server carry out some more of the log."""
        replica = self.replica
        for txn in self.server.log[replica.zxid : replica.zxid + count]:
            replica.apply(txn)
            for _, event in replica.outbox:
                assert isinstance(event, WatchEvent)
                deleted = event.kind is messages.EventKind.DELETED
                self.inbox.append(("event", (event.path, deleted), replica.zxid))
            replica.outbox.clear()
            self.closed = self.closed or txn == (self.session, b"")

    def serve(self) -> None:
        """Carry out the oldest request and send its answer."""
        result = self._serve(self.asked.popleft())
        self.inbox.append(("answer", result, self.replica.zxid))

    def _serve(self, request: Request) -> Any:
        parts = request.operations if isinstance(request, Transaction) else ()
        if self.server.denied & {type(request), tuple(dict.fromkeys(map(type, parts)))}:
            return failure(Failure.DENIED, str(request))
        if isinstance(request, _READS):
            answer, _ = self.replica.ask(self, self.session, _encoded(request))
        else:
            # A server has applied a write, and what was ordered before it, when it answers.
            answer = self.server.write(self.session, request)
            self.advance(self.lag)
        codec = Codec("", lambda: None, lambda: self.session)
        return codec.result(request, answer.code, messages.frame(answer)[_HEAD:])


_HEAD = len(codec.framed(codec.ANSWERED.pack((0, 0, 0))))


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


class Client:
    """One client process, connected from the start."""

    final: Exception | None = None
    interrupted = False

    @property
    def shell(self) -> Any:
        return self

    def read_for(self, pending: Any) -> None:
        """Nothing comes by itself."""

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
        self.awaiting: dict[Attempt[Any], None] = {}
        self.jobs: deque[Callable[[], object]] = deque()
        self.own: set[str] = (
            set()
        )  # the nodes of its session that it has heard of: it may claim them
        # What another server still has of a connection that is lost, and may carry out.
        self.late: deque[tuple[int, Request]] = deque()
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
        self.awaiting.pop(attempt, None)

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
        flight = Flight(batch, 0.0, lambda it: attempt.answered(batch, it.results))
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
        if self.refusals or not self.alive or claim.path not in self.own:
            self.refusals -= self.refusals > 0
            self.awaiting[attempt] = None
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
        self.jobs.append(job)

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
            or bool(self.jobs or self.awaiting or self.late)
            or not self.alive
            or self._torn
        )

    @property
    def attempts(self) -> int:
        return len(self._attempts)

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
        if self.jobs:
            self.jobs.popleft()()

    def renew_lease(self) -> None:
        """Have the lease proven."""
        if self.alive and self.connected:
            waiting, self.awaiting = self.awaiting, {}
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
            self.late.extend((self.session, request) for request in self.link.writes)
        self.link = None
        self._due.clear()

    def land(self) -> None:
        """Have a request of a lost connection carried out, though its client is elsewhere by now.

        A client looks for what it has disowned for longer than a request can be late. So here it
        looks when nothing can be late any more.
        """
        session, request = self.late.popleft()
        self.server.write(session, request)
        self._settle_disowned()

    def _settle_disowned(self) -> None:
        if not self.late:
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
            self.own.clear()
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
        while self.late:
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
            self.own.add(result.path)
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
            self.own.discard(path)
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
