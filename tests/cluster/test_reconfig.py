"""Servers that join and leave a running ensemble, while locks are held and waited for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

import zklock
from tests.backends import QUICK_ELECTIONS
from tests.cluster.conftest import mode_of
from tests.cluster.test_partitions import (
    SECONDS,
    duels,
    hold_on,
    idling,
    judge,
    nothing_lost,
    wait_for_proof,
)
from tests.contract.support import SOON, Losses, boottime
from tests.timed import timed_grants
from zklock.testing import wait_for
from zklock.testing.java import Installation, JavaNode
from zklock.testing.ports import LOOPBACK, free_ports
from zklock.testing.settings import Settings

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow("an ensemble is changed server by server"),
    pytest.mark.thorough("an operator does this seldom, and it takes half a minute"),
]

TICK = 500


@dataclass
class Member:
    """A server that may join: its line in the configuration, and its process."""

    number: int
    line: str
    node: JavaNode

    @property
    def hosts(self) -> str:
        return f"{LOOPBACK}:{self.node.port}"

    def mode(self) -> str | None:
        return mode_of(self.node.port)


class Changing:
    """Six servers, of which the first three are an ensemble."""

    def __init__(self, installation: Installation) -> None:
        ports = iter(free_ports(18))
        lines = {}
        clients = {}
        for number in range(1, 7):
            quorum, election, clients[number] = next(ports), next(ports), next(ports)
            lines[number] = (
                f"{LOOPBACK}:{quorum}:{election}:participant;{LOOPBACK}:{clients[number]}"
            )
        settings = Settings(
            tick_time=TICK,
            max_session_timeout=60_000,
            config={"reconfigEnabled": "true"},
            system_properties={**QUICK_ELECTIONS, "zookeeper.skipACL": "yes"},
        )

        def member(number: int) -> Member:
            known = {1, 2, 3, number}
            peers = {f"server.{each}": lines[each] for each in known}
            node = JavaNode(installation, settings, clients[number], server_id=number, peers=peers)
            return Member(number, f"server.{number}={lines[number]}", node)

        self.members = [member(number) for number in range(1, 7)]
        self.first, self.later = self.members[:3], self.members[3:]

    def start(self) -> None:
        for each in self.first:
            each.node.start()
        wait_for(lambda: None not in [each.mode() for each in self.first], SOON, "the ensemble")

    def leader(self) -> Member:
        (leader,) = [each for each in self.members if each.mode() == "leader"]
        return leader

    def join(self, member: Member, through: Member) -> None:
        """Start it, and make it a member of the ensemble."""
        member.node.start()
        wait_for(lambda: member.mode() is not None, SOON, "the newcomer")
        with operating(through) as client:
            client.reconfig(member.line, None, None)

    def leave(self, member: Member, through: Member) -> None:
        """Remove it from the ensemble; its process goes on."""
        with operating(through) as client, contextlib.suppress(ConnectionLoss):
            # The leader's end closes the connections of its followers, too.
            client.reconfig(None, str(member.number), None)
        wait_for(lambda: member.number not in self.numbers(through), SOON, "the removal")

    def numbers(self, through: Member) -> list[int]:
        """Return the numbers of the members."""
        with operating(through) as client:
            lines = client.get("/zookeeper/config")[0].decode().splitlines()
        return [int(line[7:].partition("=")[0]) for line in lines if line.startswith("server.")]

    def close(self) -> None:
        for each in self.members:
            each.node.close()


@contextlib.contextmanager
def operating(member: Member) -> Iterator[KazooClient]:
    client = KazooClient(member.hosts, timeout=10.0)
    client.start(SOON)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def hosts(members: Sequence[Member]) -> str:
    return ",".join(each.hosts for each in members)


@pytest.fixture
def changing(installation: Installation) -> Iterator[Changing]:
    made = Changing(installation)
    try:
        made.start()
        with timed_grants():
            yield made
    finally:
        made.close()


def follow(client: zklock.Client) -> None:
    """Have a client connect to the present members, as a user would."""

    def changed(data: bytes, stat: object) -> None:
        lines = data.decode().splitlines()
        client.set_hosts(",".join(line.rpartition(";")[2] for line in lines if ";" in line))

    client.DataWatch("/zookeeper/config", changed)


def test_a_holder_on_a_removed_server_is_told_before_the_next_grant(
    changing: Changing,
) -> None:
    """The server goes on without a vote, and so do its clients, until its process ends."""
    session = 6.0
    leader = changing.leader()
    removed, stays = [each for each in changing.first if each is not leader]
    with duels(removed.hosts, hosts([leader, stays]), session) as (made, pool):
        hold_on(made, session, pool)
        changing.leave(removed, through=stays)
        idling(session)
        assert removed.mode() == "follower"
        wait_for(lambda: all(duel.holder.connected for duel in made), SOON, "all connected")
        removed.node.stop()
        judge(made)


def test_all_servers_are_replaced_and_no_lock_is_lost(
    changing: Changing,
) -> None:
    """The leader is among them. A client that does not learn of the new servers loses its lock."""
    session = 30.0
    first = hosts(changing.first)
    losses = Losses()
    with (
        duels(first, first, session) as (made, pool),
        zklock.connect(first, 10.0) as left_behind,
    ):
        hold_on(made, session / 10, pool)
        for duel in made:
            follow(duel.holder)
            follow(duel.rival)
        lock = zklock.Lock(left_behind, "/left-behind", on_lost=losses)
        lock.acquire()
        for old, new in zip(changing.first, changing.later, strict=True):
            changing.join(new, through=old)
            changing.leave(old, through=new)
            old.node.stop()
            wait_for_proof(made, session, boottime())
        nothing_lost(made)
        assert losses.one().reason is zklock.LossReason.LEASE_LAPSED
        assert not left_behind.connected
        left_behind.set_hosts(hosts(changing.later))
        again = lock.acquire(timeout=SECONDS)
        assert again is not None
