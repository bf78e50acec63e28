"""What happens when a lock's sequence numbers run out, on a real server that is about to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.recipe.lock import Lock as KazooLock

import zklock
from tests.contract.support import (
    EXHAUSTED_AT,
    RENEW_AT,
    SOON,
    Child,
    children,
    kazoo_client,
    queued,
    run,
)
from tests.modes import repeated
from zklock.testing import Capability, ZooKeeperServer

pytestmark = pytest.mark.hazard("H2")

PROCESSES = repeated(8, 4)
EACH = repeated(25, 8)
LAST = 2**31 - 1

COUNTERS = {
    "/roll-over": 2147483640,
    "/renewed": RENEW_AT - 5,
    "/exhausted": EXHAUSTED_AT - PROCESSES * EACH // 2,
    "/with-a-stray": EXHAUSTED_AT - 2,
    "/worn-zklock": LAST - 1,
    "/worn-kazoo": LAST - 1,
}


@pytest.fixture(scope="module")
def shared_server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        if Capability.DATA not in server.capabilities:
            pytest.skip("these servers do not show their data")
        wear(server)
        yield server


def wear(server: ZooKeeperServer) -> None:
    with kazoo_client(server.hosts) as client:
        for path in COUNTERS:
            if client.exists(path):
                client.delete(path, recursive=True)
            client.create(path)
    server.stop()
    for path, value in COUNTERS.items():
        server.set_child_counter(path, value)
    server.start()


@pytest.fixture
def worn_server(shared_server: ZooKeeperServer, request: pytest.FixtureRequest) -> ZooKeeperServer:
    """A server on which the next child of these paths gets these numbers.

    Each test uses paths of its own. With ``--count`` it uses them again.
    """
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("__pytest_repeat_step_number"):
        wear(shared_server)
    return shared_server


def test_acquisitions_across_the_limit(worn_server: ZooKeeperServer, tmp_path: Path) -> None:
    paths = ["/roll-over", "/renewed", "/exhausted"]
    ledger = tmp_path / "ledger"
    with kazoo_client(worn_server.hosts) as onlooker, ExitStack() as stack:
        epochs = {path: onlooker.exists(path).czxid for path in paths}
        given = {"paths": paths, "ledger": str(ledger), "count": EACH}
        processes = [
            stack.enter_context(Child("numbered", hosts=worn_server.hosts, **given))
            for _ in range(PROCESSES)
        ]
        for process in processes:
            assert process.hears() == "ready"
        for process in processes:
            process.tell("go")
        for process in processes:
            assert process.hears() == "done"
            assert process.process.wait(SOON) == 0
        left = {path: children(onlooker, path) for path in paths}
        renewed = onlooker.exists("/renewed")
    assert left == {path: [] for path in paths}
    grants = [line.split() for line in ledger.read_text().splitlines()]
    for path in paths:
        tokens = [
            zklock.FencingToken(int(epoch), int(number))
            for where, epoch, number in grants
            if where == path
        ]
        assert len(tokens) == PROCESSES * EACH
        # In the order in which the locks were held: so first come, first served in every epoch.
        assert tokens == sorted(set(tokens))
        assert all(token.sequence < EXHAUSTED_AT for token in tokens)
        assert tokens[0].epoch >= epochs[path]
        if path != "/renewed":
            assert tokens[-1].epoch > epochs[path]
        elif tokens[-1].sequence >= RENEW_AT:
            assert renewed is None  # it went with the last release
        else:
            assert renewed.czxid == tokens[-1].epoch > epochs[path]  # with an earlier one


def test_a_parent_that_cannot_be_renewed(worn_server: ZooKeeperServer) -> None:
    path = "/with-a-stray"
    with kazoo_client(worn_server.hosts) as client:
        client.create(f"{path}/stray")  # takes a number, too
        lock = zklock.Lock(client, path, session_timeout=10.0)
        with lock as grant:
            assert grant.token.sequence == EXHAUSTED_AT - 1  # the last one
        with pytest.raises(zklock.SequenceExhausted, match="'stray'") as caught:
            lock.acquire()
        assert caught.value.path == path
        assert children(client, path) == ["stray"]
        client.delete(f"{path}/stray")
        with lock as renewed:
            assert renewed.token.sequence == 0
            assert renewed.token > grant.token


def test_nobody_is_granted_on_a_worn_out_number(worn_server: ZooKeeperServer) -> None:
    with kazoo_client(worn_server.hosts) as client:
        client.create("/stray")
        for number in (LAST, -1, -(2**31)):
            client.create(f"/stray/_c_x-lock-{number:010d}")
        lock = zklock.Lock(client, "/stray", session_timeout=10.0)
        order = [contender.sequence for contender in lock.contenders()]
        assert order == [LAST, -(2**31), -1]
        assert [contender.token is None for contender in lock.contenders()] == [False, True, True]
        client.delete("/stray", recursive=True)


def zklock_lock(client: Any, path: str) -> Any:
    return zklock.Lock(client, path, session_timeout=10.0, timeout=SOON)


@pytest.mark.parametrize(
    "make",
    [
        zklock_lock,
        pytest.param(
            KazooLock,
            marks=pytest.mark.xfail(raises=AssertionError, strict=True, reason="two holders"),
        ),
    ],
    ids=["zklock", "kazoo"],
)
def test_one_holder_at_a_time_at_the_limit(
    worn_server: ZooKeeperServer, make: Callable[[Any, str], Any], request: pytest.FixtureRequest
) -> None:
    path = f"/worn-{request.node.callspec.id.partition('-')[0]}"
    meeting = threading.Barrier(2)

    def hold(lock: Any) -> bool:
        """Whether somebody else holds it, too."""
        with lock, contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(1.0)
            return True
        return False

    with kazoo_client(worn_server.hosts) as one, kazoo_client(worn_server.hosts) as two:
        with make(one, path):
            # For kazoo this is the last number but one: those behind get the last one, both.
            waiting = []
            for client in (one, two):
                waiting.append(run(hold, make(client, path)))
                queued(one, path, 1 + len(waiting))
        assert [each.result(SOON) for each in waiting] == [False, False]
