"""What an election's own znode says of its members, and members that change it at the same time."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.fakes import Client, FakeGrant, Server, Written, outcome, settle, uuids
from zklock._core.attempt import Attempt
from zklock._election.candidate import Candidacy
from zklock._recipes import lock, names, nodedata, notes, queries
from zklock._recipes.notes import Notes
from zklock.errors import ZkLockError

PATH = "/elections/report"


@pytest.mark.parametrize("others", [b"", b"10.0.0.7", b"a\0zklock=b\0c", bytes(range(256))])
@pytest.mark.parametrize("payloads", [{}, {"a": b""}, {"a": bytes(range(256)), "b": b"x"}])
@pytest.mark.parametrize("asked", [(), ("a",), ("c", "b")])
def test_notes_are_read_as_they_were_written(
    others: bytes, payloads: dict[str, bytes], asked: tuple[str, ...]
) -> None:
    said = Notes(others, payloads, frozenset(asked))
    assert notes.parse(bytes(said)) == said


@pytest.mark.parametrize(
    "data",
    [
        b"\0zklock=",
        b"\0zklock=[]",
        b"\0zklock={}",
        b'\0zklock={"payloads": 7}',
        b'\0zklock={"payloads": {"a": 7}}',
        b'\0zklock={"payloads": {"a": "no base64!"}}',
        b'\0zklock={"asked": ["a"]}',
        b'\0zklock={"payloads": {}, "asked": "a"}',
        b'\0zklock={"payloads": {}, "asked": [7]}',
        b'\0zklock={"payloads": {}, "asked": [["a"]]}',
        b"\0zklock=" + b"[" * 100_000,
        b"\0zklock=\xff",
    ],
)
def test_what_cannot_be_read_is_not_ours(data: bytes) -> None:
    found = notes.parse(b"theirs" + data)
    assert found == Notes(b"theirs" + data)
    later = found.saying("a", b"x", ["a"])
    assert notes.parse(bytes(later)) == later
    assert bytes(later).startswith(b"theirs" + data)


def test_notes_of_those_who_are_gone_go_with_the_next_change() -> None:
    said = Notes(b"", {"a": b"1", "b": b"2"}, frozenset("ab"))
    assert said.saying("c", b"3", ["b", "c"]) == Notes(b"", {"b": b"2", "c": b"3"}, frozenset("b"))
    assert said.asking("c", ["b", "c"]) == Notes(b"", {"b": b"2"}, frozenset("bc"))


class World:
    """An election with members of these identities."""

    def __init__(self, *identities: str, settled: bool = True) -> None:
        self.server = Server()
        self.server.make_path(PATH)
        made = uuids()
        self.clients = [Client(self.server) for _ in identities]
        self.members: list[Candidacy] = []
        self.attempts: list[Attempt[FakeGrant | None]] = []
        for client, identity in zip(self.clients, identities, strict=True):
            data = bytes(nodedata.NodeData(identity.encode(), payload=b"first"))
            member = Candidacy(PATH, data, names.Kind.LATCH, new_uuid=lambda: next(made))
            self.members.append(member)
            self.attempts.append(client.acquire(member).start())
            if settled:
                self.settle()

    def settle(self) -> None:
        settle(self.clients)

    def says(self, at: int, payload: bytes) -> Attempt[Any]:
        """Have a member change its payload, and tell it."""
        self.members[at].says(payload)
        return self.clients[at].attempt(self.members[at].announce).start()

    @property
    def payloads(self) -> dict[str, bytes]:
        """What an onlooker reads, by identity."""
        client = Client(self.server)
        asked = client.attempt(partial(queries.contenders, PATH)).start()
        settle([client])
        return {one.identity: one.payload for one in outcome(asked)}


def test_everybody_keeps_the_place_and_nobody_is_woken() -> None:
    world = World("a", "b", "c")
    sent = [len(client.sent) for client in world.clients]
    told = [world.says(0, b"A"), world.says(2, b"C")]
    world.settle()
    assert [outcome(each) for each in told] == [None, None]
    assert world.payloads == {"a": b"A", "b": b"first", "c": b"C"}
    assert list(world.payloads) == ["a", "b", "c"]
    assert len(world.clients[1].sent) == sent[1]
    assert [grant.path for grant in world.server.grants] == [world.members[0].node]
    told = [world.says(1, b"")]
    world.settle()
    assert world.payloads == {"a": b"A", "b": b"", "c": b"C"}


@pytest.mark.parametrize("served", range(8))
def test_a_change_while_the_node_is_being_created(served: int) -> None:
    world = World("a", settled=False)
    client = world.clients[0]
    for _ in range(served):
        client.serve()
        client.deliver()
    world.says(0, b"later")
    world.settle()
    assert world.payloads == {"a": b"later"}
    assert outcome(world.attempts[0]) is not None


@pytest.mark.parametrize("moment", range(10))
@pytest.mark.parametrize("carried_out", [0, 1, 2])
def test_a_lost_connection_loses_no_change(moment: int, carried_out: int) -> None:
    world = World("a", "b")
    client = world.clients[1]
    told = world.says(1, b"later")
    other = world.says(0, b"also")
    for _ in range(moment):
        client.serve()
        client.deliver()
    client.lose_connection(carried_out=carried_out)
    world.settle()
    assert outcome(told) is None
    assert outcome(other) is None
    assert world.payloads == {"a": b"also", "b": b"later"}


@pytest.mark.parametrize("moment", range(10))
def test_a_new_session_says_the_new_payload(moment: int) -> None:
    world = World("a", "b")
    client = world.clients[1]
    world.says(1, b"later")
    for _ in range(moment):
        client.serve()
        client.deliver()
    world.server.expire(client.session)
    world.settle()
    assert world.payloads == {"a": b"first", "b": b"later"}


def released(world: World, at: int) -> Attempt[Any]:
    """Have a leader or a waiting member leave."""
    if world.members[at].granted:
        return world.clients[at].attempt(partial(lock.leave, world.members[at])).start()
    world.attempts[at].cancel()
    return world.attempts[at]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_who_leaves_takes_its_note_along(order: tuple[int, ...]) -> None:
    """What others have written there stays."""
    world = World("a", "b", "c")
    world.server.commit(Written(PATH, b"10.0.0.7"))
    for at in (0, 1):
        world.says(at, b"changed")
        world.settle()
    there = [0, 1, 2]
    for at in order:
        sent = len(world.clients[at].sent)
        assert outcome_of(world, released(world, at)) is None
        there.remove(at)
        noted = notes.parse(world.server.tree.nodes[PATH].data)
        assert noted.others == b"10.0.0.7"
        names_there = {(world.members[each].node or "").rpartition("/")[2] for each in there}
        assert noted.payloads.keys() <= names_there
        if at == 2:
            assert len(world.clients[at].sent) == sent + 1, "it has announced nothing"
    assert world.server.tree.nodes[PATH].data == b"10.0.0.7"


def outcome_of(world: World, attempt: Attempt[Any]) -> Any:
    world.settle()
    return outcome(attempt)


def test_the_notes_of_one_that_crashed_go_with_the_next_that_leaves() -> None:
    world = World("a", "b")
    for at in (0, 1):
        world.says(at, b"changed")
        world.settle()
    world.server.delete(world.members[0].node or "")  # as the end of its session does
    world.settle()
    assert outcome_of(world, released(world, 1)) is None
    assert world.server.tree.nodes[PATH].data == b""


@pytest.mark.parametrize("moment", range(8))
def test_two_that_leave_at_the_same_time_leave_nothing(moment: int) -> None:
    world = World("a", "b")
    for at in (0, 1):
        world.says(at, b"changed")
        world.settle()
    gone = [released(world, 0)]
    for _ in range(moment):
        world.clients[0].serve()
        world.clients[0].deliver()
    gone.append(released(world, 1))
    world.settle()
    assert [outcome(each) for each in gone] == [None, None]
    assert world.server.tree.nodes[PATH].data == b""


@pytest.mark.parametrize("moment", range(8))
@pytest.mark.parametrize("carried_out", [0, 1, 2])
def test_a_lost_connection_holds_up_nobody_who_leaves(moment: int, carried_out: int) -> None:
    """The note may stay then; nothing else does, and nobody else's note goes."""
    world = World("a", "b")
    for at in (0, 1):
        world.says(at, b"changed")
        world.settle()
    client = world.clients[1]
    gone = released(world, 1)
    for _ in range(moment):
        client.serve()
        client.deliver()
    client.lose_connection(carried_out=carried_out)
    world.settle()
    assert outcome(gone) is None
    assert world.payloads == {"a": b"changed"}


def test_the_newest_payload_wins() -> None:
    world = World("a")
    for count in range(5):
        world.says(0, b"%d" % count)
    world.settle()
    assert world.payloads == {"a": b"4"}


def test_too_much_for_one_node() -> None:
    world = World("a", "b")
    world.says(0, bytes(300_000))
    world.settle()
    refused = world.says(1, bytes(100_000))
    world.settle()
    with pytest.raises(ZkLockError, match="shorten the payloads"):
        refused.result()
    assert world.payloads == {"a": bytes(300_000), "b": b"first"}


def test_a_member_that_has_left_says_nothing() -> None:
    world = World("a", "b")
    world.attempts[1].cancel()
    world.settle()
    told = world.says(1, b"later")
    world.settle()
    assert outcome(told) is None
    assert world.payloads == {"a": b"first"}
    assert world.server.tree.nodes[PATH].data == b""
