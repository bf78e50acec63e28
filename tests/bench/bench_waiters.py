"""Thousands of tasks that wait on one client: ``python -m tests.bench.bench_waiters [COUNT]``.

Once all on one lock, once on a hundred locks. For each: seconds until all are in the queue, memory
of this process for each waiter, and seconds until all have had their turn, one after the other; of
both also the processor time of this process, which a busy machine does not change, and the longest
delay of the event loop. Python's cyclic collector stops all threads: its longest run is in
processor time. ``--no-collector`` does without it. First comes the floor of the delay: as many
tasks that only wait for a future.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import threading
import time
import uuid
from pathlib import Path

from kazoo.client import KazooClient

from zklock import aio
from zklock.testing import ZooKeeperServer

LIMIT = 600.0


def resident() -> int:
    """Return the bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class Collector:
    """The runs of Python's cyclic collector."""

    def __init__(self) -> None:
        self._began = 0.0
        self.took: list[float] = []
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.took.append(time.thread_time() - self._began)

    def said(self) -> str:
        """Return what it took since the last call."""
        took, self.took = self.took, []
        return f"{sum(took):.2f} s, {max(took, default=0.0) * 1000:.0f} ms at most"


class Ticking:
    """Measures how late the event loop is."""

    def __init__(self) -> None:
        self._slowest = 0.0
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.01)
            self._slowest = max(self._slowest, time.perf_counter() - before - 0.01)

    def slowest(self) -> float:
        """Return the longest delay since the last call, in milliseconds."""
        slowest, self._slowest = self._slowest, 0.0
        return slowest * 1000

    def stop(self) -> None:
        self._task.cancel()


async def floor(count: int) -> None:
    """Print how late the loop is if so many tasks begin at once, and wait for nothing of ours."""
    gate = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        await gate

    ticking = Ticking()
    tasks = [asyncio.create_task(wait()) for _ in range(count)]
    await asyncio.sleep(0.2)
    print(f"{count} tasks that wait for a future: the loop was late by {ticking.slowest():.0f} ms")
    gate.set_result(None)
    await asyncio.gather(*tasks)
    ticking.stop()


async def bench(hosts: str, count: int, locks: int) -> None:
    """Queue so many waiters on so many locks behind a holder of each, and let them through."""
    root = f"/bench-{uuid.uuid4().hex[:8]}"
    async with (
        aio.connect(hosts, timeout=30.0) as client,
        aio.connect(hosts, timeout=30.0) as other,
    ):
        paths = [f"{root}/{number}" for number in range(locks)]
        gates = [await aio.Lock(other, path).acquire() for path in paths]
        acquirers = [aio.Lock(client, path) for path in paths]
        served = 0

        async def wait(lock: aio.Lock) -> None:
            nonlocal served
            async with lock:
                served += 1

        collector = Collector()
        gc.collect()
        collector.said()
        before = resident()
        ticking = Ticking()
        started, cpu = time.perf_counter(), time.process_time()
        tasks = [asyncio.create_task(wait(acquirers[at % locks])) for at in range(count)]
        await in_queue(other, paths, count + locks)
        await asyncio.to_thread(client.sync, root)
        queued, queued_cpu = time.perf_counter() - started, time.process_time() - cpu
        memory = (resident() - before) / count
        queue_late, queue_collector = ticking.slowest(), collector.said()
        threads = threading.active_count()
        started, cpu = time.perf_counter(), time.process_time()
        for gate in gates:
            assert gate is not None
            gate.abandon()
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*tasks)
        drained, drained_cpu = time.perf_counter() - started, time.process_time() - cpu
        drain_late, drain_collector = ticking.slowest(), collector.said()
        ticking.stop()
        assert served == count
        print(
            f"{count} waiters on {locks} lock(s): queued in {queued:.2f} s "
            f"({count / queued:.0f}/s, {queued_cpu:.2f} s of CPU), "
            f"{memory / 1024:.1f} KiB each, {threads} threads; "
            f"drained in {drained:.2f} s ({count / drained:.0f}/s, {drained_cpu:.2f} s of CPU); "
            f"the loop was late by {queue_late:.0f} ms at most while they queued, "
            f"{drain_late:.0f} ms while they drained; the collector: {queue_collector}, and "
            f"{drain_collector}"
        )
        await asyncio.to_thread(other.delete, root, recursive=True)


async def in_queue(client: KazooClient, paths: list[str], count: int) -> None:
    """Wait until so many nodes are below the paths together."""

    def found() -> int:
        return sum(client.get(path)[1].numChildren for path in paths)

    async with asyncio.timeout(LIMIT):
        while await asyncio.to_thread(found) < count:
            await asyncio.sleep(0.05)


def main(arguments: list[str] | None = None) -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=10_000)
    parser.add_argument("--no-collector", action="store_true", help="without Python's collector")
    options = parser.parse_args(arguments)
    if options.no_collector:
        gc.disable()
    asyncio.run(floor(options.count))
    with ZooKeeperServer() as server:
        for locks in (1, 100):
            asyncio.run(bench(server.hosts, options.count, locks))


if __name__ == "__main__":
    main()
