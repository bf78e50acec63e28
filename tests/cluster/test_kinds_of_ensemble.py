"""Ensembles with settings that change who answers: is the lease's arithmetic still right?"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import zklock
from tests.backends import backend_to_cut
from tests.cluster.test_partitions import duels, hold_on, hosts, judge, others
from tests.contract.support import SOON
from tests.timed import timed_grants
from zklock.testing import Ensemble, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.hazard("H3"),
    pytest.mark.slow("an ensemble is started, and a partition outlasts sessions"),
    pytest.mark.thorough("each kind of ensemble takes half a minute, and few users have one"),
]

TICK = 500


@dataclass(frozen=True)
class Kind:
    """Settings of all servers, and options of all clients."""

    config: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    sync_limit: int = 20
    session: float = 4.0


LOCAL = {"localSessionsEnabled": "true", "localSessionsUpgradingEnabled": "true"}
WEIGHTS = {"group.1": "1:2:3", "weight.1": "3", "weight.2": "1", "weight.3": "1"}
ZERO = {"group.1": "1:2:3", "weight.1": "1", "weight.2": "1", "weight.3": "0"}
GROUPS = {f"group.{each}": str(each) for each in (1, 2, 3)} | {
    f"weight.{each}": "1" for each in (1, 2, 3)
}
READ_ONLY = Kind(
    properties={"readonlymode.enabled": "true"},
    config=LOCAL,  # without these, its clients get nothing from a read-only server
    options={"read_only": True},
    sync_limit=5,
    session=10.0,
)
KINDS = {
    "local sessions": Kind(config=LOCAL),
    "weights": Kind(config=WEIGHTS),
    "no weight": Kind(config=ZERO),
    "groups": Kind(config=GROUPS),
    "read-only mode": READ_ONLY,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_holder_on_a_cut_off_follower_is_told_before_the_next_grant(
    name: str,
) -> None:
    kind = KINDS[name]
    with (
        timed_grants(),
        Ensemble(
            3,
            tick_time=TICK,
            sync_limit=kind.sync_limit,
            backend=backend_to_cut(),
            config=kind.config,
            system_properties=kind.properties,
        ) as ensemble,
    ):
        leader = ensemble.leader()
        # The last one: where servers have weights, the first is needed for a quorum.
        follower = [server for server in ensemble.servers if server is not leader][-1]
        rivals = hosts(others(ensemble, follower))
        with duels(follower.hosts, rivals, kind.session, **kind.options) as (made, pool):
            hold_on(made, kind.session, pool)
            ensemble.cut_from_peers(follower)
            judge(made)


def test_a_read_only_server_costs_no_lock() -> None:
    """It turns away a session that holds something; a quorum may be back before the lease ends."""
    session = 60.0
    properties = {"readonlymode.enabled": "true"}
    with Ensemble(
        3, tick_time=TICK, backend=backend_to_cut(), system_properties=properties
    ) as ensemble:
        alone, *rest = ensemble.servers
        # Connected to this one alone, it does not ask one that has not noticed its leader's end.
        with (
            zklock.connect(alone.hosts, session) as client,
            zklock.Lock(client, "/locks/report") as grant,
        ):
            for server in rest:
                server.kill()
            wait_for(lambda: alone.mode() == "read-only", SOON, "a read-only server")
            threading.Event().wait(session / 5)  # more than what an unanswered handshake leaves
            for server in rest:
                server.launch()
            wait_for(lambda: client.connected, SOON, "the client to be connected")
            grant.verify()
            assert grant.held
