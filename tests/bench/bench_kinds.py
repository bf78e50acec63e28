"""Kinds of locks, many locks, and hand-offs, in one run: ``python -m tests.bench.bench_kinds``.

*Kinds*: acquire + release of a free read lock, write lock and semaphore by one thread, in blocks
that alternate between zklock and kazoo.

*Many locks*: the cycles a second of one client, where each of 16 threads takes a lock of its own:
zklock's, kazoo's and Curator's. zklock's once more with 1,000 tasks.

*Hand-off*: the time from the call of ``release()`` in one process to the end of ``acquire()`` in
another one, which waits. Curator's are two clients in one JVM. The floor's are two bare sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from typing import Any

import zklock
from tests.bench.bench_lock import alternated, begin_together, told
from tests.bench.peers import Block, Jvm, Wire, block_of, connected, cycle_of, warm_jvm
from tests.bench.results import measured_with
from zklock import aio
from zklock.testing import ZooKeeperServer

LIBRARIES = ("zklock", "kazoo")
THREADS, TASKS = 16, 1000
PERMITS = 2
HOLD = 0.01
"""Seconds for which a lock is held, so that the other process stands in the queue."""


def made(library: str, client: Any, kind: str, path: str) -> Any:
    """Return a lock of a kind."""
    limited = kind == "Semaphore"
    if library == "kazoo":
        more = {"max_leases": PERMITS} if limited else {}
        return getattr(client, kind)(path, "bench", **more)
    return getattr(zklock, kind)(client, path, **({"limit": PERMITS} if limited else {}))


def kinds(hosts: str, blocks: int, size: int) -> dict[str, float]:
    """Return the medians of cycles, in seconds."""
    with ExitStack() as stack:
        clients = {each: connected(each, hosts, stack) for each in LIBRARIES}
        cycles: dict[str, Block] = {}
        for kind in ("ReadLock", "WriteLock", "Semaphore"):
            for library, client in clients.items():
                lock = made(library, client, kind, f"/bench-{uuid.uuid4().hex}")
                cycles[f"{library}'s {kind}"] = block_of(cycle_of(lock))
        took = alternated(cycles, blocks, size)
        return {name: statistics.median(each.times) for name, each in took.items()}


def in_threads(library: str, hosts: str, seconds: float) -> float:
    """Return the cycles a second of one client with many threads."""
    counts: list[int] = []
    with ExitStack() as stack:
        client = connected(library, hosts, stack)
        begin = threading.Barrier(THREADS)

        def work(cycle: Callable[[], None]) -> None:
            cycle()
            begin.wait()
            count, until = 0, time.monotonic() + seconds
            while time.monotonic() < until:
                cycle()
                count += 1
            counts.append(count)

        threads = [
            threading.Thread(
                target=work,
                args=(cycle_of(made(library, client, "Lock", f"/bench-{uuid.uuid4().hex}")),),
            )
            for _ in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(counts) / seconds


async def in_tasks(hosts: str, seconds: float) -> float:
    """Return the cycles a second of one client with many tasks."""
    client = await aio.connect(hosts, timeout=10.0)

    async def cycle(lock: aio.Lock) -> None:
        assert await lock.acquire()
        await lock.release()

    async def work(lock: aio.Lock, until: float) -> int:
        count = 0
        while time.monotonic() < until:
            await cycle(lock)
            count += 1
        return count

    try:
        locks = [aio.Lock(client, f"/bench-{uuid.uuid4().hex}") for _ in range(TASKS)]
        await asyncio.gather(*map(cycle, locks))
        until = time.monotonic() + seconds
        counts = await asyncio.gather(*(work(lock, until) for lock in locks))
    finally:
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)
    return sum(counts) / seconds


def hold(library: str, hosts: str, path: str, count: str) -> None:
    """Take the lock so often, and tell when it was taken and given back."""
    moments: list[float] = []
    with ExitStack() as stack:
        if library == "floor":
            lock: Any = Wire(hosts, path)
            stack.callback(lock.close)
        else:
            lock = made(library, connected(library, hosts, stack), "Lock", path)
        begin_together()
        for _ in range(int(count)):
            assert lock.acquire()
            moments.append(time.monotonic())
            time.sleep(HOLD)
            moments.append(time.monotonic())
            lock.release()
    print(json.dumps(moments), flush=True)


def hand_offs(library: str, hosts: str, count: int) -> list[float]:
    """Return the seconds from each release of one process to the turn of the other."""
    command = [sys.executable, "-m", "tests.bench.bench_kinds", "--holder", library, hosts]
    command += [f"/bench-{uuid.uuid4().hex}", str(count)]
    moments = sorted(chain.from_iterable(told(command, 2, 120)))
    return [taken - released for released, taken in zip(moments[1::2], moments[2::2], strict=False)]


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--size", type=int, default=50, help="cycles in a block")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run of many locks")
    parser.add_argument("--count", type=int, default=100, help="hand-offs of each process")
    parser.add_argument("--holder", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.holder:
        hold(*options.holder)
        return
    print(measured_with())
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer(tick_time=2000))
        hosts = server.hosts
        print(f"ZooKeeper {server.version()}")
        jvm = warm_jvm(hosts, stack)
        print("acquire + release of a free lock:")
        took = kinds(hosts, options.blocks, options.size)
        for name, median in took.items():
            peer = took[f"kazoo's {name.rpartition(' ')[2]}"]
            print(f"  {name:22}{1e6 * median:7.0f} µs {median / peer:5.2f} × kazoo's")
        print(f"cycles a second of one client, {THREADS} threads or {TASKS} tasks, a lock each:")
        rates = {f"{each}, threads": in_threads(each, hosts, options.seconds) for each in LIBRARIES}
        rates["zklock, tasks"] = asyncio.run(in_tasks(hosts, options.seconds))
        if isinstance(jvm, Jvm):
            rates["Curator, threads"] = jvm.spread(hosts, THREADS, options.seconds)
        for name, rate in rates.items():
            print(f"  {name:22}{rate:7.0f} /s {rate / rates['kazoo, threads']:5.2f} × kazoo's")
        print("from release() to the end of acquire() in another process:")
        gaps = {each: hand_offs(each, hosts, options.count) for each in (*LIBRARIES, "floor")}
        if isinstance(jvm, Jvm):
            gaps["Curator, one JVM"] = jvm.hand(hosts, options.count, HOLD)
        else:
            print(f"Curator is missing: {jvm}")
        for name, each in gaps.items():
            median = statistics.median(each)
            ratio = median / statistics.median(gaps["kazoo"])
            print(f"  {name:22}{1e6 * median:7.0f} µs {ratio:5.2f} × kazoo's")


if __name__ == "__main__":
    main()
