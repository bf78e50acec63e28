"""Handing over on an in-memory ZooKeeper: to whom, and under faults."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.fakes import Client, FakeGrant, Server, outcome, settle, uuids
from zklock._core.attempt import Attempt
from zklock._election.candidate import Candidacy, successor
from zklock._recipes import lock as lock_recipe, names, nodedata
from zklock._recipes.effects import (
    Transaction,
)
from zklock._recipes.queries import Contender
from zklock.errors import NoSuchMember
from zklock.token import FencingToken

PATH = "/elections/report"


class World:
    """An election with members of these identities, the first of which leads."""

    def __init__(self, *identities: str) -> None:
        self.server = Server()
        self.server.make_path(PATH)
        self.uuids = uuids()
        self.clients = [Client(self.server) for _ in identities]
        self.members: list[Candidacy] = []
        self.attempts: list[Attempt[FakeGrant | None]] = []
        for client, identity in zip(self.clients, identities, strict=True):
            data = bytes(nodedata.NodeData(identity.encode()))
            member = Candidacy(PATH, data, names.Kind.LATCH, new_uuid=lambda: next(self.uuids))
            self.members.append(member)
            self.attempts.append(client.acquire(member).start())
            self.settle()

    def settle(self) -> None:
        settle(self.clients)

    def leave(self, identity: str) -> Attempt[None]:
        """Have the leader begin to hand over to this member."""
        outcome(self.attempts[0]).over = True
        self.members[0].successor = identity
        return self.clients[0].attempt(partial(lock_recipe.leave, self.members[0])).start()

    @property
    def led(self) -> list[str]:
        """Who has led so far."""
        identities = dict(zip(self.clients, self.members, strict=True))
        return [identities[grant.client].data.decode() for grant in self.server.grants]

    @property
    def queue(self) -> list[str]:
        nodes = self.server.tree.nodes
        there = names.Queue(self.server.tree.names(PATH)).contenders
        return [nodes[f"{PATH}/{name.text}"].data.decode() for name in there]


def test_the_successor_leads_and_the_others_queue_again() -> None:
    world = World("a", "b", "c", "d", "e")
    left = world.leave("d")
    world.settle()
    assert outcome(left) is None
    assert world.led == ["a", "d"]
    assert world.queue[:2] == ["d", "e"]
    assert sorted(world.queue[2:]) == ["b", "c"]
    assert world.members[0].handed_to is not None
    assert world.members[0].handed_to.path == world.members[3].node


def test_the_next_in_the_queue_makes_nobody_step_back() -> None:
    world = World("a", "b", "c")
    world.leave("b")
    world.settle()
    assert world.led == ["a", "b"]
    assert world.queue == ["b", "c"]


def test_a_successor_that_is_gone_lets_the_next_lead() -> None:
    world = World("a", "b", "c")
    world.attempts[2].cancel()
    world.settle()
    world.leave("c")
    world.settle()
    assert world.led == ["a", "b"]
    assert isinstance(world.members[0].refused, NoSuchMember)
    assert world.members[0].handed_to is None


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
    leader = world.clients[0]
    left = world.leave("d")
    for _ in range(moment):
        leader.serve()
        leader.deliver()
    leader.lose_connection(carried_out=carried_out)
    world.settle()
    assert outcome(left) is None
    assert world.led == ["a", "d"]
    assert world.members[0].handed_to is not None
    assert world.members[0].refused is None


@pytest.mark.parametrize("moment", range(16))
def test_a_lost_session_lets_somebody_lead(moment: int) -> None:
    world = World("a", "b", "c", "d")
    leader = world.clients[0]
    world.leave("d")
    for _ in range(moment):
        leader.serve()
        leader.deliver()
    world.server.expire(leader.session)
    world.settle()
    assert world.led in (["a", "b"], ["a", "d"])
    assert len([grant for grant in world.server.grants if grant.stands]) == 1


@pytest.mark.parametrize("order", range(4))
def test_nobody_that_stepped_back_takes_the_turn(order: int) -> None:
    """Members hear of the transaction one at a time, in any order, from servers that lag."""
    world = World("a", "b", "c", "d")
    leader = world.clients[0]
    world.leave("d")
    for _ in range(12):
        leader.serve()
        leader.deliver()
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


def test_leadership_that_falls_back_without_a_successor() -> None:
    world = World("a", "b")
    outcome(world.attempts[0]).over = True
    world.clients[0].attempt(partial(lock_recipe.leave, world.members[0])).start()
    world.settle()
    assert world.led == ["a", "b"]
    assert not any(isinstance(request, Transaction) for request in world.clients[0].sent)


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
