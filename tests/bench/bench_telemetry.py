"""What telemetry costs an acquire and a release: ``python -m tests.bench.bench_telemetry``.

Without a hook: how many looks for one are in a cycle, how long one look takes, and the ratio of
both to the cycle. With a hook that does nothing: cycles with and without it, in blocks that
alternate, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import timeit
import uuid

import zklock
from zklock import telemetry
from zklock._ground import telemetry as hub
from zklock.testing import ZooKeeperServer


class Counted(dict[hub.Subscription, None]):
    """No hooks; it counts the looks for one."""

    looks = 0

    def __bool__(self) -> bool:
        self.looks += 1
        return False


def looks(lock: zklock.Lock, cycles: int = 50) -> float:
    """Return how often a cycle looks for hooks, heartbeats in between included."""
    kept, hub.hooks = hub.hooks, Counted()
    try:
        for _ in range(cycles):
            cycle(lock)
        return hub.hooks.looks / cycles
    finally:
        hub.hooks = kept


def look() -> float:
    """Return the seconds of one look."""
    empty = timeit.repeat("pass", number=1_000_000, repeat=5)
    asked = timeit.repeat("if hub.hooks: raise", globals={"hub": hub}, number=1_000_000, repeat=5)
    return (min(asked) - min(empty)) / 1_000_000


def cycle(lock: zklock.Lock) -> float:
    """Acquire and release; return the seconds."""
    started = time.perf_counter()
    grant = lock.acquire()
    assert grant is not None
    lock.release()
    return time.perf_counter() - started


def report(hosts: str, blocks: int, size: int) -> None:
    """Print the ratios."""
    client = zklock.connect(hosts, timeout=10.0)
    lock = zklock.Lock(client, f"/bench-{uuid.uuid4().hex}")
    times: tuple[list[float], list[float]] = [], []
    dropped = 0
    for block in range(blocks + 1):
        for taken, hooked in zip(times, (False, True), strict=True):
            gc.collect()
            subscription = telemetry.subscribe(lambda event: None) if hooked else None
            measured = [cycle(lock) for _ in range(size)]
            if block:  # the first one warms up
                taken.extend(measured)
            if subscription is not None:
                assert subscription.flush(60.0)
                dropped += subscription.dropped
                subscription.close()
    count, each = looks(lock), look()
    client.stop()
    client.close()
    without, with_hook = (statistics.median(taken) for taken in times)
    print(f"acquire + release without a hook: {without * 1e6:.0f} µs")
    print(f"  {count:.1f} looks of {each * 1e9:.0f} ns: {count * each / without:.5f} of it")
    print(f"with a hook: {with_hook * 1e6:.0f} µs, ratio {with_hook / without:.3f}")
    print(f"  {dropped} events dropped")


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", help="a running server; by default one is started")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--size", type=int, default=100, help="cycles in a block")
    options = parser.parse_args()
    if options.hosts:
        report(options.hosts, options.blocks, options.size)
    else:
        with ZooKeeperServer(tick_time=2000) as server:
            report(server.hosts, options.blocks, options.size)


if __name__ == "__main__":
    main()
