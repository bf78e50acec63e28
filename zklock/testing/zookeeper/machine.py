"""The server's state machine: one standalone ZooKeeper, without a socket, a thread or a clock.

A driver tells the machine what arrives: `Machine.connect`, `Machine.request`, `Machine.lost`. It
also tells it what time it is, in milliseconds of a clock that only goes forward. The machine puts
its answers into `Machine.outbox`: messages for connections, in the order in which they must be
sent. An event stands before the answer that shows its cause. A connection is any hashable object of
the driver.

Nothing happens by itself: `Machine.due` says when the driver has to call `Machine.advance`.

Source: ``ZooKeeperServer``, ``PrepRequestProcessor``, ``FinalRequestProcessor`` and ``DataTree`` of
Apache ZooKeeper 3.8. ``tests/contract/test_embedded_is_faithful.py`` holds this against a real one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, get_args

from zklock._ground.numbers import check_int
from zklock.testing.zookeeper import acl, messages
from zklock.testing.zookeeper.acl import Identity
from zklock.testing.zookeeper.codec import EPHEMERAL, PING_XID, SEQUENTIAL, Op
from zklock.testing.zookeeper.messages import (
    Answer,
    Auth,
    Code,
    EventKind,
    Message,
    Part,
    Perms,
    Request,
)
from zklock.testing.zookeeper.sessions import ServerSession, Sessions
from zklock.testing.zookeeper.tree import (
    CONTAINER_OWNER,
    SPECIAL,
    Refused,
    Transaction,
    Tree,
    Znode,
    expect,
    is_valid,
    parent_of,
    signed,
)
from zklock.testing.zookeeper.watches import Watches

C = TypeVar("C", bound=Hashable)
T = TypeVar("T")

_NO_PASSWORD = bytes(16)
_MODES = range(5)
_TTL_MODES = range(5, 7)
Body: TypeAlias = tuple[Any, ...]
Write: TypeAlias = Part | messages.SetAcl | messages.Multi | messages.Reconfig
WRITES = get_args(Write)
_TRANSACTIONS = frozenset(op for op, kind in messages.KINDS.items() if kind in WRITES)
_FIRST_SESSION = 1 << 56


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a server is configured to do; times are in milliseconds.

    By default a session lasts 2 to 20 ticks. A container that has had children and has none any
    more is deleted at the next check.
    """

    tick_time: int = 500
    min_session_timeout: int | None = None
    max_session_timeout: int | None = None
    container_check: int = 60_000

    def __post_init__(self) -> None:
        for name in ("tick_time", "min_session_timeout", "max_session_timeout", "container_check"):
            number = getattr(self, name)
            if number is not None or name in {"tick_time", "container_check"}:
                check_int(name, number, 1)

    def timeout(self, wanted: int) -> int:
        """Return the session timeout that a client gets."""
        least = self.min_session_timeout or 2 * self.tick_time
        most = self.max_session_timeout or 20 * self.tick_time
        return min(max(wanted, least), most)


@dataclass(slots=True)
class _Link(Generic[C]):
    """What a connection is to a session that lives; ``timeout`` is what it has negotiated."""

    session: ServerSession[C]
    timeout: int
    who: list[Identity] = field(default_factory=list)


