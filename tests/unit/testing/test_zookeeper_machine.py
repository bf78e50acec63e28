"""The embedded server's state machine, on a clock that the tests advance."""

from __future__ import annotations

from typing import Any

import pytest

from zklock.testing.zookeeper.codec import EPHEMERAL, SEQUENTIAL, Acl, Op
from zklock.testing.zookeeper.machine import Machine, Rules
from zklock.testing.zookeeper.messages import (
    OPEN,
    Answer,
    Close,
    Code,
    Connect,
    Connected,
    Create,
    Delete,
    EventKind,
    Exists,
    GetAcl,
    GetChildren,
    GetData,
    HangUp,
    Message,
    Multi,
    Ping,
    Request,
    SetAcl,
    SetData,
    Sync,
    Unreadable,
    WatchEvent,
)
from zklock.testing.zookeeper.tree import COUNTER_END

TICK = 500


class World:
    """A machine, its clock, and what each connection was told."""

    def __init__(self, **rules: Any) -> None:
        self.now = 10_000
        self.machine: Machine[str] = Machine(Rules(tick_time=TICK, **rules), self.now)
        self.told: dict[str, list[Message]] = {}

    def connect(self, name: str, **fields: Any) -> Connected:
        request = Connect(0, 4000, 0, bytes(16))._replace(**fields)
        self.machine.connect(name, request, self.now, "127.0.0.1")
        answer, *rest = self.take(name)
        self.told[name] = rest
        assert isinstance(answer, Connected)
        return answer

    def ask(self, name: str, request: Request) -> Answer:
        """Send a request; return its answer, which comes last."""
        self.machine.request(name, 7, request, self.now)
        *before, answer = self.take(name)
        self.told.setdefault(name, []).extend(before)
        assert isinstance(answer, Answer), answer
        assert answer.xid == (-2 if isinstance(request, Ping) else 7)
        return answer

    def do(self, name: str, request: Request) -> Any:
        """Send a request that succeeds; return what its answer holds."""
        answer = self.ask(name, request)
        assert answer.code == Code.OK, Code(answer.code)
        return answer.body[0] if len(answer.body) == 1 else answer.body

    def fails(self, name: str, request: Request) -> Code:
        answer = self.ask(name, request)
        assert answer.body == ()
        return Code(answer.code)

    def take(self, name: str) -> list[Message]:
        """Return what this connection is told, and has not been shown."""
        while self.machine.outbox:
            connection, message = self.machine.outbox.popleft()
            self.told.setdefault(connection, []).append(message)
        return self.told.pop(name, [])

    def advance(self, milliseconds: int) -> None:
        """Let time pass, step by step."""
        end = self.now + milliseconds
        while (due := self.machine.due()) <= end:
            self.now = max(self.now, due)
            self.machine.advance(self.now)
        self.now = end


@pytest.fixture
def world() -> World:
    made = World()
    made.connect("a")
    made.connect("b")
    return made


def ephemeral(path: str) -> Create:
    return Create(path, b"", OPEN, EPHEMERAL)


def numbered(path: str) -> Create:
    return Create(path, b"", OPEN, EPHEMERAL | SEQUENTIAL)


class TestNodes:
    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (Create("/none/x", b""), Code.NO_NODE),
            (Create("/zookeeper", b""), Code.NODE_EXISTS),
            (Create("/", b""), Code.NODE_EXISTS),
            (Create("no-slash", b""), Code.BAD_ARGUMENTS),
            (Create("/x/", b""), Code.NO_NODE),
            (Create("//x", b""), Code.BAD_ARGUMENTS),
            (Create("/..", b""), Code.BAD_ARGUMENTS),
            (Create("/.", b""), Code.BAD_ARGUMENTS),
            (Create("/a\x01", b""), Code.BAD_ARGUMENTS),
            (Create("/\U0001f511", b""), Code.BAD_ARGUMENTS),
            (Create("/x", b"", mode=99), Code.BAD_ARGUMENTS),
            (Create("/x", b"", mode=5), Code.UNIMPLEMENTED),
            (Create("/x", b"", ()), Code.INVALID_ACL),
            (Create("/x", b"", (Acl(31, "world", "me"),)), Code.INVALID_ACL),
            (Create("/x", b"", (Acl(31, "auth", ""),)), Code.INVALID_ACL),
            (Create("/x", b"", (Acl(31, "ip", "no address"),)), Code.INVALID_ACL),
            (Create("/x", b"", (Acl(31, "digest", "nobody"),)), Code.INVALID_ACL),
            (Delete("/none"), Code.NO_NODE),
            (Delete("/"), Code.BAD_ARGUMENTS),
            (Delete("/zookeeper"), Code.BAD_ARGUMENTS),
            (SetData("/none", b""), Code.NO_NODE),
            (SetData("none", b""), Code.BAD_ARGUMENTS),
            (GetData("/none"), Code.NO_NODE),
            (GetChildren("/none"), Code.NO_NODE),
            (GetAcl("/none"), Code.NO_NODE),
            (SetAcl("/none", OPEN), Code.NO_NODE),
            (Unreadable(Op.CREATE), Code.MARSHALLING_ERROR),
        ],
    )
    def test_refusals(self, world: World, request_: Request, code: Code) -> None:
        assert world.fails("a", request_) is code

    def test_a_refused_write_has_a_zxid_and_a_read_has_none(self, world: World) -> None:
        assert world.machine.zxid == 2
        world.fails("a", Delete("/none"))
        assert world.machine.zxid == 3
        world.do("a", Sync("/"))
        world.do("a", Ping())
        assert world.ask("a", GetChildren("/")).zxid == 3


