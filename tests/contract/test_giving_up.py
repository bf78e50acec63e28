"""Every way to leave a lock. Where the connection breaks on the way: see ``test_drops.py``."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter

import pytest

import zklock
from tests.contract.fronts import Behind, Place, Threads
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, granted, kazoo_client, passes_on, results, run
from tests.modes import repeated
from zklock.testing import FaultProxy, expire_session, wait_for


@pytest.fixture
def front() -> Threads:
    return Threads()


def test_a_create_whose_reply_was_lost_is_found_h5(behind: Behind, theirs: Place) -> None:
    theirs.client.ensure_path(theirs.path)
    lock = behind().Lock()
    fault = behind.proxy.drop_after_request(op="create2")
    grant = granted(lock)
    assert fault.answered
    assert grant.token.sequence == 0  # the same node: nothing was created twice
    grant.verify()
    lock.release()
    theirs.passes_on()


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_giving_up_at_any_moment_leaves_nothing(behind: Behind, theirs: Place, how: str) -> None:
    lock = behind().Lock()
    behind.proxy.delay(0.002)  # so a grant surely takes a while
    took = []
    for _ in range(5):
        began = time.monotonic()
        granted(lock)
        took.append(time.monotonic() - began)
        lock.release()
    most, rounds = 2 * sorted(took)[2], repeated(200, 60)
    outcomes: Counter[bool] = Counter()
    for number in range(1, rounds + 1):
        grant = None
        if how == "timeout":
            grant = lock.acquire(timeout=most * number / rounds)
        else:
            pending = run(lock.acquire)
            time.sleep(most * number / rounds)
            lock.cancel()
            with contextlib.suppress(zklock.AcquireCancelled):
                grant = pending.result(SOON)
                assert grant is not None
        outcomes[grant is None] += 1
        if grant is not None:
            assert grant.held
            grant.release()
        theirs.gone()
    assert outcomes[True] > 0
    assert outcomes[False] > 0
    theirs.passes_on()


def test_a_client_that_is_stopped_while_disconnected(behind: Behind, theirs: Place) -> None:
    far = behind()
    lock = far.Lock()
    held = granted(lock)
    waiting = theirs.waits(far.Lock(), 2)
    behind.proxy.cut()
    wait_for(lambda: not far.client.connected, SOON)
    far.client.stop()
    with pytest.raises(zklock.ClientClosed):
        waiting.result(SOON)
    assert not held.held
    behind.proxy.restore()
    theirs.passes_on()


def test_a_client_that_is_stopped_after_its_session_was_lost(behind: Behind) -> None:
    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name == "zklock"}

    before = threads()
    far = behind(timeout=1.0)
    lost = threading.Event()

    def cut(state: str) -> None:
        if state == "LOST":
            behind.proxy.cut()
            lost.set()

    far.client.add_listener(cut)
    with contextlib.suppress(zklock.LockLost):  # whether so short a lease lasts is not the point
        granted(far.Lock()).release()
    expire_session(far.client)
    assert lost.wait(SOON)
    until = time.monotonic() + 1.5  # the session's thread finds nothing to do
    wait_for(lambda: time.monotonic() > until, SOON)
    far.client.stop()
    wait_for(lambda: threads() <= before, SOON, "the session's thread ends with its client")


def test_a_session_that_expires_while_entering(behind: Behind, theirs: Place) -> None:
    theirs.client.ensure_path(theirs.path)
    far = behind()
    lock = far.Lock()
    granted(lock).release()
    hold = behind.proxy.hold_before_reply(op="create2")
    waiting = run(granted, lock)
    hold.wait(SOON)
    # Its contender is gone, its creation never heard of.
    expire_session(far.client.client_id, "{}:{}".format(*theirs.client.hosts[0]))
    behind.proxy.drop()
    behind.proxy.release()
    grant = waiting.result(SOON)
    grant.verify()
    grant.release()
    theirs.passes_on()


def test_a_claim_whose_node_is_deleted_queues_again(
    theirs: Place, zklock_proxy: FaultProxy, zklock_path: str
) -> None:
    """The turn comes while the lease has too little time to go, and the node goes meanwhile."""
    with kazoo_client(zklock_proxy.hosts, timeout=12.0) as client:
        lock = zklock.Lock(client, zklock_path, session_timeout=12.0, lease_fraction=0.5)
        holder = granted(theirs.Lock())
        waiting = theirs.waits(lock, 2)
        node = f"{zklock_path}/{theirs.nodes()[1]}"
        watched = ("reply", "getData")  # of the holder's node, and of its own
        zklock_proxy.wait_until(
            lambda: [(f.kind.value, f.op) for f in zklock_proxy.frames].count(watched) == 2, SOON
        )
        zklock_proxy.hold(to_client=False)  # nothing is proved from now on; watches still fire
        until = time.monotonic() + 4.2  # kazoo gives up after 5.6 s at the earliest
        wait_for(lambda: time.monotonic() > until, SOON)
        mark = zklock_proxy.mark()
        holder.release()
        theirs.client.delete(node)
        for path in (holder.path, node):
            zklock_proxy.wait_for_frame(
                lambda frame, path=path: (frame.op, frame.path) == ("NodeDeleted", path),  # type: ignore[misc]
                SOON,
                since=mark,
            )
        assert not waiting.done()
        zklock_proxy.release()
        grant = waiting.result(SOON)
        assert grant.path != node
        grant.release()
    passes_on(theirs.client, zklock_path)


@LASTING
def test_many_threads_that_give_up_and_try_again(mine: Place, theirs: Place) -> None:
    holders: list[zklock.Grant] = []
    overlaps: list[object] = []
    given_up = Counter[int]()
    grants = Counter[int]()
    stop = threading.Event()

    def churn(number: int) -> None:
        lock = (mine, theirs)[number % 2].Lock()
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
    results(churning)
    assert not overlaps
    theirs.passes_on()
