"""What an ensemble goes by when the timeout of a session has changed: the leader, and the next one.

An ensemble is followed by another one that has its data and other limits, as after a rolling
restart with another configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.backends import QUICK_ELECTIONS, backend_or_skip
from tests.contract.support import SOON, Losses, boottime, granted, queued, run
from tests.timed import TimedGrant, timed_grants
from zklock.testing import Ensemble, FaultProxy, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow("two ensembles are started"),
    pytest.mark.hazard("H22"),
]

TICK = 500
LONG, SHORT = 10.0, 2.0
PATH = "/negotiation"


class Succession:
    """Two ensembles, one after the other, with the same data; the holder behind proxies."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        before: float,
        after: float,
    ) -> None:
        backend = backend_or_skip("java")
        self.ensembles = [
            Ensemble(
                3,
                tick_time=TICK,
                backend=backend,
                max_session_timeout=round(1000 * limit),
                data_dir=folder,
                system_properties=QUICK_ELECTIONS,
            )
            for limit in (before, after)
        ]
        for ensemble in self.ensembles:
            stack.callback(ensemble.close)
        self.proxies = [
            [stack.enter_context(FaultProxy(server)) for server in ensemble.servers]
            for ensemble in self.ensembles
        ]
        stack.enter_context(timed_grants())
        self.ensembles[0].start()
        self.losses = Losses()
        every = [proxy.hosts for proxies in self.proxies for proxy in proxies]
        self.holder = connect(stack, ",".join(every))
        session = self.holder.client_id[0]
        self.lock = zklock.Lock(self.holder, PATH, on_lost=self.losses)
        with self.lock:
            pass
        self.ensembles[0].stop()
        self.now = self.ensembles[1]
        self.now.start()
        wait_for(lambda: self.holder.connected, SOON, "the holder's connection")
        assert self.holder.client_id[0] == session
        self.rival = connect(stack, self.now.hosts)

    def duel(self, cut: Callable[[], object]) -> float:
        """Cut a holder off; return when its rival began, since the cut. It noticed before."""
        grant = granted(self.lock)
        waiting = run(granted, zklock.Lock(self.rival, PATH), timeout=3 * SOON)
        queued(self.rival, PATH, 2)
        begun = boottime()
        cut()
        won = waiting.result(3 * SOON)
        assert not grant.held
        assert isinstance(won, TimedGrant)
        assert self.losses.one().noticed < won.began
        return won.began - begun


def connect(stack: ExitStack, hosts: str) -> Any:
    client = zklock.connect(hosts, LONG, start_timeout=SOON)
    stack.callback(client.close)
    stack.callback(client.stop)
    return client


@pytest.fixture
def make_succession(
    tmp_path: Path,
) -> Iterator[Callable[[float, float], Succession]]:
    with ExitStack() as stack:
        yield lambda before, after: Succession(stack, tmp_path, before, after)


def test_a_leader_goes_by_the_shorter_timeout(
    make_succession: Callable[[float, float], Succession],
) -> None:
    line = make_succession(LONG, SHORT)

    def cut() -> None:
        for proxy in line.proxies[1]:
            proxy.blackhole()

    assert line.duel(cut) < LONG / 2


def test_a_new_leader_goes_by_the_first_timeout(
    make_succession: Callable[[float, float], Succession],
) -> None:
    line = make_succession(SHORT, LONG)

    def cut() -> None:
        for proxy in line.proxies[1]:
            proxy.cut()
        before = line.now.leader()
        before.kill()
        wait_for(lambda: line.now.leader() is not before, 30, "another leader")

    assert line.duel(cut) < LONG