class Machine(Generic[C]):
    """A standalone server. Not thread-safe.

    ``since_epoch`` is what to add to its time for the dates of nodes. ``first_session`` is the id
    of its first session; further ones count up.
    """

    _PINGS_COUNT = True
    """Whether a ping is a sign of life."""

    _EXISTS_NEEDS_READ = True
    """Whether only who may read a node may ask whether it exists, as since 3.9.3."""

    def __init__(
        self, rules: Rules, now: int, *, since_epoch: int = 0, first_session: int = _FIRST_SESSION
    ) -> None:
        self.rules = rules
        self.read_only = False
        self.zxid = 0
        self.tree = Tree()
        self.sessions: Sessions[C] = Sessions(rules.tick_time, first_session)
        self.watches: Watches[C] = Watches()
        self.outbox: deque[tuple[C, Message]] = deque()
        self._since_epoch = since_epoch
        self._links: dict[C, _Link[C]] = {}
        self._containers_due = now + rules.container_check

    # What arrives.

    def connect(self, connection: C, request: messages.Connect, now: int, address: str) -> None:
        """Take the first frame of a connection that comes from this IP address."""
        if request.last_zxid > self.zxid or (self.read_only and not request.read_only):
            self._hang_up(connection)
            return
        timeout = self.rules.timeout(request.timeout)
        read_only = None if request.read_only is None else self.read_only
        if request.session == 0:
            self.zxid += 1
            session = self.sessions.open(timeout, now)
        else:
            found = self.sessions.find(request.session)
            if found is not None and found.connection is not None:
                self._hang_up(found.connection)
            if found is None or found.password != request.password:
                self._send(connection, messages.Connected(0, 0, _NO_PASSWORD, read_only))
                self._hang_up(connection)
                return
            session = found
            self.sessions.touch(session, timeout, now)
        session.connection = connection
        self._links[connection] = _Link(session, timeout, [Identity("ip", address)])
        self._send(connection, messages.Connected(timeout, session.id, session.password, read_only))

    def request(self, connection: C, xid: int, request: Request, now: int) -> None:
        """Take any other frame. Nothing answers a session that has ended."""
        link = self._links.get(connection)
        if link is None:
            return
        if isinstance(request, Auth):
            self._authenticate(connection, link, xid, request)
            return
        if self._PINGS_COUNT or not isinstance(request, messages.Ping):
            self.sessions.touch(link.session, link.timeout, now)
        if isinstance(request, messages.Unknown):
            self._answer(connection, xid, Code.UNIMPLEMENTED)
            self._hang_up(connection)
        elif request == messages.Unreadable(Op.AUTH):
            self._hang_up(connection)
        elif isinstance(request, messages.Ping):
            self._answer(connection, PING_XID, Code.OK)
        elif isinstance(request, messages.Close):
            self._close(link.session, now)
            self._answer(connection, xid, Code.OK)
            self._hang_up(connection)
        else:
            self._serve(connection, link, xid, request, now)

    def throttle(self, connection: C, xid: int, now: int) -> None:
        """Answer a request by ThrottledOp instead of carrying it out."""
        link = self._links.get(connection)
        if link is not None:
            self.sessions.touch(link.session, link.timeout, now)
            self._answer(connection, xid, Code.THROTTLED_OP)

    def lost(self, connection: C) -> None:
        """Note that a connection has ended; its session lives on."""
        link = self._links.pop(connection, None)
        self.watches.forget(connection)
        if link is not None and link.session.connection == connection:
            link.session.connection = None

    # Time.

    def due(self) -> int:
        """Return when `advance` has something to do, if nothing arrives before."""
        expiry = self.sessions.due()
        return self._containers_due if expiry is None else min(expiry, self._containers_due)

    def advance(self, now: int) -> None:
        """End the sessions that have expired, and delete the containers that are through."""
        for session in self.sessions.expired(now):
            self.expire(session.id, now)
        if now >= self._containers_due:
            self._containers_due = now + self.rules.container_check
            for path in list(self.tree.containers):
                node = self.tree.nodes[path]
                if node.counter > 0 and not node.children:
                    self.remove(path, now)

    def expire(self, session_id: int, now: int) -> bool:
        """End a session at once; whether it lived."""
        session = self.sessions.find(session_id)
        if session is None:
            return False
        connection = session.connection
        self._close(session, now)
        if connection is not None:
            self._hang_up(connection)
        return True

    def restart(self, rules: Rules, now: int) -> None:
        """Go on with the same data: connections are gone, sessions begin a whole timeout anew."""
        self.rules = rules
        self.watches = Watches()
        self.outbox.clear()
        self._links.clear()
        self._containers_due = now + rules.container_check
        self.sessions.restart(rules.tick_time, now)

    def remove(self, path: str, now: int) -> None:
        """Delete a node without children, as one whom no ACL stops."""
        self._transact(now, partial(Transaction.remove, path=path))

    def set_child_counter(self, path: str, value: int) -> None:
        """Make the next sequential child of ``path`` get this number; `KeyError` without a node."""
        self.tree.nodes[path].counter = signed(value)

    def linked(self, connection: C) -> int:
        """Return the id of a connection's session, 0 if it has none."""
        link = self._links.get(connection)
        return 0 if link is None else link.session.id

    # Connections.

    def _send(self, connection: C, message: Message) -> None:
        self.outbox.append((connection, message))

    def _answer(
        self, connection: C, xid: int, code: int, op: Op = Op.ERROR, body: Body = ()
    ) -> None:
        self._send(connection, Answer(xid, self.zxid, code, op, body))

    def _hang_up(self, connection: C) -> None:
        self.lost(connection)
        self._send(connection, messages.HangUp())

    def _close(self, session: ServerSession[C], now: int) -> None:
        def bury(txn: Transaction) -> None:
            for path in list(self.tree.ephemerals.get(session.id, ())):
                txn.remove(path)

        self.sessions.close(session)
        self._transact(now, bury)

    def _authenticate(self, connection: C, link: _Link[C], xid: int, request: Auth) -> None:
        proven = acl.prove(request.scheme, request.data)
        known = request.scheme == "ip"
        code = Code.OK if proven or known else Code.AUTH_FAILED
        if proven is not None and proven not in link.who:
            link.who.append(proven)
        self._send(connection, Answer(xid, 0, code))
        if code is not Code.OK:
            self._hang_up(connection)

    # Requests.

    def _serve(self, connection: C, link: _Link[C], xid: int, request: Request, now: int) -> None:
        code = Code.OK
        body: Body = ()
        try:
            if isinstance(request, WRITES):
                if self.read_only:
                    raise Refused(Code.NOT_READ_ONLY)
                body = self._transact(now, lambda txn: self._write(txn, link, request))
            else:
                body = self._read(connection, link, request)
        except Refused as refused:
            code = refused.code
        self._send(connection, Answer(xid, self.zxid, code, request.op, body))

    def _transact(self, now: int, work: Callable[[Transaction], T]) -> T:
        """Carry out a transaction, and tell of it; one that is refused has its zxid, too."""
        self.zxid += 1
        txn = Transaction(self.tree, self.zxid, now + self._since_epoch)
        try:
            result = work(txn)
        except Refused:
            txn.undo()
            raise
        for change in txn.changes:
            for connection, event in self.watches.fire(change):
                if acl.permits(change.acl, Perms.READ, self._links[connection].who):
                    self._send(connection, event)
        return result

    def _write(self, txn: Transaction, link: _Link[C], request: Write) -> Body:
        match request:
            case messages.Multi(parts):
                return (self._multi(txn, link, parts),)
            case messages.Reconfig():
                raise Refused(Code.RECONFIG_DISABLED)
            case messages.SetAcl(path, entries, version):
                _valid(path)
                settled = acl.settle(entries, link.who)
                return (txn.protect(self._permitted(link, path, Perms.ADMIN), settled, version),)
            case _:
                return self._part(txn, link, request)

    def _part(self, txn: Transaction, link: _Link[C], request: Part) -> Body:
        match request:
            case messages.Create():
                return self._create(txn, link, request)
            case messages.Delete():
                self._delete(txn, link, request)
            case messages.SetData(path, data, version):
                node = self._permitted(link, _valid(path), Perms.WRITE)
                return (txn.write(node, path, data, version),)
            case messages.CheckVersion(path, version):
                expect(version, self._permitted(link, _valid(path), Perms.READ).version)
        return ()

    def _create(self, txn: Transaction, link: _Link[C], request: messages.Create) -> Body:
        path, mode = request.path, request.mode
        if mode in _TTL_MODES:
            raise Refused(Code.UNIMPLEMENTED)
        if mode not in _MODES or "/" not in path or "\0" in path:
            raise Refused(Code.BAD_ARGUMENTS)
        settled = acl.settle(request.acl, link.who)
        acl.check(self.tree.find(parent_of(path)), Perms.CREATE, link.who)
        owner = 0
        if request.op is Op.CREATE_CONTAINER:
            owner = CONTAINER_OWNER
        elif mode & EPHEMERAL:
            owner = link.session.id
        numbered = bool(mode & SEQUENTIAL)
        path = txn.create(path, request.data, settled, owner, numbered=numbered)
        return path, self.tree.nodes[path].stat()

    def _delete(self, txn: Transaction, link: _Link[C], request: messages.Delete) -> None:
        path = request.path
        if "/" not in path or "\0" in path or path in SPECIAL:
            raise Refused(Code.BAD_ARGUMENTS)
        acl.check(self.tree.find(parent_of(path)), Perms.DELETE, link.who)
        node = self.tree.find(path)
        expect(request.version, node.version)
        if node.children:
            raise Refused(Code.NOT_EMPTY)
        txn.remove(path)

    def _multi(self, txn: Transaction, link: _Link[C], parts: Sequence[Part]) -> list[Any]:
        done: list[tuple[Op, Body]] = []
        for part in parts:
            try:
                done.append((part.op, self._part(txn, link, part)))
            except Refused as refused:
                txn.undo()
                after = len(parts) - len(done) - 1
                codes = (
                    [Code.OK] * len(done) + [refused.code] + [Code.RUNTIME_INCONSISTENCY] * after
                )
                return [(Op.ERROR, (code,)) for code in codes]
        return done

    def _read(self, connection: C, link: _Link[C], request: Request) -> Body:
        match request:
            case messages.Exists(path, watch):
                if "\0" in path:
                    raise Refused(Code.BAD_ARGUMENTS)
                node = self.tree.nodes.get(path or "/")
                if node is not None and self._EXISTS_NEEDS_READ:
                    acl.check(node, Perms.READ, link.who)
                if watch:
                    self.watches.on_data(path, connection)
                if node is None:
                    raise Refused(Code.NO_NODE)
                return (node.stat(),)
            case messages.GetData(path, watch):
                node = self._permitted(link, path, Perms.READ)
                if watch:
                    self.watches.on_data(path, connection)
                return node.data, node.stat()
            case messages.GetChildren(path, watch):
                node = self._permitted(link, path, Perms.READ)
                if watch:
                    self.watches.on_children(path, connection)
                return list(node.children), node.stat()
            case messages.GetAcl(path):
                node = self._permitted(link, path, Perms.READ | Perms.ADMIN)
                return acl.shown(node, link.who), node.stat()
        return self._other(connection, request)

    def _permitted(self, link: _Link[C], path: str, wanted: int) -> Znode:
        node = self.tree.find(path)
        acl.check(node, wanted, link.who)
        return node

    def _other(self, connection: C, request: Request) -> Body:
        match request:
            case messages.Sync(path):
                if self.read_only:
                    raise Refused(Code.NOT_READ_ONLY)
                return (path,)
            case messages.SetWatches():
                self._set_watches(connection, request)
                return ()
            case messages.Unreadable(op):
                self.zxid += op in _TRANSACTIONS
                raise Refused(Code.MARSHALLING_ERROR)
        raise AssertionError(request)

    def _set_watches(self, connection: C, request: messages.SetWatches) -> None:
        """Tell at once of what has changed since; watch the rest."""

        def place(
            paths: Iterable[str],
            missed: Callable[[Znode | None], EventKind | None],
            watch: Callable[[str, C], None],
        ) -> None:
            for path in paths:
                kind = missed(self.tree.nodes.get(path))
                if kind is None:
                    watch(path, connection)
                else:
                    self._send(connection, messages.WatchEvent(kind, path))

        def written(node: Znode | None) -> EventKind | None:
            if node is None:
                return EventKind.DELETED
            return EventKind.DATA_CHANGED if node.mzxid > request.zxid else None

        def populated(node: Znode | None) -> EventKind | None:
            if node is None:
                return EventKind.DELETED
            return EventKind.CHILDREN_CHANGED if node.pzxid > request.zxid else None

        def made(node: Znode | None) -> EventKind | None:
            return None if node is None else EventKind.CREATED

        place(request.data, written, self.watches.on_data)
        place(request.exists, made, self.watches.on_data)
        place(request.children, populated, self.watches.on_children)


def _valid(path: str) -> str:
    if not is_valid(path):
        raise Refused(Code.BAD_ARGUMENTS)
    return path
