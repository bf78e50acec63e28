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
        seconds = 0.0 if until == "the loss" else 1.5 * session
        lost_until_it_goes_on(server, server.hosts, session, zklock_connect, seconds)


@pytest.mark.cluster
def test_a_leader_is_followed_for_synclimit(zklock_connect: Connect) -> None:
    """A killed leader is replaced at once. One that stands still: after syncLimit ticks."""
    with Ensemble(3, tick_time=TICK, sync_limit=60, backend=backend_or_skip("java")) as ensemble:
        leader = ensemble.leader()
        hosts = ",".join(server.hosts for server in ensemble.followers())
        lost_until_it_goes_on(leader, hosts, 6.0, zklock_connect)


def lost_until_it_goes_on(
    still: ZooKeeperServer, hosts: str, session: float, connect: Connect, seconds: float = 0.0
) -> None:
    """A holder is told, and a waiter waits, until the server goes on, after so many seconds."""
    holder, waiter = (connect(hosts, timeout=session) for _ in range(2))
    losses = Losses()
    grant = granted(zklock.Lock(holder, PATH, on_lost=losses))
    waiting = run(granted, zklock.Lock(waiter, PATH))
    queued(holder, PATH, 2)
    still.pause()
    stopped = clock()
    assert losses.one().reason is LossReason.LEASE_LAPSED
    wait_for(lambda: clock() > stopped + seconds, SOON)
    assert not waiting.done()
    still.resume()
    second = waiting.result(SOON)
    assert second.token > grant.token
    second.release()


@pytest.mark.cluster
def test_a_follower_costs_no_lock(zklock_connect: Connect) -> None:
    with Ensemble(3, tick_time=TICK, backend=backend_or_skip("java")) as ensemble:
        follower, *others = ensemble.followers()
        rest = [server.hosts for server in (*others, ensemble.leader())]
        hosts = ",".join([follower.hosts, *rest])
        client = zklock_connect(hosts, timeout=12.0, randomize_hosts=False)
        holds_on(client, follower, lambda: client.handler.server in rest)


@pytest.mark.cluster
def test_a_leader_that_is_left_in_time_costs_no_lock(zklock_connect: Connect) -> None:
    with Ensemble(3, tick_time=TICK, sync_limit=4, backend=backend_or_skip("java")) as ensemble:
        client = zklock_connect(ensemble.hosts, timeout=18.0)
        holds_on(client, ensemble.leader(), lambda: True)


def holds_on(client: Any, still: ZooKeeperServer, elsewhere: Callable[[], bool]) -> None:
    losses = Losses()
    grant = granted(zklock.Lock(client, PATH, on_lost=losses))
    still.pause()
    wait_for(elsewhere, SOON, "another server")
    grant.verify(SOON)
    assert grant.held
    assert not losses.losses
    still.resume()
    grant.release()
