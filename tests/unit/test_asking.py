"""Asking a leader to release through its election's own znode, at every moment and under faults."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.fakes import Client, Created, Deleted, Server, Written, outcome, settle
from tests.unit.test_notes import PATH, World, outcome_of, released
from zklock._engine.attempt import Attempt
from zklock._recipes import nodedata, notes, queries, revoke
from zklock._recipes.effects import (
    List,
    Read,
    Sync,
    Transaction,
)
from zklock._recipes.notes import Notes
from zklock._recipes.queries import Contender
from zklock.errors import AccessDenied, ZkLockError

MOMENTS = range(12)


def asking(client: Client) -> Attempt[list[Contender]]:
    """Have a client ask the leader, as an election does."""
    first = partial(queries.contenders, PATH, limit=1)
    return Attempt(
        client, queries.retry_on_new_session(lambda: revoke.request_release(first))
    ).start()


def noted(server: Server) -> Notes:
    return notes.parse(server.tree.nodes[PATH].data)


def name_of(world: World, at: int) -> str:
    return (world.members[at].node or "").rpartition("/")[2]


def steps(client: Client, count: int) -> None:
    for _ in range(count):
        client.serve()
        client.deliver()


def check_log(server: Server) -> None:
    """Each request is noted while the leader whom it names is there, and no node is written."""
    there: set[str] = set()
    before: frozenset[str] = frozenset()
    for txn in server.log:
        match txn:
            case Created(path):
                there.add(path.rpartition("/")[2])
            case Deleted(path):
                there.discard(path.rpartition("/")[2])
            case Written(path, data):
                assert path == PATH
                asked = notes.parse(data).asked
                assert asked - before <= there
                before = asked


def test_a_request_names_the_node_of_the_leader() -> None:
    world = World("a", "b", "c")
    world.server.commit(Written(PATH, b"10.0.0.7"))
    asker = Client(world.server)
    asked = asking(asker)
    settle([*world.clients, asker])
    (leader,) = outcome(asked)
    assert (leader.identity, leader.path, leader.holds) == ("a", world.members[0].node, True)
    assert noted(world.server) == Notes(b"10.0.0.7", {}, frozenset({name_of(world, 0)}))
    data = world.server.tree.nodes[PATH].data
    assert [member.asked_by(data) for member in world.members] == [name_of(world, 0), None, None]
    check_log(world.server)


def test_what_a_request_costs() -> None:
    """And it costs nobody who waits anything."""
    world = World("a", "b", "c")
    asker = Client(world.server)
    sent = [len(client.sent) for client in world.clients]
    for _ in range(2):
        asking(asker)
        settle([*world.clients, asker])
    first = [Sync, List, Read, Read, List, Transaction]
    again = [Sync, List, Read, Read, Read, List]  # it is noted already, and not written again
    assert [type(request) for request in asker.sent] == first + again
    assert [len(client.sent) for client in world.clients] == sent


def test_a_lock_on_the_path_is_asked_through_its_own_node() -> None:
    server = Server()
    server.make_path(PATH)
    data = bytes(nodedata.NodeData(b"me"))
    node = server.create(f"{PATH}/_c_{'1' * 32}-lock-", data, server.open_session())
    assert isinstance(node, str)
    asker = Client(server)
    asked = asking(asker)
    settle([asker])
    assert [one.path for one in outcome(asked)] == [node]
    assert nodedata.parse(server.tree.nodes[node].data).asked
    assert server.tree.nodes[PATH].data == b""


@pytest.mark.parametrize("first", MOMENTS)
@pytest.mark.parametrize("second", MOMENTS)
def test_two_that_ask_at_the_same_time_are_both_answered(first: int, second: int) -> None:
    world = World("a", "b")
    askers = [Client(world.server) for _ in range(2)]
    asked = [asking(each) for each in askers]
    steps(askers[0], first)
    steps(askers[1], second)
    settle([*world.clients, *askers])
    for each in asked:
        assert [one.path for one in outcome(each)] == [world.members[0].node]
    assert noted(world.server).asked == {name_of(world, 0)}
    check_log(world.server)


@pytest.mark.parametrize("first", MOMENTS)
@pytest.mark.parametrize("second", range(8))
def test_a_payload_that_changes_at_the_same_time_is_kept(first: int, second: int) -> None:
    world = World("a", "b")
    asker = Client(world.server)
    asked = asking(asker)
    steps(asker, first)
    told = world.says(1, b"changed")
    steps(world.clients[1], second)
    settle([*world.clients, asker])
    assert len(outcome(asked)) == 1
    assert outcome(told) is None
    assert noted(world.server).payloads == {name_of(world, 1): b"changed"}
    assert noted(world.server).asked == {name_of(world, 0)}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("crashes", [True, False])
def test_in_the_moment_of_a_change_nobody_else_is_asked(moment: int, crashes: bool) -> None:
    """The answer says whether the leader was there when the server took the request."""
    world = World("a", "b")
    leader = world.members[0].node
    asker = Client(world.server)
    asked = asking(asker)
    steps(asker, moment)
    if crashes:
        world.server.expire(world.clients[0].session)
    else:
        released(world, 0)
    world.settle()
    settle([*world.clients, asker])
    answer = [one.path for one in outcome(asked)]
    writes = [txn for txn in world.server.log if isinstance(txn, Written)]
    assert bool(answer) == any(notes.parse(txn.data).asked for txn in writes)
    assert [grant.path for grant in world.server.grants[:2]] == [leader, world.members[1].node]
    if answer != [world.members[1].node]:
        assert answer in ([], [leader])
        assert world.members[1].asked_by(world.server.tree.nodes[PATH].data) is None
    check_log(world.server)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("carried_out", [0, 1, 2])
@pytest.mark.parametrize("state_first", [True, False])
@pytest.mark.parametrize("lag", [0, 2])
def test_a_lost_connection_loses_no_request(
    moment: int, carried_out: int, state_first: bool, lag: int
) -> None:
    world = World("a", "b")
    asker = Client(world.server)
    asked = asking(asker)
    steps(asker, moment)
    asker.lose_connection(carried_out=carried_out, state_first=state_first)
    asker.reconnect(lag=lag)
    settle([*world.clients, asker])
    assert [one.path for one in outcome(asked)] == [world.members[0].node]
    assert noted(world.server).asked == {name_of(world, 0)}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_new_session_of_the_one_that_asks_asks_again(moment: int) -> None:
    world = World("a", "b")
    asker = Client(world.server)
    asked = asking(asker)
    steps(asker, moment)
    world.server.expire(asker.session)
    settle([*world.clients, asker])
    assert [one.path for one in outcome(asked)] == [world.members[0].node]
    assert noted(world.server).asked == {name_of(world, 0)}


def ask(world: World) -> None:
    asker = Client(world.server)
    asked = asking(asker)
    settle([*world.clients, asker])
    assert outcome(asked)


def test_a_leader_takes_its_request_along() -> None:
    world = World("a", "b")
    ask(world)
    assert world.members[0].asked_by(world.server.tree.nodes[PATH].data) is not None
    assert outcome_of(world, released(world, 0)) is None
    assert world.server.tree.nodes[PATH].data == b""


def test_a_leader_that_was_not_asked_leaves_by_one_request() -> None:
    world = World("a", "b")
    assert world.members[0].asked_by(world.server.tree.nodes[PATH].data) is None
    sent = len(world.clients[0].sent)
    assert outcome_of(world, released(world, 0)) is None
    assert len(world.clients[0].sent) == sent + 1


def test_the_next_leader_takes_the_request_of_one_that_crashed_along() -> None:
    world = World("a", "b", "c")
    world.says(2, b"changed")
    world.settle()
    ask(world)
    world.server.expire(world.clients[0].session)
    world.settle()
    assert world.members[1].granted
    assert world.members[1].asked_by(world.server.tree.nodes[PATH].data) is None
    assert outcome_of(world, released(world, 1)) is None
    assert noted(world.server) == Notes(b"", {name_of(world, 2): b"changed"})


def test_a_later_term_of_the_same_member_is_not_asked() -> None:
    world = World("a")
    ask(world)
    old = name_of(world, 0)
    world.server.expire(world.clients[0].session)
    world.settle()
    again = Attempt(world.clients[0], queries.contenders(PATH)).start()
    world.settle()
    assert outcome(again) == []
    member = world.members[0]
    attempt = world.clients[0].acquire(member).start()
    world.settle()
    assert outcome(attempt) is not None
    assert old in noted(world.server).asked
    assert name_of(world, 0) != old
    assert member.asked_by(world.server.tree.nodes[PATH].data) is None


def test_requests_do_not_pile_up() -> None:
    world = World("a", "b", "c", "d")
    for at in range(4):
        ask(world)
        assert noted(world.server).asked == {name_of(world, at)}
        world.server.expire(world.clients[at].session)
        world.settle()


@pytest.mark.parametrize("kind", [Read, Transaction])
def test_permissions_are_needed(kind: Any) -> None:
    world = World("a")
    world.server.denied.add(kind)
    asker = Client(world.server)
    asked = asking(asker)
    settle([*world.clients, asker])
    with pytest.raises(AccessDenied):
        asked.result()
    assert world.server.tree.nodes[PATH].data == b""


def test_there_is_room_beside_the_largest_payloads() -> None:
    world = World("a")
    node = name_of(world, 0)
    beside = len(bytes(Notes(b"", {node: b""})))
    largest = Notes(
        b"x" * ((notes.MAX_NOTES - beside) % 4), {node: bytes((notes.MAX_NOTES - beside) // 4 * 3)}
    )
    assert len(bytes(largest)) == notes.MAX_NOTES
    world.server.commit(Written(PATH, bytes(largest)))
    ask(world)
    assert noted(world.server).asked == {node}


def test_too_much_of_others() -> None:
    world = World("a")
    world.server.commit(Written(PATH, bytes(notes.MAX_ASKED)))
    asker = Client(world.server)
    asked = asking(asker)
    settle([*world.clients, asker])
    with pytest.raises(ZkLockError, match="remove foreign data"):
        asked.result()
