"""A server that stands still, as in a long garbage collection: its connections stay open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import zklock
from tests.backends import backend_or_skip
from tests.contract.support import SOON, Losses, granted, queued, run
from zklock import LossReason
from zklock._ground.clock import clock
from zklock.testing import Ensemble, ZooKeeperServer, wait_for

pytestmark = pytest.mark.slow("servers stand still for a part of the session timeout")

Connect = Callable[..., Any]

TICK = 500
PATH = "/still"


@pytest.mark.parametrize("until", ["the loss", "the end of the session"])
def test_the_only_server_costs_the_lock_and_no_place(until: str, zklock_connect: Connect) -> None:
    session = 4.0
    with ZooKeeperServer(backend=backend_or_skip("java"), tick_time=TICK) as server:
        holder, waiter = (zklock_connect(server.hosts, timeout=session) for _ in range(2))
        losses = Losses()
        grant = granted(zklock.Lock(holder, PATH, on_lost=losses))
        waiting = run(granted, zklock.Lock(waiter, PATH))
        queued(holder, PATH, 2)

        server.pause()
        stopped = clock()
        assert losses.one().reason is LossReason.LEASE_LAPSED
        if until != "the loss":
            wait_for(lambda: clock() > stopped + 1.5 * session, SOON)
        assert not waiting.done()
        server.resume()
        second = waiting.result(SOON)
        assert second.token > grant.token
        second.release()


@pytest.mark.cluster
def test_a_follower_costs_no_lock(zklock_connect: Connect) -> None:
    with Ensemble(3, tick_time=TICK, backend=backend_or_skip("java")) as ensemble:
        follower = ensemble.followers()[0]
        others = [server.hosts for server in ensemble.servers if server is not follower]
        client = zklock_connect(
            ",".join([follower.hosts, *others]), timeout=12.0, randomize_hosts=False
        )
        losses = Losses()
        grant = granted(zklock.Lock(client, PATH, on_lost=losses))
        follower.pause()
        wait_for(lambda: client.handler.server in others, SOON, "another server")
        grant.verify(SOON)
        assert grant.held
        assert not losses.losses
        follower.resume()
        grant.release()


@pytest.mark.cluster
def test_a_leader_is_followed_for_synclimit(zklock_connect: Connect) -> None:
    """A killed leader is replaced at once. One that stands still: after syncLimit ticks."""
    session = 6.0
    with Ensemble(3, tick_time=TICK, sync_limit=60, backend=backend_or_skip("java")) as ensemble:
        leader = ensemble.leader()
        hosts = ",".join(server.hosts for server in ensemble.servers if server is not leader)
        holder, waiter = (zklock_connect(hosts, timeout=session) for _ in range(2))
        losses = Losses()
        grant = granted(zklock.Lock(holder, PATH, on_lost=losses))
        waiting = run(granted, zklock.Lock(waiter, PATH))
        queued(holder, PATH, 2)
        leader.pause()
        assert losses.one().reason is LossReason.LEASE_LAPSED
        assert not waiting.done()
        leader.resume()
        assert waiting.result(SOON).token > grant.token


@pytest.mark.cluster
def test_a_leader_that_is_left_in_time_costs_no_lock(zklock_connect: Connect) -> None:
    with Ensemble(3, tick_time=TICK, sync_limit=4, backend=backend_or_skip("java")) as ensemble:
        leader = ensemble.leader()
        losses = Losses()
        client = zklock_connect(ensemble.hosts, timeout=18.0)
        grant = granted(zklock.Lock(client, PATH, on_lost=losses))
        leader.pause()
        grant.verify(SOON)
        assert grant.held
        assert not losses.losses
        leader.resume()
        grant.release()
