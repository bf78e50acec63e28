"""A server that is overloaded: it answers ``ThrottledOp`` to each request that waited too long."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.exceptions import ThrottledOpError

import zklock
from tests.backends import backend_or_skip
from tests.contract.support import SOON, children, granted, results, run
from zklock.testing import FaultProxy, ZooKeeperServer, embedded, wait_for
from zklock.testing.selection import BACKEND_VARIABLE

pytestmark = pytest.mark.hazard("H30")

THROTTLED = -127
CONTENDERS = 6
PATH = "/throttled"
REFUSED = ("create2", "getChildren2", "getData", "delete")


@pytest.fixture
def overloaded() -> Iterator[FaultProxy]:
    """A relay to a server that works on one request at a time, and refuses what had to wait.

    The embedded server never has to wait: it is told what to refuse.
    """
    if os.environ.get(BACKEND_VARIABLE) == "embedded":
        with embedded() as scripted, FaultProxy(scripted) as relay:
            for op in REFUSED:
                scripted.throttle(op, 2 * CONTENDERS)
            yield relay
        return
    properties = {
        "zookeeper.request_throttle_max_requests": "1",
        "zookeeper.request_throttle_stall_time": "10",
        "zookeeper.throttled_op_wait_time": "1",
    }
    server = ZooKeeperServer(backend=backend_or_skip("java"), system_properties=properties)
    with server, FaultProxy(server) as relay:
        yield relay


def refused(relay: FaultProxy) -> Counter[str]:
    """Count the requests that the server refused, by their sort."""
    return Counter(frame.op for frame in relay.frames if frame.error == THROTTLED)


def empty(client: Any) -> bool:
    """Whether nothing is left, if the server says so: it may refuse this question, too."""
    try:
        return not children(client, PATH)
    except ThrottledOpError:
        return False


def test_an_overloaded_server_costs_time_and_no_lock(
    overloaded: FaultProxy, zklock_connect: Callable[..., Any]
) -> None:
    client = zklock_connect(overloaded.hosts, timeout=30.0)
    inside: list[int] = []
    tokens: list[zklock.FencingToken] = []

    def enough() -> bool:
        seen = refused(overloaded)
        return all(seen[op] for op in REFUSED)

    def contend(number: int) -> None:
        lock = zklock.Lock(client, PATH)
        while not enough():
            grant = granted(lock, timeout=2 * SOON)
            inside.append(number)
            assert inside == [number]
            tokens.append(grant.token)
            grant.check()
            inside.remove(number)
            lock.release()

    results([run(contend, number) for number in range(CONTENDERS)], 4 * SOON)
    assert tokens == sorted(set(tokens))
    wait_for(lambda: empty(client), SOON)
