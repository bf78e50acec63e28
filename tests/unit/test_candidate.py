"""Handing over, and what members say of themselves, on an in-memory ZooKeeper, under faults."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.fakes import Client, FakeGrant, Server, Written, outcome, settle, uuids
from zklock._core.attempt import Attempt
from zklock._election.candidate import Candidacy, successor
from zklock._recipes import lock as lock_recipe, names, nodedata, notes, queries
from zklock._recipes.effects import Transaction
from zklock._recipes.queries import Contender
from zklock.errors import NoSuchMember, ZkLockError
from zklock.token import FencingToken

PATH = "/elections/report"


class World:
    """An election with members of these identities; the first one leads, once it has settled."""

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

    def serve(self, at: int, times: int) -> Client:
        """Serve one client so many times, and nobody else; return it."""
        client = self.clients[at]
        for _ in range(times):
            client.serve()
            client.deliver()
        return client

    def leave(self, identity: str) -> Attempt[None]:
        """Have the leader begin to hand over to this member."""
        outcome(self.attempts[0]).over = True
        self.members[0].successor = identity
        return self.clients[0].attempt(partial(lock_recipe.leave, self.members[0])).start()

    def says(self, at: int, payload: bytes) -> Attempt[Any]:
        """Have a member change its payload, and tell it."""
        self.members[at].says(payload)
        return self.clients[at].attempt(self.members[at].announce).start()

    @property
    def led(self) -> list[str]:
        """Who has led so far."""
        members = dict(zip(self.clients, self.members, strict=True))
        data = [members[grant.client].data for grant in self.server.grants]
        return [nodedata.parse(each).identity.decode() for each in data]

    @property
    def payloads(self) -> dict[str, bytes]:
        """What an onlooker reads, by identity."""
        client = Client(self.server)
        asked = client.attempt(partial(queries.contenders, PATH)).start()
        settle([client])
        return {one.identity: one.payload for one in outcome(asked)}

    @property
    def note(self) -> bytes:
        """The data of the election's own znode."""
        return self.server.tree.nodes[PATH].data


# Handing over.


@pytest.mark.parametrize("who", [1, 2])
def test_one_that_goes_at_the_last_moment(who: int) -> None:
    world = World("a", "b", "c")
    leader = world.clients[0]
    world.leave("c")
    while not any(isinstance(request, Transaction) for request in leader.sent):
        leader.serve()
        leader.deliver()
    world.attempts[who].cancel()
    world.server.expire(world.clients[who].session)
    world.settle()
    assert world.led == (["a", "c"] if who == 1 else ["a", "b"])
    assert bool(world.members[0].refused) == (who == 2)


@pytest.mark.parametrize("moment", range(16))
@pytest.mark.parametrize("carried_out", [0, 1, 2])
def test_a_lost_connection_changes_nothing(moment: int, carried_out: int) -> None:
    world = World("a", "b", "c", "d")
    left = world.leave("d")
    world.serve(0, moment).lose_connection(carried_out=carried_out)
    world.settle()
    assert outcome(left) is None
    assert world.led == ["a", "d"]
    assert world.members[0].handed_to is not None
    assert world.members[0].refused is None


@pytest.mark.parametrize("moment", range(16))
def test_a_lost_session_lets_somebody_lead(moment: int) -> None:
    world = World("a", "b", "c", "d")
    world.leave("d")
    world.server.expire(world.serve(0, moment).session)
    world.settle()
    assert world.led in (["a", "b"], ["a", "d"])
    assert len([grant for grant in world.server.grants if grant.stands]) == 1


@pytest.mark.parametrize("order", range(4))
def test_nobody_that_stepped_back_takes_the_turn(order: int) -> None:
    """Members hear of the transaction one at a time, in any order, from servers that lag."""
    world = World("a", "b", "c", "d")
    world.leave("d")
    world.serve(0, 12)
    for turn in range(3):
        client = world.clients[1 + (order + turn) % 3]
        for _ in range(40):
            if client.link is not None:
                client.link.advance(1)
            client.serve()
            client.deliver()
            assert all(grant.stood for grant in world.server.grants)
    world.settle()
    assert world.led == ["a", "d"]