class TestNumbers:
    def test_the_counter_stays_at_its_end(self, world: World) -> None:
        world.do("a", Create("/p", b""))
        world.machine.set_child_counter("/p", COUNTER_END)
        assert world.do("a", numbered("/p/n-"))[0] == "/p/n-2147483647"
        assert world.fails("a", numbered("/p/n-")) is Code.NODE_EXISTS
        assert world.do("a", numbered("/p/m-"))[0] == "/p/m-2147483647"

    def test_a_transaction_counts_past_the_end(self, world: World) -> None:
        world.do("a", Create("/p", b""))
        world.machine.set_child_counter("/p", COUNTER_END)
        results = world.do("a", Multi((numbered("/p/n-"), numbered("/p/n-"))))
        paths = [body[0] for _, body in results]
        assert paths == ["/p/n-2147483647", "/p/n--2147483648"]
        assert world.do("a", numbered("/p/m-"))[0] == "/p/m-2147483647"


class TestWatches:
    def test_they_end_with_their_connection(self, world: World) -> None:
        world.do("b", GetChildren("/", True))
        world.machine.lost("b")
        world.do("a", Create("/x", b""))
        assert world.take("b") == []
        assert world.machine.watches.by_path() == {}


class TestSessions:
    def test_timeouts_are_negotiated(self) -> None:
        world = World()
        assert world.connect("a", timeout=1).timeout == 2 * TICK
        assert world.connect("b", timeout=10**6).timeout == 20 * TICK
        bounded = World(min_session_timeout=3000, max_session_timeout=5000)
        assert bounded.connect("a", timeout=1).timeout == 3000
        assert bounded.connect("b", timeout=10**6).timeout == 5000

    @pytest.mark.parametrize("start", [10_000, 10_001, 10_499])
    def test_one_ends_at_the_first_tick_after_its_timeout(self, start: int) -> None:
        world = World()
        world.now = start
        world.connect("a", timeout=1000)
        world.do("a", ephemeral("/x"))
        world.advance(11_500 - start - 1)
        assert "/x" in world.machine.tree.nodes
        world.advance(1)
        assert "/x" not in world.machine.tree.nodes
        assert world.take("a") == [HangUp()]

    def test_every_request_keeps_it(self, world: World) -> None:
        for _ in range(10):
            world.advance(3000)
            world.do("a", Ping())
        assert world.take("b") == [HangUp()]

    def test_an_end_is_told_of(self, world: World) -> None:
        world.do("a", ephemeral("/x"))
        world.do("b", GetData("/x", True))
        world.machine.request("a", 1, Close(), world.now)
        assert world.take("a") == [Answer(1, 4, Code.OK), HangUp()]
        assert world.take("b") == [WatchEvent(EventKind.DELETED, "/x")]
        world.machine.request("a", 1, Create("/late", b""), world.now)
        assert world.take("a") == []
        assert "/late" not in world.machine.tree.nodes

    def test_one_lives_on_without_a_connection(self, world: World) -> None:
        opened = world.connect("c")
        world.do("c", ephemeral("/x"))
        world.machine.lost("c")
        world.advance(2000)
        again = world.connect("d", session=opened.session, password=opened.password)
        assert again == opened
        world.do("d", Delete("/x"))

    def test_its_timeout_is_negotiated_anew(self) -> None:
        world = World(max_session_timeout=10_000)
        opened = world.connect("a", timeout=10_000)
        world.do("a", ephemeral("/x"))
        world.machine.restart(Rules(tick_time=TICK, max_session_timeout=2000), world.now)
        world.advance(9000)  # until then, it is the timeout of its creation
        again = world.connect("b", session=opened.session, password=opened.password, timeout=10_000)
        assert again.timeout == 2000
        world.advance(2500)
        assert "/x" not in world.machine.tree.nodes


def test_containers_go_once_they_are_through() -> None:
    world = World(container_check=1000)
    world.connect("a")
    world.do("a", Create("/used", b"", op=Op.CREATE_CONTAINER))
    world.do("a", Create("/new", b"", op=Op.CREATE_CONTAINER))
    world.do("a", Create("/used/x", b""))
    world.advance(1000)
    world.do("a", Delete("/used/x"))
    assert "/used" in world.machine.tree.nodes
    world.advance(1000)
    assert "/used" not in world.machine.tree.nodes
    assert "/new" in world.machine.tree.nodes
    assert world.do("a", Exists("/new")).ephemeralOwner == -(2**63)
