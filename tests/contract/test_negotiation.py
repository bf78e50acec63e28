"""A session whose timeout changes while it lives: the lease goes by the least of them.

A server is followed by another one that has its data and other limits, as after a restart with
another configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.backends import backend_or_skip
from tests.contract.support import LEASE_FRACTION, SOON, Losses, boottime, granted, queued, run
from tests.timed import TimedGrant, timed_grants
from zklock.testing import FaultProxy, ZooKeeperServer, wait_for

pytestmark = pytest.mark.hazard("H22")

TICK = 500
LONG, SHORT = 12.0, 4.0
PATH = "/negotiation"


class Line:
    """Servers, one after the other, with one set of data; behind each, a proxy for the holder.

    The clients know the addresses of all of them from the start.
    """

    def __init__(self, folder: Path, *limits: float) -> None:
        self._stack = ExitStack()
        self._longest = max(limits)
        options: dict[str, Any] = {"tick_time": TICK, "backend": backend_or_skip("java")}
        self.servers = [
            ZooKeeperServer(**options, max_session_timeout=round(1000 * limit), data_dir=folder)
            for limit in limits
        ]
        for server in self.servers:
            self._stack.callback(server.close)
        self.proxies = [self._stack.enter_context(FaultProxy(server)) for server in self.servers]
        self.at = 0
        self.servers[0].start()
        self.losses = Losses()
        self._stack.enter_context(timed_grants())
        self.client = self._connect(",".join(proxy.hosts for proxy in self.proxies))
        self.rival = self._connect(",".join(server.hosts for server in self.servers))
        self.lock = zklock.Lock(self.client, PATH, on_lost=self.losses)
        with self.lock:
            pass

    def _connect(self, hosts: str) -> Any:
        client = zklock.connect(hosts, self._longest, start_timeout=SOON, randomize_hosts=False)
        return self._stack.enter_context(client)

    def close(self) -> None:
        self._stack.close()

    @property
    def proxy(self) -> FaultProxy:
        return self.proxies[self.at]

    def next(self) -> None:
        """Stop the present server and start the next one."""
        self.servers[self.at].stop()
        self.at += 1
        self.servers[self.at].start()

    def back(self) -> None:
        """Wait until the holder's session goes on, and is proved to."""
        wait_for(lambda: self.client.connected and self.rival.connected, SOON, "connections")
        self.lock.acquire(timeout=SOON)
        self.lock.release()

    def duel(self, cut: Callable[[], object]) -> tuple[zklock.Loss, float]:
        """Hold the lock, with a rival behind; cut; return the loss, and when the rival began."""
        grant = granted(self.lock)
        waiting = run(granted, zklock.Lock(self.rival, PATH), timeout=2 * SOON)
        queued(self.rival, PATH, 2)
        cut()
        won = waiting.result(2 * SOON)
        assert not grant.held
        assert isinstance(won, TimedGrant)
        assert won.token > grant.token
        won.release()
        return self.losses.one(), won.began


@pytest.fixture
def make_line(tmp_path: Path) -> Iterator[Callable[..., Line]]:
    made: list[Line] = []

    def make(*limits: float) -> Line:
        made.append(Line(tmp_path, *limits))
        return made[-1]

    yield make
    for line in made:
        line.close()


def test_a_shortened_session_is_lost_before_the_next_grant(make_line: Callable[..., Line]) -> None:
    line = make_line(LONG, SHORT)
    session = line.client.client_id[0]
    line.next()
    line.back()
    assert line.client.client_id[0] == session
    assert line.client.handler.session_timeout == SHORT
    loss, began = line.duel(line.proxy.blackhole)
    assert loss.noticed < began


def test_a_lease_that_runs_is_shortened_with_the_session(make_line: Callable[..., Line]) -> None:
    line = make_line(LONG, SHORT)
    grant = granted(line.lock)
    assert grant.remaining() > SHORT
    line.next()
    wait_for(lambda: line.client.handler.session_timeout == SHORT, SOON, "a shorter timeout")
    assert grant.remaining() <= LEASE_FRACTION * SHORT


@pytest.mark.parametrize("how", ["silence", "an end"])
def test_a_session_that_is_shortened_unheard_is_lost_before_the_next_grant(
    make_line: Callable[..., Line], how: str
) -> None:
    """The server takes the handshake that shortens the session; its answer does not arrive."""
    line = make_line(LONG, SHORT)
    behind = line.proxies[1]
    arm = behind.hold_before_reply if how == "silence" else behind.drop_before_reply
    fault = arm(op="connect")

    def cut() -> None:
        line.next()
        fault.wait(SOON)
        if how == "an end":
            behind.cut()

    loss, began = line.duel(cut)
    assert loss.reason is zklock.LossReason.LEASE_LAPSED
    assert loss.noticed < began


def test_what_a_session_began_with_counts_after_a_growth(make_line: Callable[..., Line]) -> None:
    """A server that is started anew goes by the first timeout, whatever was negotiated since."""
    # On a busy machine, too, the session outlives the change of servers.
    first, longer = 2 * SHORT, 2 * LONG
    line = make_line(first, longer, longer)
    line.next()
    line.back()
    assert line.client.handler.session_timeout == first

    started: list[float] = []

    def cut() -> None:
        line.proxy.cut()
        line.proxies[2].cut()
        line.next()
        started.append(boottime())

    loss, began = line.duel(cut)
    assert loss.noticed < began
    # Whereas the server that took the connection would have waited for the longer one.
    assert began - started[0] < longer
