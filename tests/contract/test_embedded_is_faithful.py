"""The embedded server answers as ZooKeeper 3.8 does: both get the same requests.

Each server stands behind a proxy, and each gets the requests of the same kazoo sessions. What is
compared: every result and error; every field of every Stat, but the dates (transactions by their
distance from the first, owners by their place among the sessions); and all that a server sent on
each connection: operation or event, path, error and size, in order. Further tests compare
handshakes, broken requests and connections, byte by byte.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import count, zip_longest
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_acl, make_digest_acl

from tests.contract.support import SOON, kazoo_client
from tests.modes import repeated
from zklock.testing import EmbeddedServer, FaultProxy, ZooKeeperServer, four_letter
from zklock.testing.frames import Direction, FrameKind
from zklock.testing.sessions import received
from zklock.testing.zookeeper import codec
from zklock.testing.zookeeper.codec import ASKED, INT, LONG, Acl, Op, framed
from zklock.testing.zookeeper.machine import Machine

SESSIONS = 3
LEAVE, AUTH = "leave", "auth"
"""Steps that end a session, which another replaces, and that prove who one is."""

_ROOTS = count(10_000)

Request = tuple[Any, ...]
Step = str | list[Request]
Ask = Callable[..., Any]


class Older(EmbeddedServer):
    """One that answers as the releases before 3.9.3 did."""

    class _MACHINE(Machine[Any]):
        _EXISTS_NEEDS_READ = False


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[ZooKeeperServer, Any]]:
    """A real server and an embedded one, configured alike."""
    with (
        ZooKeeperServer() as real,
        (EmbeddedServer if exists_needs_read(real.hosts) else Older)() as fake,
    ):
        yield real, fake


def exists_needs_read(hosts: str) -> bool:
    """Whether this release asks for the right to read there; 3.9.3 is the first."""
    with kazoo_client(hosts) as client:
        client.create("/hidden", acl=[make_acl("world", "anyone", delete=True)])
        try:
            return client.exists("/hidden") is None
        except NoAuthError:
            return True
        finally:
            client.delete("/hidden")


class World:
    """Sessions with one server, and names for what differs between two servers."""

    def __init__(self, root: str, proxy: FaultProxy, clients: list[KazooClient]) -> None:
        self.root = root
        self.clients = clients
        self._proxy = proxy
        self._ids = {client.client_id[0]: at for at, client in enumerate(clients)}
        self.created: list[str] = []
        clients[0].create(root)
        self._first = clients[0].exists(root).czxid

    def path(self, name: str | int) -> str:
        """Return a path below the root, or that of a sequential node that was created."""
        if isinstance(name, int):
            return self.created[name % len(self.created)] if self.created else self.path("none")
        return f"{self.root}/{name}" if name else self.root

    def play(self, who: int, step: Step) -> Any:
        """Do a step; return what came of it, in words that both worlds share."""
        mark = self._proxy.mark()
        results: list[Any] = []
        if step == LEAVE:
            self.clients[who].stop()
            self.clients[who].close()
            self.clients[who] = join(self._proxy)
            self._ids[self.clients[who].client_id[0]] = len(self._ids)
        elif step == AUTH:
            self.clients[who].add_auth("digest", "me:secret")
        else:
            client = self.clients[who]
            asked = [ASK[request[0]](client, self, *request[1:]) for request in step]
            for request, answer in zip(step, asked, strict=True):
                results.append(self._word(outcome(answer)))
                if request[0] == "create" and isinstance(results[-1], tuple):
                    self._note(results[-1])
        for client in self.clients:
            client.sync("/")
        return results, self._said(mark, step == LEAVE)

    def _note(self, result: tuple[Any, ...]) -> None:
        path = result[0]
        if path[-10:].isdigit():
            self.created.append(f"{self.root}{path}")

    def _said(self, mark: int, unordered: bool) -> list[list[Any]]:
        """Return what the server has sent since to each session."""
        numbers = {
            connection.session_id: connection.number for connection in self._proxy.connections
        }
        said = []
        for client in self.clients:
            mine = [
                (frame.kind, frame.op, self._below(frame.path), frame.error, frame.size)
                for frame in self._proxy.frames
                if frame.number > mark
                and frame.connection == numbers[client.client_id[0]]
                and frame.direction is Direction.TO_CLIENT
                and frame.kind in (FrameKind.REPLY, FrameKind.EVENT, FrameKind.CONTROL)
            ]
            # The nodes of a session go at once, in no order.
            said.append(sorted(mine, key=str) if unordered else mine)
        return said

    def _below(self, path: str | None) -> str | None:
        return path if path is None else path.removeprefix(self.root)

    def _word(self, result: Any) -> Any:
        match result:
            case ZnodeStat():
                assert 0 < result.ctime <= result.mtime
                zxids = [zxid - self._first for zxid in (result.czxid, result.mzxid, result.pzxid)]
                owner = self._ids.get(result.ephemeralOwner, result.ephemeralOwner)
                fields = (result.version, result.cversion, result.aversion)
                return ("stat", *zxids, owner, *fields, result.dataLength, result.numChildren)
            case str():
                return (self._below(result),)
            case (list() as names, ZnodeStat() as stat):
                return sorted(map(str, names)), self._word(stat)
            case (str() as path, ZnodeStat() as stat):
                return self._below(path), self._word(stat)
            case (data, ZnodeStat() as stat):
                return data, self._word(stat)
            case list():
                return [self._word(each) for each in result]
            case Exception():
                return type(result).__name__
        return result


def outcome(answer: Any) -> Any:
    try:
        result = answer.get(timeout=SOON)
    except KazooException as error:
        return error
    return sorted(result) if _names(result) else result


def _names(result: Any) -> bool:
    return isinstance(result, list) and all(isinstance(each, str) for each in result)


def join(proxy: FaultProxy) -> KazooClient:
    client = KazooClient(proxy.hosts, timeout=30.0)
    client.start(SOON)
    return client


# Requests are tuples: a name, which ASK knows, and what it takes. So hypothesis can show them.


def quiet(event: object) -> None:
    """Watch: what arrives is seen at the proxy."""


def create(client: KazooClient, world: World, where: Any, name: str, mode: int, acl: int) -> Any:
    return client.create_async(
        f"{world.path(where)}/{name}",
        b"data"[:mode],
        ACLS[acl],
        ephemeral=bool(mode & 1),
        sequence=bool(mode & 2),
        include_data=bool(mode & 4),
    )


def transaction(client: KazooClient, world: World, parts: Sequence[Request]) -> Any:
    made = client.transaction()
    for kind, where, *more in parts:
        path = world.path(where)
        if kind == "check":
            made.check(path, more[0])
        elif kind == "delete":
            made.delete(path, more[0])
        elif kind == "set":
            made.set_data(path, b"part", more[0])
        else:
            made.create(
                f"{path}/part-", b"", ephemeral=bool(more[0] & 1), sequence=bool(more[0] & 2)
            )
    return made.commit_async()


ACLS: list[list[ACL]] = [
    OPEN_ACL_UNSAFE,
    READ_ACL_UNSAFE,
    [make_acl("auth", "", all=True)],
    [make_digest_acl("me", "secret", all=True), make_acl("world", "anyone", read=True)],
    [make_digest_acl("me", "secret", read=True, create=True)],
    [make_acl("ip", "0.0.0.0/0", all=True)],
    [make_acl("ip", "203.0.113.0/24", all=True)],
    [make_acl("world", "somebody", all=True)],
    [make_acl("digest", "no digest", all=True)],
    [*OPEN_ACL_UNSAFE, *OPEN_ACL_UNSAFE],
]
ASK: dict[str, Ask] = {
    "create": create,
    "delete": lambda client, world, where, v: client.delete_async(world.path(where), v),
    "exists": lambda client, world, where, w: client.exists_async(world.path(where), w and quiet),
    "get": lambda client, world, where, w: client.get_async(world.path(where), w and quiet),
    "set": lambda client, world, where, data, v: client.set_async(world.path(where), data, v),
    "children": lambda client, world, where, w, s: client.get_children_async(
        world.path(where), w and quiet, s
    ),
    "sync": lambda client, world, where: client.sync_async(world.path(where)),
    "get_acls": lambda client, world, where: client.get_acls_async(world.path(where)),
    "set_acls": lambda client, world, where, acl, v: client.set_acls_async(
        world.path(where), ACLS[acl], v
    ),
    "transaction": transaction,
}

somewhere = st.one_of(st.sampled_from(["", "a", "a/b", "e", "none"]), st.integers(0, 9))
names = st.sampled_from(["a", "b", "e", "n-", "lock-"])
versions = st.sampled_from([-1, -1, 0, 1, 2])
watch = st.sampled_from([None, True])
acls = st.one_of(st.just(0), st.integers(0, len(ACLS) - 1))
modes = st.integers(0, 7)


def asks(name: str, *more: st.SearchStrategy[Any]) -> st.SearchStrategy[Request]:
    return st.tuples(st.just(name), *more)


parts = st.one_of(
    asks("check", somewhere, versions),
    asks("delete", somewhere, versions),
    asks("set", somewhere, versions),
    asks("create", somewhere, modes),
)
requests = st.one_of(
    asks("create", somewhere, names, modes, acls),
    asks("delete", somewhere, versions),
    asks("exists", somewhere, watch),
    asks("get", somewhere, watch),
    asks("set", somewhere, st.sampled_from([b"", b"x", b"longer"]), versions),
    asks("children", somewhere, watch, st.booleans()),
    asks("sync", somewhere),
    asks("get_acls", somewhere),
    asks("set_acls", somewhere, acls, versions),
    asks("transaction", st.lists(parts, max_size=5)),
)
steps = st.tuples(
    st.integers(0, SESSIONS - 1),
    st.one_of(
        st.lists(requests, min_size=1, max_size=5),
        st.lists(requests, min_size=1, max_size=5),
        st.sampled_from([LEAVE, AUTH]),
    ),
)

QUEUE: list[Request] = [("create", "a", "lock-", 7, 0), ("children", "a", None, True)]
A_LOCK: list[tuple[int, Step]] = [
    (0, [("create", "", "a", 0, 0), *QUEUE]),
    (1, QUEUE),
    (2, QUEUE),
    (1, [("get", 0, True), ("get", 1, True), ("children", "a", True, False)]),
    (2, [("exists", 1, True), ("exists", "none", True), ("create", "", "e", 1, 0)]),
    (0, [("transaction", [("check", 0, -1), ("set", "a", 0), ("create", "e", 0)])]),
    (0, [("transaction", [("check", 0, -1), ("set", "a", 0), ("create", "a", 3)])]),
    (
        0,
        [
            ("transaction", [("set", "a", 1), ("set", "a", 2), ("check", "a", 3)]),
            ("get", "a", None),
        ],
    ),
    (0, [("delete", 0, 0), ("delete", 0, -1), ("delete", "a", -1)]),
    (1, LEAVE),
    (0, [("create", "", "a", 0, 0), ("children", "a", True, True), ("delete", "a", -1)]),
    (2, LEAVE),
    (0, [("exists", "a", True), ("delete", "a", -1), ("children", "", None, True)]),
]
PERMISSIONS: list[tuple[int, Step]] = [
    (0, AUTH),
    (0, [("create", "", "a", 0, 2), ("create", "", "e", 4, 3), ("create", "a", "b", 0, 4)]),
    (1, [("get", "a", True), ("get", "e", None), ("set", "e", b"", -1), ("get_acls", "e")]),
    (0, [("get_acls", "e"), ("get_acls", "a"), ("set_acls", "e", 5, 0), ("get_acls", "e")]),
    (1, [("set", "e", b"x", -1), ("set_acls", "e", 6, 0), ("set_acls", "e", 6, 1)]),
    (1, [("get", "e", None), ("delete", "e", -1), ("create", "a", "n-", 3, 0)]),
    (1, [("exists", "a", None), ("transaction", [("check", "a", -1), ("delete", "a/b", -1)])]),
    (2, [("create", "", "a", 0, bad) for bad in range(7, 10)]),
    (2, [("create", "", "n-", 2, bad) for bad in range(7, 10)]),
]
HIDDEN: list[tuple[int, Step]] = [
    (0, AUTH),
    (0, [("create", "", "e", 0, 0), ("exists", "e", True), ("children", "a", True, False)]),
    (1, [("get", "e", True), ("exists", "none", True), ("children", "a", True, False)]),
    (2, [("get", "e", True), ("get", "a", True)]),
    (0, [("set_acls", "e", 4, -1), ("set_acls", "a", 4, -1)]),
    (2, [("exists", "e", True), ("exists", "a", None)]),
    (2, [("delete", "e", -1)]),
    (0, [("create", "a", "n-", 0, 0)]),
    (0, [("create", "", "none", 0, 4), ("delete", "none", -1), ("set_acls", "a", 0, -1)]),
    (1, [("get", "a", True), ("create", "", "e", 0, 0), ("set", "a", b"", -1)]),
]
"""Of what becomes of a node only those are told who may read it at that moment."""


@pytest.fixture
def worlds(servers: tuple[Any, Any]) -> Iterator[Callable[[], list[World]]]:
    """Make a world on each server; sessions that did not end are used again."""
    proxies = [FaultProxy(server, record=1000) for server in servers]
    made: list[list[KazooClient]] = [[join(proxy) for _ in range(SESSIONS)] for proxy in proxies]

    def make() -> list[World]:
        root = f"/{next(_ROOTS)}"
        return [World(root, *both) for both in zip(proxies, made, strict=True)]

    yield make
    for clients in made:
        for client in clients:
            client.stop()
            client.close()
    for proxy in proxies:
        proxy.close()


# kazoo's threads draw random pauses meanwhile, which no story depends on.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
@settings(
    max_examples=repeated(settings().max_examples, 30),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(story=st.lists(steps, min_size=4, max_size=12))
@example(story=A_LOCK)
@example(story=PERMISSIONS)
@example(story=HIDDEN)
def test_the_same_requests_get_the_same_answers(
    story: list[tuple[int, Step]], worlds: Callable[[], list[World]]
) -> None:
    real, fake = worlds()
    begin: Step = [("create", "", "a", 0, 0), ("create", "a", "b", 0, 0)]
    for who, step in [(0, begin), *story]:
        expected = real.play(who, step)
        found = fake.play(who, step)
        assert found == expected, f"session {who}: {step}\n{expected}\n{found}"


# Handshakes, and what no client of ours sends: frame by frame.

FRESH = (0, bytes(16))
CLOSED = "closed"
OPEN, NOBODY = (codec.ACLS.write([Acl(31, *who)]) for who in (("world", "anyone"), ("", "")))
text = codec.TEXT.write


def strings(*values: str) -> bytes:
    return codec.TEXTS.write(values)


class Raw:
    """One connection, byte by byte; what it hears has no ids, transactions or passwords."""

    def __init__(self, hosts: str) -> None:
        host, _, port = hosts.rpartition(":")
        self.link = socket.create_connection((host, int(port)), SOON)
        self.session = FRESH

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exc: object) -> None:
        self.link.close()

    def connect(
        self,
        session: tuple[int, bytes] = FRESH,
        *,
        timeout: int = 4000,
        zxid: int = 0,
        tail: bytes = b"\0",
    ) -> Any:
        """Shake hands; return what was negotiated, and how the answer ends."""
        self.link.sendall(framed(codec.CONNECT.pack((0, zxid, timeout, *session)) + tail))
        body = self._frame()
        if isinstance(body, str):
            return body
        (protocol, negotiated, number, password), at = _GRANTED.unpack(body)
        self.session = number, password
        known = "none" if number == 0 else "same" if number == session[0] else "new"
        return protocol, negotiated, known, len(password), any(password), body[at:]

    def ask(self, xid: int, op: int, body: bytes = b"") -> Any:
        self.link.sendall(framed(ASKED.pack((xid, op)) + body))
        return self.hear()

    def hear(self) -> Any:
        """Return the next frame: its xid, its error, and the rest."""
        body = self._frame()
        if isinstance(body, str):
            return body
        (xid, _, error), at = codec.ANSWERED.unpack(body)
        has_stat = len(body) >= at + 68
        return xid, error, len(body[at:]) if has_stat else body[at:]

    def _frame(self) -> bytes | str:
        try:
            return received(self.link)
        except ConnectionError:  # who closes a socket with unread bytes resets the connection
            return CLOSED


_GRANTED = codec.Record(*codec.CONNECTED.fields[:4])


def handshakes(hosts: str) -> Iterator[Any]:
    for timeout in (-1, 0, 1, 4321, 10**9):
        with Raw(hosts) as raw:
            yield raw.connect(timeout=timeout)
            yield raw.ask(1, Op.CLOSE_SESSION)
            yield raw.hear()
    for tail in (b"", b"\1"):
        with Raw(hosts) as raw:
            yield raw.connect(tail=tail)
            yield raw.ask(1, Op.CLOSE_SESSION)


def sessions(hosts: str) -> Iterator[Any]:
    with Raw(hosts) as first, Raw(hosts) as second, Raw(hosts) as third, Raw(hosts) as fourth:
        yield first.connect()
        yield second.connect(first.session)
        yield first.hear()
        yield second.ask(1, Op.PING)
        yield third.connect((second.session[0], b"wrong".ljust(16)))
        yield third.hear()
        yield second.hear()  # who says a wrong password ends the connection all the same
        yield fourth.connect(first.session)
        yield fourth.ask(1, Op.CLOSE_SESSION)
    with Raw(hosts) as raw:
        yield raw.connect(first.session)
        yield raw.hear()
    with Raw(hosts) as raw:
        yield raw.connect((4711, bytes(16)))


def the_future(hosts: str) -> Iterator[Any]:
    with Raw(hosts) as raw:
        yield raw.connect(zxid=2**40)


def broken(hosts: str) -> Iterator[Any]:
    for bad in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", framed(b""), framed(b"short")):
        with Raw(hosts) as raw:
            raw.link.sendall(bad)
            yield raw.hear()
        with Raw(hosts) as raw:
            yield raw.connect()
            raw.link.sendall(bad)
            yield raw.hear()


def sizes(hosts: str) -> Iterator[Any]:
    """Send as much as a request may have, and one byte more."""
    for size in (0xFFFFF, 0xFFFFF + 1):
        with Raw(hosts) as raw:
            yield raw.connect()
            path = text("/large")
            rest = OPEN + INT.write(1)
            data = bytes(size - 8 - len(path) - 4 - len(rest))
            raw.link.settimeout(SOON)
            try:
                raw.link.sendall(framed(ASKED.pack((1, Op.CREATE)) + path + framed(data) + rest))
            except (ConnectionResetError, BrokenPipeError):
                yield CLOSED
            else:
                yield raw.hear()


def misfits(hosts: str) -> Iterator[Any]:
    for op, body in (
        (Op.CREATE, b""),
        (Op.CREATE, text("/x") + b"\0\0"),
        (Op.GET_DATA, b"\0\0\0\x09/x"),
        (Op.EXISTS, text("/x")),
        (Op.EXISTS, text("/a\0b") + b"\0"),
        (Op.GET_DATA, text("no slash") + b"\0"),
        (Op.MULTI, b"\0\0\0\x01\0\0"),
        (Op.MULTI, b"\0\0\0\x63\0\0\0\0\0"),
        (Op.GET_DATA, text("") + b"\0"),
        (Op.SYNC, text("any thing")),
        (Op.EXISTS, text("/zookeeper/config") + b"\0"),
        (Op.CREATE, text("/zookeeper/config/mine") + framed(b"") + OPEN + INT.write(0)),
        (Op.CREATE, text("/x") + framed(b"") + NOBODY + INT.write(0)),
    ):
        with Raw(hosts) as raw:
            yield raw.connect()
            yield op, body, raw.ask(5, op, body)
            yield raw.ask(6, Op.PING)


def watches(hosts: str) -> Iterator[Any]:
    """Place watches again after a reconnection."""
    lists = strings("/again", "/none"), strings("/again", "/never"), strings("/again", "/none")
    with Raw(hosts) as raw:
        yield raw.connect()
        yield raw.ask(1, Op.CREATE_CONTAINER, text("/again") + framed(b"") + OPEN + INT.write(4))
        raw.link.sendall(framed(ASKED.pack((-8, Op.SET_WATCHES)) + LONG.write(0) + b"".join(lists)))
        yield [raw.hear() for _ in range(6)]
        yield raw.ask(-8, Op.SET_WATCHES, LONG.write(2**60) + strings("/again") * 3)
        yield raw.hear()
        raw.link.sendall(framed(ASKED.pack((8, Op.DELETE)) + text("/again") + b"\xff" * 4))
        yield [raw.hear() for _ in range(2)]


def unknown(hosts: str) -> Iterator[Any]:
    with Raw(hosts) as raw:
        yield raw.connect()
        yield raw.ask(5, 999)
        yield raw.hear()


def proofs(hosts: str) -> Iterator[Any]:
    null = INT.write(-1)
    for scheme, proof in (
        ("digest", framed(b"me:secret")),
        ("digest", framed(b"")),
        ("digest", null),
        ("ip", framed(b"")),
        ("ip", null),
        ("none", framed(b"x")),
        ("world", framed(b"x")),
    ):
        with Raw(hosts) as raw:
            yield raw.connect()
            packet = INT.write(0) + text(scheme) + proof
            yield scheme, raw.ask(-4, Op.AUTH, packet)
            yield raw.ask(6, Op.PING)


def words(hosts: str) -> Iterator[Any]:
    host, _, port = hosts.rpartition(":")
    for word in ("ruok", "isro"):
        yield four_letter(host, int(port), word)
    for word in ("srvr", "stat", "conf", "mntr"):
        lines = four_letter(host, int(port), word).splitlines()
        yield word, {"version", "tickTime", "Mode"} & {line.split(":")[0] for line in lines}
        yield [line for line in lines if line.startswith(("tick", "minS", "maxS", "Mode"))]


@pytest.mark.parametrize(
    "scene",
    [handshakes, sessions, the_future, broken, sizes, misfits, watches, unknown, proofs, words],
    ids=lambda scene: scene.__name__,
)
def test_connections_go_alike(
    servers: tuple[Any, Any], scene: Callable[[str], Iterator[Any]]
) -> None:
    for server in servers:  # so that both have seen enough transactions for any of the scenes
        with kazoo_client(server.hosts) as client:
            client.ensure_path("/zk/alike")
    real, fake = (list(scene(server.hosts)) for server in servers)
    differ = [pair for pair in zip_longest(real, fake) if pair[0] != pair[1]]
    assert not differ
