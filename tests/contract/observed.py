"""A program with telemetry: it makes something happen of every kind, and prints its metrics.

``python -m tests.contract.observed HOSTS PATH``
"""

from __future__ import annotations

import faulthandler
import sys
import threading

from prometheus_client import CollectorRegistry, generate_latest

import zklock
from tests.contract.support import SOON, granted, queued, run
from zklock.fencing import MemoryGuard
from zklock.telemetry.prometheus import LockMetrics
from zklock.testing import wait_for


def main(hosts: str, path: str) -> None:
    """Use locks, an election, a pool and a guard, lose a grant, and print the metrics."""
    faulthandler.dump_traceback_later(120, exit=True)
    registry = CollectorRegistry()
    metrics = LockMetrics(registry)
    client, other = (zklock.connect(hosts, timeout=20.0) for _ in range(2))
    lock, behind = zklock.Lock(client, f"{path}/lock"), zklock.Lock(other, f"{path}/lock")
    guard = MemoryGuard("store")
    gaps = "zklock_client_handover_gap_seconds_count", {"path": lock.path, "kind": "exclusive"}
    while True:
        first = granted(lock)
        second = run(granted, behind)
        queued(client, lock.path, 2)
        assert zklock.Lock(client, lock.path).acquire(timeout=0.1) is None
        lock.release()
        taken = second.result(SOON)
        assert metrics.flush(SOON)
        if registry.get_sample_value(*gaps):
            break
        taken.release()  # the first one was gone before the second could watch it
    guard.claim(taken)
    try:
        guard.claim(first.token)
    except zklock.StaleToken:
        pass
    else:
        raise AssertionError("the guard let a stale token in")
    behind.break_lock(timeout=SOON)
    assert taken.lost.wait(SOON)
    pool = zklock.WorkerPool(client, f"{path}/pool", shards=2)
    pool.start()
    wait_for(lambda: len(pool.owned()) == 2, SOON)
    election = zklock.LeaderElection(client, f"{path}/election")
    elected, stop = threading.Event(), threading.Event()
    with election.observe(lambda change: elected.set() if change.leader else None):
        led = run(election.run, lambda term: term.should_stop.wait(SOON), stop)
        assert elected.wait(SOON)
    tidy = zklock.Lock(client, f"{path}/tidy", tidy=True)
    for _ in range(2):
        granted(tidy).release()
    held = granted(lock)
    held.verify()
    suspended = "zklock_client_suspensions_total", {"path": lock.path, "kind": "exclusive"}
    client.handler.drop()
    wait_for(lambda: registry.get_sample_value(*suspended), SOON, "a suspension is counted")
    held.verify(SOON)
    assert metrics.flush(SOON)
    print(generate_latest(registry).decode(), flush=True)
    held.release()
    stop.set()
    led.result(SOON)
    pool.stop()
    for each in (client, other):
        each.stop()
    metrics.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
