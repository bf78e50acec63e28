"""Every way to leave a lock. Where the connection breaks on the way: see ``test_drops.py``."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from tests.contract.lasting import LASTING
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
from tests.modes import repeated
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
    rounds = repeated(400, 80)
    with Child(
        "interrupt", hosts=zklock_hosts, path=zklock_path, how=how, rounds=rounds, longest=0.003
    ) as child:
        tally = child.hears()
        assert child.process.wait(SOON) == 0
    with capsys.disabled():
        print(f"\n{how}: {tally}", end=" ", file=sys.stderr)
    assert set(tally) == {"interrupted", "done"}, tally
    assert sum(tally.values()) == rounds
    assert tally["interrupted"] > rounds / 20


@pytest.fixture
def far(zklock_proxy: FaultProxy, zklock_connect: Connect) -> Any:
    """Return a client for which a grant surely takes a while: its server is 2 ms away."""
    client = zklock_connect(zklock_proxy.hosts)
    zklock_proxy.delay(0.002)
    return client


def twice_as_long(lock: zklock.Lock) -> float:
    """Return twice the seconds that a grant takes here and now, in the middle of five."""
    took = []
    for _ in range(5):
        began = time.monotonic()
        granted(lock)
        took.append(time.monotonic() - began)
        lock.release()
    return 2 * sorted(took)[2]


def test_cancels_at_any_moment_leave_nothing(far: Any, other: Any, zklock_path: str) -> None:
    lock = zklock.Lock(far, zklock_path)
    outcomes: Counter[str] = Counter()
    rounds = repeated(200, 60)
    most = twice_as_long(lock)
    for number in range(rounds):
        pending = run(lock.acquire)
        time.sleep(most * number / rounds)
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


def test_timeouts_at_any_moment_leave_nothing(far: Any, other: Any, zklock_path: str) -> None:
    lock = zklock.Lock(far, zklock_path)
    outcomes: Counter[bool] = Counter()
    rounds = repeated(200, 60)
    most = twice_as_long(lock)
    for number in range(rounds):
        grant = lock.acquire(timeout=most * (number + 1) / rounds)
        outcomes[grant is None] += 1
        if grant is not None:
            lock.release()
        wait_for(lambda: not children(other, zklock_path), SOON)
    assert outcomes[True] > 0
    assert outcomes[False] > 0


def test_a_client_that_is_stopped_while_disconnected(
    zklock_proxy: FaultProxy, zklock_connect: Connect, other: Any, zklock_path: str
) -> None:
    client = zklock_connect(zklock_proxy.hosts, timeout=10.0)
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
    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name == "zklock"}

    before = threads()
    client = zklock_connect(zklock_proxy.hosts, timeout=1.0)
    lost = threading.Event()

    def cut(state: str) -> None:
        if state == "LOST":
            zklock_proxy.cut()
            lost.set()

    client.add_listener(cut)
    with contextlib.suppress(zklock.LockLost):  # whether so short a lease lasts is not the point
        granted(zklock.Lock(client, zklock_path)).release()
    zklock_expire_session(client)
    assert lost.wait(SOON)
    until = time.monotonic() + 1.5  # the session's thread finds nothing to do
    wait_for(lambda: time.monotonic() > until, SOON)
    client.stop()
    wait_for(lambda: threads() <= before, SOON, "the session's thread ends with its client")


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
    with kazoo_client(zklock_proxy.hosts, timeout=12.0) as client:
        lock = zklock.Lock(client, zklock_path, session_timeout=12.0, lease_fraction=0.5)
        holder = granted(zklock.Lock(other, zklock_path))
        waiting = run(granted, lock)
        node = queued(other, zklock_path, 2)[1]
        watched = ("reply", "getData")  # of the holder's node, and of its own
        zklock_proxy.wait_until(
            lambda: [(f.kind.value, f.op) for f in zklock_proxy.frames].count(watched) == 2, SOON
        )
        zklock_proxy.hold(to_client=False)  # nothing is proved from now on; watches still fire
        until = time.monotonic() + 4.2  # kazoo gives up after 5.6 s at the earliest
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


@LASTING
def test_many_threads_that_give_up_and_try_again(
    zklock_connect: Connect, other: Any, zklock_path: str
) -> None:
    clients = [zklock_connect() for _ in range(2)]
    holders: list[zklock.Grant] = []
    overlaps: list[object] = []
    given_up = Counter[int]()
    grants = Counter[int]()
    stop = threading.Event()

    def churn(number: int) -> None:
        lock = zklock.Lock(clients[number % 2], zklock_path)
        while not stop.is_set():
            grant = lock.acquire(timeout=0.005 * 2**number)
            if grant is None:
                given_up[number] += 1
                continue
            holders.append(grant)
            if len(holders) != 1:
                overlaps.append(list(holders))
            holders.remove(grant)
            lock.release()
            grants[number] += 1

    churning = [run(churn, number) for number in range(8)]
    wait_for(
        lambda: grants.total() >= 100 and given_up.total() >= 100,
        3 * SOON,
        lambda: f"enough of both: granted {dict(grants)}, given up {dict(given_up)}",
    )
    stop.set()
    for each in churning:
        each.result(SOON)
    assert not overlaps
    passes_on(other, zklock_path)
