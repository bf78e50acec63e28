"""The embedded server's state machine, on a clock that the tests advance."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.security import make_digest_acl_credential

from zklock._wire.codec import (
    EPHEMERAL,
    SEQUENTIAL,
    Acl,
    Op,
    Stat,
)
from zklock.testing.zookeeper.machine import Machine, Rules
from zklock.testing.zookeeper.messages import (
    OPEN,
    Answer,
    Auth,
    Check,
    Close,
    Code,
    Connect,
    Connected,
    Create,
    Delete,
    Event,
    EventKind,
    Exists,
    GetAcl,
    GetChildren,
    GetData,
    HangUp,
    Message,
    Multi,
    Perms,
    Ping,
    RemoveWatches,
    Request,
    SetAcl,
    SetData,
    SetWatches,
    Sync,
    Unknown,
    Unreadable,
    WatchKind,
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
    def test_the_root_looks_as_in_a_new_server(self, world: World) -> None:
        stat = world.do("a", Exists("/"))
        assert stat == Stat(0, 0, 0, 0, 0, -1, 0, 0, 0, 1, 0)
        assert world.do("a", GetChildren("/"))[0] == ["zookeeper"]

    def test_a_node_has_the_zxid_of_its_creation(self, world: World) -> None:
        assert world.do("a", Create("/x", b"data"))[0] == "/x"
        data = world.do("a", GetData("/x"))
        assert data == (b"data", Stat(3, 3, 10_000, 10_000, 0, 0, 0, 0, 4, 0, 3))

    def test_null_is_not_empty(self, world: World) -> None:
        world.do("a", Create("/x", None))
        assert world.do("a", GetData("/x"))[0] is None

    def test_writes_count_versions(self, world: World) -> None:
        world.do("a", Create("/x", b""))
        world.now += 5
        stat = world.do("a", SetData("/x", b"new", 0))
        assert (stat.version, stat.mzxid, stat.mtime, stat.czxid) == (1, 4, 10_005, 3)
        assert world.fails("a", SetData("/x", b"", 0)) is Code.BAD_VERSION
        assert world.fails("a", Delete("/x", 0)) is Code.BAD_VERSION
        assert world.do("a", Delete("/x", 1)) == ()

    def test_create2_tells_the_stat(self, world: World) -> None:
        path, stat = world.do("a", Create("/x", b"12", op=Op.CREATE2))
        assert (path, stat) == ("/x", world.do("a", Exists("/x")))

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
            (RemoveWatches("/none", WatchKind.ANY), Code.NO_WATCHER),
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

    def test_sync_tells_the_path(self, world: World) -> None:
        assert world.do("a", Sync("/anything")) == "/anything"

    def test_what_this_server_does_not_have_ends_the_connection(self, world: World) -> None:
        world.machine.request("a", 9, Unknown(999), world.now)
        assert world.take("a") == [Answer(9, 2, Code.UNIMPLEMENTED), HangUp()]

    def test_nodes_with_children_stay(self, world: World) -> None:
        world.do("a", Create("/x", b""))
        world.do("a", Create("/x/y", b""))
        assert world.fails("a", Delete("/x")) is Code.NOT_EMPTY

    def test_ephemeral_nodes_have_no_children(self, world: World) -> None:
        world.do("a", ephemeral("/x"))
        assert world.fails("a", Create("/x/y", b"")) is Code.NO_CHILDREN_FOR_EPHEMERALS


class TestNumbers:
    def test_every_child_counts(self, world: World) -> None:
        world.do("a", Create("/p", b""))
        assert world.do("a", numbered("/p/n-"))[0] == "/p/n-0000000000"
        world.do("a", Create("/p/plain", b""))
        world.do("a", Delete("/p/plain"))
        assert world.do("a", numbered("/p/n-"))[0] == "/p/n-0000000002"
        assert world.do("a", numbered("/p/"))[0] == "/p/0000000003"

    def test_the_stat_also_counts_those_that_went(self, world: World) -> None:
        world.do("a", Create("/p", b""))
        world.do("a", Create("/p/x", b""))
        assert world.do("a", Exists("/p")).cversion == 1
        world.do("a", Delete("/p/x"))
        stat = world.do("a", Exists("/p"))
        assert (stat.cversion, stat.numChildren, stat.pzxid) == (2, 0, 5)

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


class TestTransactions:
    def test_all_or_nothing(self, world: World) -> None:
        world.do("a", Create("/x", b"0"))
        before = {path: node.stat() for path, node in world.machine.tree.nodes.items()}
        world.do("b", GetData("/x", True))
        parts = (
            Create("/y", b""),
            Create("/y/z", b""),
            SetData("/x", b"1"),
            Delete("/y/z"),
            Delete("/none"),
            Check("/x"),
            Delete("/x"),
        )
        results = world.do("a", Multi(parts))
        codes = [code for _, (code,) in results]
        assert codes == [0, 0, 0, 0, Code.NO_NODE, *[Code.RUNTIME_INCONSISTENCY] * 2]
        assert {path: node.stat() for path, node in world.machine.tree.nodes.items()} == before
        assert world.take("b") == []

    def test_each_part_sees_those_before_it(self, world: World) -> None:
        parts = (
            Create("/y", b"", op=Op.CREATE2),
            SetData("/y", b"1", 0),
            Check("/y", 1),
            Delete("/y", 1),
        )
        (created, (path, before)), (written, (after,)), *others = world.do("a", Multi(parts))
        assert (created, path, written) == (Op.CREATE2, "/y", Op.SET_DATA)
        assert (before.version, after.version) == (0, 1)
        assert others == [(Op.CHECK, ()), (Op.DELETE, ())]
        assert world.machine.zxid == 3

    def test_a_check_wants_a_version(self, world: World) -> None:
        world.do("a", Create("/x", b""))
        results = world.do("a", Multi((Check("/x", 1), SetData("/x", b""))))
        codes = [(Op.ERROR, (code,)) for code in (Code.BAD_VERSION, Code.RUNTIME_INCONSISTENCY)]
        assert results == codes

    def test_nothing_at_all_is_a_transaction(self, world: World) -> None:
        assert world.do("a", Multi(())) == []


class TestWatches:
    def test_they_fire_once_and_before_the_answer(self, world: World) -> None:
        world.do("a", Create("/x", b""))
        world.do("a", GetData("/x", True))
        world.machine.request("a", 1, SetData("/x", b"1"), world.now)
        event, answer = world.take("a")
        assert event == Event(EventKind.DATA_CHANGED, "/x")
        assert isinstance(answer, Answer)
        world.do("a", SetData("/x", b"2"))
        assert world.take("a") == []

    def test_who_waits_for_a_node_hears_of_its_creation(self, world: World) -> None:
        assert world.fails("b", Exists("/x", True)) is Code.NO_NODE
        world.do("a", Create("/x", b""))
        assert world.take("b") == [Event(EventKind.CREATED, "/x")]

    def test_a_read_of_nothing_leaves_no_watch(self, world: World) -> None:
        world.fails("b", GetData("/x", True))
        world.fails("b", GetChildren("/x", True))
        world.do("a", Create("/x", b""))
        assert world.take("b") == []

    def test_children(self, world: World) -> None:
        world.do("b", GetChildren("/", True))
        world.do("a", Create("/x", b""))
        world.do("a", Create("/y", b""))
        assert world.take("b") == [Event(EventKind.CHILDREN_CHANGED, "/")]

    def test_a_deletion_is_told_once_of_both_sorts(self, world: World) -> None:
        world.do("a", Create("/x", b""))
        world.do("b", GetData("/x", True))
        world.do("b", GetChildren("/x", True))
        world.do("b", GetChildren("/", True))
        world.do("a", Delete("/x"))
        assert world.take("b") == [
            Event(EventKind.DELETED, "/x"),
            Event(EventKind.CHILDREN_CHANGED, "/"),
        ]

    def test_they_end_with_their_connection(self, world: World) -> None:
        world.do("b", GetChildren("/", True))
        world.machine.lost("b")
        world.do("a", Create("/x", b""))
        assert world.take("b") == []
        assert world.machine.watches.by_path() == {}

    def test_they_are_taken_along_to_a_new_connection(self, world: World) -> None:
        for path in ("/same", "/written", "/parent"):
            world.do("a", Create(path, b""))
        seen = world.machine.zxid
        world.do("a", SetData("/written", b""))
        world.do("a", Create("/parent/child", b""))
        world.do("a", Create("/made", b""))
        data, exists = ("/same", "/written", "/gone"), ("/made", "/never")
        world.do("b", SetWatches(seen, data, exists, ("/same", "/parent", "/gone")))
        assert world.take("b") == [
            Event(EventKind.DATA_CHANGED, "/written"),
            Event(EventKind.DELETED, "/gone"),
            Event(EventKind.CREATED, "/made"),
            Event(EventKind.CHILDREN_CHANGED, "/parent"),
            Event(EventKind.DELETED, "/gone"),
        ]
        assert world.machine.watches.by_path() == {"/same": ["b"], "/never": ["b"]}

    def test_they_can_be_removed(self, world: World) -> None:
        world.do("b", GetData("/", True))
        world.do("b", RemoveWatches("/", WatchKind.DATA, Op.CHECK_WATCHES))
        assert world.fails("b", RemoveWatches("/", WatchKind.CHILDREN)) is Code.NO_WATCHER
        world.do("b", RemoveWatches("/", WatchKind.ANY))
        assert world.fails("b", RemoveWatches("/", WatchKind.ANY)) is Code.NO_WATCHER


class TestAcls:
    OURS = (Acl(Perms.ALL, "auth", ""),)

    def test_only_who_may_does(self, world: World) -> None:
        world.do("a", Auth("digest", b"me:secret"))
        world.do("a", Create("/x", b"", self.OURS))
        world.do("a", Create("/x/y", b""))
        for request in (
            GetData("/x"),
            GetChildren("/x"),
            SetData("/x", b""),
            Create("/x/z", b""),
            Delete("/x/y"),
            GetAcl("/x"),
            SetAcl("/x", OPEN),
            Multi((Check("/x"),)),
        ):
            if isinstance(request, Multi):
                assert world.do("b", request)[0] == (Op.ERROR, (Code.NO_AUTH,))
            else:
                assert world.fails("b", request) is Code.NO_AUTH
        world.do("b", Auth("digest", b"me:secret"))
        assert world.do("b", GetData("/x"))[0] == b""

    def test_digests_are_shown_to_who_may_change_them(self, world: World) -> None:
        world.do("a", Auth("digest", b"me:secret"))
        open_too = (*self.OURS, Acl(Perms.READ, "world", "anyone"))
        world.do("a", Create("/x", b"", open_too))
        (own, _), _ = world.do("a", GetAcl("/x"))
        (hidden, _), _ = world.do("b", GetAcl("/x"))
        assert own.id == make_digest_acl_credential("me", "secret")
        assert hidden == Acl(Perms.ALL, "digest", "me:x")

    def test_addresses(self, world: World) -> None:
        world.do("a", Create("/here", b"", (Acl(Perms.READ, "ip", "127.0.0.0/8"),)))
        world.do("a", Create("/there", b"", (Acl(Perms.READ, "ip", "10.0.0.1"),)))
        assert world.do("a", GetData("/here"))[0] == b""
        assert world.fails("a", GetData("/there")) is Code.NO_AUTH

    def test_an_acl_has_a_version(self, world: World) -> None:
        world.do("a", Create("/x", b""))
        stat = world.do("a", SetAcl("/x", OPEN, 0))
        assert (stat.aversion, stat.version) == (1, 0)
        assert world.fails("a", SetAcl("/x", OPEN, 0)) is Code.BAD_VERSION

    def test_who_may_not_read_a_node_may_not_ask_for_it(self, world: World) -> None:
        world.do("a", Create("/x", b"", (Acl(Perms.CREATE, "world", "anyone"),)))
        assert world.fails("a", Exists("/x", watch=True)) is Code.NO_AUTH
        assert not world.machine.watches.of("/x", "a", WatchKind.DATA)

    def test_nobody_may_change_the_configuration(self, world: World) -> None:
        assert world.do("a", Exists("/zookeeper/config")).aversion == -1
        for request in (SetData("/zookeeper/config", b""), Create("/zookeeper/config/x", b"")):
            assert world.fails("a", request) is Code.NO_AUTH

    @pytest.mark.parametrize(("scheme", "proof"), [("kerberos", b"me"), ("digest", None)])
    def test_a_false_proof_ends_the_connection(
        self, world: World, scheme: str, proof: bytes | None
    ) -> None:
        world.machine.request("a", -4, Auth(scheme, proof), world.now)
        assert world.take("a") == [Answer(-4, 0, Code.AUTH_FAILED), HangUp()]


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
        assert world.take("b") == [Event(EventKind.DELETED, "/x")]
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

    def test_one_moves_to_its_newest_connection(self, world: World) -> None:
        opened = world.connect("c")
        world.do("c", GetChildren("/", True))
        world.connect("d", session=opened.session, password=opened.password)
        assert world.take("c") == [HangUp()]
        world.do("d", Create("/x", b""))
        world.machine.request("c", 1, Create("/late", b""), world.now)
        world.machine.lost("c")
        assert world.take("c") == []
        assert "/late" not in world.machine.tree.nodes
        world.do("d", Ping())

    @pytest.mark.parametrize("wrong", ["password", "session"])
    def test_one_that_is_not_known_is_over(self, world: World, wrong: str) -> None:
        opened = world.connect("c")
        known = {"session": opened.session, "password": opened.password}
        known[wrong] = {"session": 4711, "password": b"wrong".ljust(16)}[wrong]
        answer = world.connect("d", **known)
        assert answer == Connected(0, 0, bytes(16), False)
        assert world.take("d") == [HangUp()]

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

    def test_a_client_that_knows_more_is_sent_away(self, world: World) -> None:
        world.machine.connect("c", Connect(3, 4000, 0, bytes(16)), world.now, "127.0.0.1")
        assert world.take("c") == [HangUp()]

    def test_a_read_only_server(self, world: World) -> None:
        world.do("a", Create("/x", b"1"))
        world.machine.read_only = True
        world.machine.connect("c", Connect(0, 4000, 0, bytes(16)), world.now, "127.0.0.1")
        assert world.take("c") == [HangUp()]
        assert world.connect("d", read_only=True).read_only
        assert world.do("d", GetData("/x"))[0] == b"1"
        for request in (Delete("/x"), Multi((Delete("/x"),)), Sync("/"), SetData("/x", b"")):
            assert world.fails("d", request) is Code.NOT_READ_ONLY

    def test_a_throttled_request_is_not_carried_out(self, world: World) -> None:
        world.machine.throttle("a", 3, world.now)
        assert world.take("a") == [Answer(3, 2, Code.THROTTLED_OP)]

    def test_one_can_be_ended_by_hand(self, world: World) -> None:
        opened = world.connect("c")
        world.do("c", ephemeral("/x"))
        assert world.machine.expire(opened.session, world.now)
        assert not world.machine.expire(opened.session, world.now)
        assert world.take("c") == [HangUp()]
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