# What members say of themselves.


@pytest.mark.parametrize("served", range(8))
def test_a_change_while_the_node_is_being_created(served: int) -> None:
    world = World("a", settled=False)
    world.serve(0, served)
    world.says(0, b"later")
    world.settle()
    assert world.payloads == {"a": b"later"}
    assert outcome(world.attempts[0]) is not None


@pytest.mark.parametrize("moment", range(10))
@pytest.mark.parametrize("carried_out", [0, 1, 2])
def test_a_lost_connection_loses_no_change(moment: int, carried_out: int) -> None:
    world = World("a", "b")
    told = world.says(1, b"later")
    other = world.says(0, b"also")
    world.serve(1, moment).lose_connection(carried_out=carried_out)
    world.settle()
    assert outcome(told) is None
    assert outcome(other) is None
    assert world.payloads == {"a": b"also", "b": b"later"}


def released(world: World, at: int) -> Attempt[Any]:
    """Have a leader or a waiting member leave."""
    if world.members[at].granted:
        return world.clients[at].attempt(partial(lock_recipe.leave, world.members[at])).start()
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
        gone = released(world, at)
        world.settle()
        assert outcome(gone) is None
        there.remove(at)
        noted = notes.parse(world.note)
        assert noted.others == b"10.0.0.7"
        names_there = {(world.members[each].node or "").rpartition("/")[2] for each in there}
        assert noted.payloads.keys() <= names_there
        if at == 2:
            assert len(world.clients[at].sent) == sent + 1, "it has announced nothing"
    assert world.note == b"10.0.0.7"


@pytest.mark.parametrize("moment", range(8))
def test_two_that_leave_at_the_same_time_leave_nothing(moment: int) -> None:
    world = World("a", "b")
    for at in (0, 1):
        world.says(at, b"changed")
        world.settle()
    gone = [released(world, 0)]
    world.serve(0, moment)
    gone.append(released(world, 1))
    world.settle()
    assert [outcome(each) for each in gone] == [None, None]
    assert world.note == b""


@pytest.mark.parametrize("moment", range(8))
@pytest.mark.parametrize("carried_out", [0, 1, 2])
def test_a_lost_connection_holds_up_nobody_who_leaves(moment: int, carried_out: int) -> None:
    """The note may stay then; nothing else does, and nobody else's note goes."""
    world = World("a", "b")
    for at in (0, 1):
        world.says(at, b"changed")
        world.settle()
    gone = released(world, 1)
    world.serve(1, moment).lose_connection(carried_out=carried_out)
    world.settle()
    assert outcome(gone) is None
    assert world.payloads == {"a": b"changed"}


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
    assert world.note == b""


# Who it is.


def member(number: int, identity: str, marker: str = "-latch-") -> Contender:
    path = f"{PATH}/_c_{number:032x}{marker}{number:010d}"
    return Contender(identity, number, FencingToken(1, number), 7, path, holds=number == 0)


def pick(members: list[Contender], identity: str) -> Any:
    between, chosen = successor(PATH, members, members[0].path, identity)
    return [one.sequence for one in between], chosen.sequence


def test_the_first_of_that_identity_is_chosen() -> None:
    members = [member(at, identity) for at, identity in enumerate("abcbc")]
    assert pick(members, "b") == ([], 1)
    assert pick(members, "c") == ([1], 2)
    assert pick([member(0, "a"), *members[2:]], "b") == ([2], 3)


def test_nobody_is_chosen_that_does_not_wait() -> None:
    members = [member(at, identity) for at, identity in enumerate("abc")]
    for nobody in ("a", "z"):
        with pytest.raises(NoSuchMember, match=f"has the identity '{nobody}'") as refused:
            pick(members, nobody)
        assert refused.value.path == PATH


def test_locks_do_not_step_back() -> None:
    members = [member(0, "a"), member(1, "b"), member(2, "b", "-lock-"), member(3, "c")]
    assert pick(members, "b") == ([], 1)
    with pytest.raises(NoSuchMember, match=members[2].path):
        pick(members, "c")
