"""Sessions through an observer that hangs on a follower: the leader hears of them at second hand.

Only Java on this machine: the members of other ensembles of ``zklock.testing`` all take part.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends import QUICK_ELECTIONS
from tests.cluster.conftest import mode_of
from tests.cluster.test_partitions import duels, idling, judge
from tests.timed import timed_grants
from zklock.testing import wait_for
from zklock.testing.java import Installation, JavaNode, socks_options
from zklock.testing.ports import LOOPBACK, free_ports
from zklock.testing.relay import PeerRelay
from zklock.testing.settings import Settings

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow("four servers are started"),
    pytest.mark.hazard("H26"),
]

TICK = 1000
VOTERS, OBSERVER = range(3), 3


class Observed:
    """Three voters, each open to observers on a port of its own, and an observer of a follower."""

    def __init__(self, installation: Installation) -> None:
        quorum, election, masters = free_ports(4), free_ports(4), free_ports(3)
        self.ports = free_ports(4)
        ports = [*zip(quorum, election, strict=True)]
        members = {port: index for index, pair in enumerate(ports) for port in pair}
        self.relay = PeerRelay(members | {port: index for index, port in enumerate(masters)})
        settings = Settings(
            tick_time=TICK,
            sync_limit=20,
            init_limit=20,
            system_properties=QUICK_ELECTIONS,
        )
        peers = {
            f"server.{index + 1}": f"{LOOPBACK}:{ports[index][0]}:{ports[index][1]}:"
            + ("observer" if index == OBSERVER else "participant")
            for index in range(4)
        }

        def node(index: int, **own: str) -> JavaNode:
            return JavaNode(
                installation,
                settings,
                self.ports[index],
                server_id=index + 1,
                peers=peers | own,
                java_options=socks_options(self.relay.ports[index]),
            )

        self.nodes = [node(index, observerMasterPort=str(masters[index])) for index in VOTERS]
        try:
            for each in self.nodes:
                each.start()
            wait_for(lambda: None not in map(self.mode, VOTERS), 60, "the voters")
            self.leader = next(index for index in VOTERS if self.mode(index) == "leader")
            self.follower = next(index for index in VOTERS if self.mode(index) == "follower")
            # An observer looks for this port at every voter: here, it belongs to one of them.
            port = str(masters[self.follower])
            self.nodes.append(node(OBSERVER, peerType="observer", observerMasterPort=port))
            self.nodes[OBSERVER].start()
            wait_for(lambda: self.mode(OBSERVER) == "observer", 60, "the observer")
        except BaseException:
            self.close()
            raise

    def mode(self, index: int) -> str | None:
        return mode_of(self.ports[index])

    def hosts(self, index: int) -> str:
        return f"{LOOPBACK}:{self.ports[index]}"

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.relay.close()


@pytest.fixture(scope="module")
def observed(installation: Installation) -> Iterator[Observed]:
    made = Observed(installation)
    with timed_grants():
        yield made
    made.close()


@pytest.mark.parametrize("ticks", [2.2, 3.0])
def test_a_holder_whose_observers_follower_is_cut_off_is_told_before_the_next_grant(
    observed: Observed, ticks: float
) -> None:
    observed.relay.heal(observed.follower)
    wait_for(lambda: observed.mode(OBSERVER) == "observer", 60, "the observer")
    session = ticks * TICK / 1000
    leader = observed.hosts(observed.leader)
    with duels(observed.hosts(OBSERVER), leader, session) as (made, pool):
        for duel in made:
            duel.begin()
            duel.queue(pool)
        idling(session)
        # On a busy machine a lease as short as these may have lapsed by itself.
        assert any(duel.grant is not None and duel.grant.held for duel in made)
        observed.relay.cut(observed.follower)
        judge(made)
