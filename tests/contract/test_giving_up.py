"""Every way to leave a lock. Where the connection breaks on the way: see ``test_drops.py``."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from tests.contract.support import (
    SOON,
    Child,
    children,
    granted,
    kazoo_client,
    passes_on,
    queued,
    run,
)
from zklock.testing import FaultProxy, wait_for

Connect = Callable[..., Any]


def test_a_create_whose_reply_was_lost_is_found_h5(
    zklock_proxy: FaultProxy, zklock_connect: Connect, other: Any, zklock_path: str
) -> None:
    other.ensure_path(zklock_path)
    lock = zklock.Lock(zklock_connect(zklock_proxy.hosts), zklock_path)
    fault = zklock_proxy.drop_after_request(op="create2")
    grant = granted(lock)
    assert fault.answered
    assert grant.token.sequence == 0  # the same node: nothing was created twice
    grant.verify()
    lock.release()
    passes_on(other, zklock_path)


@pytest.mark.parametrize("how", ["with", "acquire", "hand-off"])
def test_interrupts_leave_nothing_h9(
    zklock_hosts: str, zklock_path: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = 400
    with Child(
        "interrupt", hosts=zklock_hosts, path=zklock_path, how=how, rounds=rounds, longest=0.003
    ) as child:
        tally = child.hears()
        assert child.process.wait(SOON) == 0
    with capsys.disabled():
        print(f"\n{how}: {tally}", end=" ")
    assert set(tally) == {"interrupted", "done"}, tally
    assert sum(tally.values()) == rounds
    assert tally["interrupted"] > rounds / 20


def test_cancels_at_any_moment_leave_nothing(
    zklock_client: Any, other: Any, zklock_path: str
) -> None:
    lock = zklock.Lock(zklock_client, zklock_path)
    outcomes: Counter[str] = Counter()
    rounds = 200
    for number in range(rounds):
        pending = run(lock.acquire)
        until = time.perf_counter() + 0.002 * number / rounds
        while time.perf_counter() < until:
            time.sleep(0)  # or the answer would have to wait, too
        lock.cancel()
        try:
            grant = pending.result(SOON)
        except zklock.AcquireCancelled:
            outcomes["cancelled"] += 1
        else:
            assert grant is not None
            assert grant.held
            grant.release()
            outcomes["granted"] += 1
        wait_for(lambda: not children(other, zklock_path), SOON)
    assert outcomes["cancelled"] > 0
    assert outcomes["granted"] > 0
    passes_on(other, zklock_path)


def test_timeouts_at_any_moment_leave_nothing(
    zklock_client: Any, other: Any, zklock_path: str
) -> None:
    lock = zklock.Lock(zklock_client, zklock_path)
    outcomes: Counter[bool] = Counter()
    rounds = 200
    for number in range(rounds):
        grant = lock.acquire(timeout=0.002 * (number + 1) / rounds)
        outcomes[grant is None] += 1
        if grant is not None:
            lock.release()
        wait_for(lambda: not children(other, zklock_path), SOON)
    assert outcomes[True] > 0
    assert outcomes[False] > 0


def test_a_client_that_is_stopped_while_waiting(
    zklock_connect: Connect, other: Any, zklock_path: str
) -> None:
    client = zklock_connect()
    with zklock.Lock(other, zklock_path):
        waiting = [run(zklock.Lock(client, zklock_path).acquire) for _ in range(3)]
        queued(other, zklock_path, 4)
        client.stop()
        for each in waiting:
            with pytest.raises(zklock.ClientClosed):
                each.result(SOON)
        queued(other, zklock_path, 1)
    passes_on(other, zklock_path)


def test_a_client_that_is_stopped_while_disconnected(
    zklock_proxy: FaultProxy, zklock_connect: Connect, other: Any, zklock_path: str
) -> None:
    client = zklock_connect(zklock_proxy.hosts, timeout=2.0)
    lock = zklock.Lock(client, zklock_path)
    held = granted(lock)
    with_held = run(lock.acquire)
    queued(other, zklock_path, 2)
    zklock_proxy.cut()
    wait_for(lambda: not client.connected, SOON)
    client.stop()
    with pytest.raises(zklock.ClientClosed):
        with_held.result(SOON)
    assert not held.held
    zklock_proxy.restore()
    passes_on(other, zklock_path)


def test_a_client_that_is_stopped_after_its_session_was_lost(
    zklock_proxy: FaultProxy,
    zklock_connect: Connect,
    zklock_path: str,
    zklock_expire_session: Callable[..., int],
) -> None:
    def threads() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name == "zklock-session"]

    client = zklock_connect(zklock_proxy.hosts, timeout=1.0)
    lost = threading.Event()

    def cut(state: str) -> None:
        if state == "LOST":
            zklock_proxy.cut()
            lost.set()

    client.add_listener(cut)
    granted(zklock.Lock(client, zklock_path)).release()
    zklock_expire_session(client)
    assert lost.wait(SOON)
    until = time.monotonic() + 1.5  # the session's thread finds nothing to do
    wait_for(lambda: time.monotonic() > until, SOON)
    client.stop()
    wait_for(lambda: not threads(), SOON, "the session's thread ends with its client")


def test_a_session_that_expires_while_entering(
    zklock_proxy: FaultProxy,
    zklock_connect: Connect,
    other: Any,
    zklock_path: str,
    zklock_expire_session: Callable[[Any], int],
) -> None:
    other.ensure_path(zklock_path)
    client = zklock_connect(zklock_proxy.hosts)
    lock = zklock.Lock(client, zklock_path)
    granted(lock).release()
    hold = zklock_proxy.hold_before_reply(op="create2")
    waiting = run(granted, lock)
    hold.wait(SOON)
    zklock_expire_session(client)  # its contender is gone, its creation never heard of
    zklock_proxy.drop()
    zklock_proxy.release()
    grant = waiting.result(SOON)
    grant.verify()
    grant.release()
    passes_on(other, zklock_path)


def test_a_claim_whose_node_is_deleted_queues_again(
    zklock_proxy: FaultProxy, other: Any, zklock_path: str
) -> None:
    """The turn comes while the lease has too little time to go, and the node goes meanwhile."""
    with kazoo_client(zklock_proxy.hosts) as client:
        lock = zklock.Lock(client, zklock_path, session_timeout=4.0, lease_fraction=0.5)
        holder = granted(zklock.Lock(other, zklock_path))
        waiting = run(granted, lock)
        node = queued(other, zklock_path, 2)[1]
        watched = ("reply", "getData")  # of the holder's node, and of its own
        zklock_proxy.wait_until(
            lambda: [(f.kind.value, f.op) for f in zklock_proxy.frames].count(watched) == 2, SOON
        )
        zklock_proxy.hold(to_client=False)  # nothing is proved from now on; watches still fire
        until = time.monotonic() + 1.4  # kazoo gives up after 1.9 s at the earliest
        wait_for(lambda: time.monotonic() > until, SOON)
        mark = zklock_proxy.mark()
        holder.release()
        other.delete(f"{zklock_path}/{node}")
        for path in (holder.path, f"{zklock_path}/{node}"):
            zklock_proxy.wait_for_frame(
                lambda frame, path=path: (frame.op, frame.path) == ("NodeDeleted", path),  # type: ignore[misc]
                SOON,
                since=mark,
            )
        assert not waiting.done()
        zklock_proxy.release()
        grant = waiting.result(SOON)
        assert grant.path != f"{zklock_path}/{node}"
        grant.release()
    passes_on(other, zklock_path)


def test_many_threads_that_give_up_and_try_again(
    zklock_connect: Connect, other: Any, zklock_path: str
) -> None:
    clients = [zklock_connect() for _ in range(2)]
    holders: list[zklock.Grant] = []
    overlaps: list[object] = []
    stop = threading.Event()

    def churn(number: int) -> int:
        lock = zklock.Lock(clients[number % 2], zklock_path)
        count = 0
        while not stop.is_set():
            grant = lock.acquire(timeout=0.01 * (number + 1))
            if grant is not None:
                holders.append(grant)
                if len(holders) != 1:
                    overlaps.append(list(holders))
                holders.remove(grant)
                lock.release()
                count += 1
        return count

    churning = [run(churn, number) for number in range(8)]
    time.sleep(2.0)
    stop.set()
    assert sum(each.result(SOON) for each in churning) > 0
    assert not overlaps
    passes_on(other, zklock_path)
