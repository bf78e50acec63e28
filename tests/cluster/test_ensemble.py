"""Ensembles: partitions, and that nothing of them is left; other tests here use all the rest."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from tests.backends import backend_or_skip
from zklock.testing import Backend, Ensemble, NotSupported, ZooKeeperServer, srvr, wait_for

TICK = 500
SYNC_SECONDS = 5 * TICK / 1000


@pytest.fixture(
    scope="module", params=["java", pytest.param("container", marks=pytest.mark.cluster)]
)
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_or_skip(request.param)


@pytest.fixture(scope="module")
def shared(backend: Backend) -> Iterator[Ensemble]:
    with Ensemble(3, tick_time=TICK, backend=backend) as running:
        yield running


@pytest.fixture
def clients() -> Iterator[list[KazooClient]]:
    made: list[KazooClient] = []
    yield made
    for client in made:
        client.stop()
        client.close()


def connect(clients: list[KazooClient], hosts: str, timeout: float = 10.0) -> KazooClient:
    client = KazooClient(hosts, timeout=timeout)
    clients.append(client)
    client.start(15)
    return client


def other_leader(ensemble: Ensemble, than: ZooKeeperServer) -> ZooKeeperServer:
    def find() -> ZooKeeperServer | None:
        found = ensemble.leader()
        return found if found is not than else None

    return wait_for(find, 30, "another leader")


def write_hangs(client: KazooClient, path: str, seconds: float) -> bool:
    pending = client.create_async(path, b"")
    pending.wait(seconds)
    return not pending.ready()


def test_without_a_quorum_nothing_serves(ensemble: Ensemble) -> None:
    leader = ensemble.leader()
    for follower in ensemble.followers():
        follower.stop()
    wait_for(lambda: leader.mode() is None, 30, "the last server to stop serving")
    assert leader.running


def test_a_cut_follower_keeps_clients_and_serves_reads_until_its_limit(
    ensemble: Ensemble, clients: list[KazooClient]
) -> None:
    follower = ensemble.followers()[0]
    client = connect(clients, follower.hosts)
    client.create("/seen", b"before")
    begun = time.monotonic()
    ensemble.cut_from_peers(follower)
    assert client.get("/seen")[0] == b"before"
    assert write_hangs(client, "/unseen", SYNC_SECONDS / 2)
    assert client.connected
    assert follower.mode() == "follower"
    wait_for(lambda: follower.mode() is None, 30, "the follower to give up")
    lasted = time.monotonic() - begun
    # It reads with a timeout of syncLimit ticks from the leader's last ping, which came up to
    # half a tick before the cut: only silence makes it last that long, a reset would end it now.
    assert lasted > SYNC_SECONDS - TICK / 1000
    assert follower.running
    assert ensemble.leader() is not follower
    ensemble.wait_until_serving()


def test_healing_what_is_not_cut_and_cutting_twice(ensemble: Ensemble) -> None:
    server = ensemble.servers[0]
    ensemble.heal(server)
    ensemble.cut_from_peers(server)
    ensemble.cut_from_peers(server)
    ensemble.heal(server)
    ensemble.heal(server)
    ensemble.wait_until_serving()
    assert {one.mode() for one in ensemble.servers} == {"leader", "follower"}


def test_counters_are_for_standalone_servers(ensemble: Ensemble) -> None:
    with pytest.raises(NotSupported, match="standalone"):
        ensemble.servers[0].set_child_counter("/", 1)


def test_everything_is_gone_afterwards(backend: Backend) -> None:
    with Ensemble(3, backend=backend) as ensemble:
        ports = [server.port for server in ensemble.servers]
        ensemble.cut_from_peers(ensemble.servers[0])
    ensemble.close()
    assert not any(server.running for server in ensemble.servers)
    for port in ports:
        with pytest.raises(OSError):  # noqa: PT011 (refused, or reset by the engine's proxy)
            srvr("127.0.0.1", port, timeout=1)


def test_a_cut_leader_comes_back_though_the_others_were_restarted_meanwhile(
    ensemble: Ensemble,
) -> None:
    leader = ensemble.leader()
    others = [server for server in ensemble.servers if server is not leader]
    ensemble.cut_from_peers(leader)
    for server in others:
        server.kill()
    for server in reversed(others):
        server.launch()
    new = other_leader(ensemble, leader)
    wait_for(lambda: leader.mode() is None, 30, "the old leader to give up")
    ensemble.heal(leader)
    wait_for(lambda: leader.mode() == "follower", 90, "the old leader to follow")
    assert ensemble.leader() is new
