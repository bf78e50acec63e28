"""zklock's locks and their peers in one run: uncontended, contended, of other kinds, kept."""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any

from kazoo.client import KazooClient

from tests.bench.peers import (
    Block,
    Jvm,
    Maker,
    block_of,
    connected,
    cycle_of,
    lock_by,
    lock_of,
    warm_jvm,
    with_asyncio,
    with_threads,
)
from tests.bench.results import Run, quantiles
from tests.bench.together import begin, new_path, together
from zklock import aio
from zklock.testing import Ensemble, FaultProxy, ZooKeeperServer

DELAY = 0.0005  # seconds, each way
FORCED = {"zookeeper.forceSync": "yes", "zookeeper.preAllocSize": "65536"}
"""ZooKeeper's own defaults, which the servers of zklock.testing change."""
LIBRARIES = ("zklock", "kazoo")
PEERS = (*LIBRARIES, "floor")
THREADS, TASKS = 16, 1000
HOLD = 0.01
"""Seconds for which a lock is held, so that the other process stands in the queue."""


def lock(run: Run, nodes: int = 1, blocks: int = 20, size: int = 100, seconds: float = 3.0) -> None:
    """Acquire and release of one lock: kazoo's, Curator's in a warm JVM, a bare socket's.

    Uncontended: by one thread or task, in blocks that alternate between all, so that they see the
    same machine; on one machine, over a network that delays everything, and on a server that forces
    its log to disk. Contended: hand-offs a second of processes (Curator: clients in one JVM) that
    want one lock.

    With ``nodes=3``, uncontended alone, on an ensemble; all clients use the same follower.
    """
    where = "one machine" if nodes == 1 else f"{nodes} nodes"
    with ExitStack() as stack:
        with served(nodes, forced=False) as server:
            run.conditions |= {"ZooKeeper": server.version(), "backend": server.backend}
            jvm = warm_jvm(run, server.hosts, stack)
            makers: dict[str, Maker] = {each: partial(with_threads, each) for each in PEERS}
            makers["asyncio"] = with_asyncio
            makers |= {} if jvm is None else {"curator": jvm.make}
            uncontended(run, where, server.hosts, makers, blocks, size)
            if nodes == 1:
                with FaultProxy(server.hosts) as network:
                    network.delay(DELAY)
                    some = max(1, size // 5)
                    uncontended(run, "over a network", network.hosts, makers, blocks, some)
                for crowd in (2, 8):
                    contended(run, server.hosts, crowd, seconds, jvm)
        with served(nodes, forced=True) as server:
            uncontended(run, f"{where}, disk", server.hosts, makers, blocks, size)


@contextmanager
def served(nodes: int, *, forced: bool) -> Iterator[ZooKeeperServer]:
    """Run one server, or an ensemble; yield the server for all clients, a follower of several."""
    properties = FORCED if forced else {}
    if nodes == 1:
        with ZooKeeperServer(tick_time=2000, system_properties=properties) as server:
            yield server
        return
    with Ensemble(nodes, tick_time=2000, system_properties=properties) as ensemble:
        yield ensemble.followers()[0]


def uncontended(
    run: Run, where: str, hosts: str, makers: Mapping[str, Maker], blocks: int, size: int
) -> None:
    """Note what the cycles of each take, and what a read takes."""
    with ExitStack() as stack:
        made = {name: make(hosts, new_path(), stack) for name, make in makers.items()}
        run.note(where, alternated(made, blocks, size), "kazoo")
    run.note(where, {"read": round_trip(hosts)})


def alternated(made: Mapping[str, Block], blocks: int, size: int) -> dict[str, dict[str, float]]:
    """Return the seconds that cycles take, in blocks that alternate, and their processor time."""
    times: dict[str, list[float]] = {name: [] for name in made}
    busy: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(blocks + 1):
        for name, block in made.items():
            gc.collect()
            took, spent = block(size)
            if turn:  # the first one warms up
                times[name] += took
                busy[name].append(spent)
    return {
        name: {**quantiles(took), "processor": statistics.fmean(busy[name])}
        for name, took in times.items()
    }


def round_trip(hosts: str) -> float:
    """Return the median seconds of a read by a bare client."""
    client = KazooClient(hosts)
    client.start()
    times, _ = block_of(lambda: client.exists("/"))(200)
    client.stop()
    client.close()
    return statistics.median(times)


def contended(run: Run, hosts: str, crowd: int, seconds: float, jvm: Jvm | None) -> None:
    """Note the hand-offs a second among so many processes on one lock."""
    found = {}
    for name in PEERS:
        counts = together(contend, crowd, name, hosts, new_path(), seconds)
        found[name] = sum(counts) / seconds
    if jvm is not None:
        found["curator"] = jvm.rate(hosts, crowd, 1, seconds)
    run.note(f"{crowd} processes", found, "kazoo")


def contend(pipe: Connection, name: str, hosts: str, path: str, seconds: float) -> None:
    """Take the lock in turns with other processes for so long, and tell how often."""
    with ExitStack() as stack:
        cycle = cycle_of(lock_by(name, hosts, path, stack))
        cycle()
        begin(pipe)
        pipe.send(cycles(cycle, time.monotonic() + seconds))


def cycles(cycle: Callable[[], object], until: float) -> int:
    """Return how often a call is done until then."""
    count = 0
    while time.monotonic() < until:
        cycle()
        count += 1
    return count


def kinds(
    run: Run, blocks: int = 20, size: int = 50, seconds: float = 3.0, count: int = 100
) -> None:
    """Other kinds of locks, kept ones, many locks of one client, and hand-offs.

    *Time* of acquire and release of a free lock. *Cycles* a second of one client, of 16 threads or
    1,000 tasks with a lock each; and of 16 threads that share a lock, which may be kept.
    *Hand-off*: from ``release()`` in one process to the end of ``acquire()`` in another one.
    """
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer(tick_time=2000))
        hosts = server.hosts
        run.conditions["ZooKeeper"] = server.version()
        jvm = warm_jvm(run, hosts, stack)
        clients = {each: connected(each, hosts, stack) for each in LIBRARIES}
        clients["kept"] = clients["zklock"]
        for kind in ("Lock", "ReadLock", "WriteLock", "Semaphore"):
            made = {
                library: block_of(cycle_of(lock_of(library, client, kind, new_path())))
                for library, client in clients.items()
                if kind == "Lock" or library != "kept"
            }
            run.note(f"{kind}: time", alternated(made, blocks, size), "kazoo")
        rates = {each: in_threads(each, clients[each], False, seconds) for each in LIBRARIES}
        rates["tasks"] = asyncio.run(in_tasks(hosts, seconds))
        if jvm is not None:
            rates["curator"] = jvm.rate(hosts, 1, THREADS, seconds)
        run.note(f"{THREADS} threads, a lock each: cycles a second", rates, "kazoo")
        rates = {each: in_threads(each, client, True, seconds) for each, client in clients.items()}
        run.note(f"{THREADS} threads, one lock: cycles a second", rates, "kazoo")
        gaps = {each: hand_offs(each, hosts, count) for each in PEERS}
        if jvm is not None:
            gaps["curator"] = jvm.hand(hosts, count, HOLD)
        run.note("hand-off", {each: quantiles(found) for each, found in gaps.items()}, "kazoo")


def in_threads(library: str, client: Any, shared: bool, seconds: float) -> float:
    """Return the cycles a second of one client with many threads."""
    ready = threading.Barrier(THREADS)
    path = new_path()

    def work(number: int) -> int:
        own = path if shared else f"{path}-{number}"
        cycle = cycle_of(lock_of(library, client, "Lock", own))
        cycle()
        ready.wait()
        return cycles(cycle, time.monotonic() + seconds)

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(work, range(THREADS))) / seconds


async def in_tasks(hosts: str, seconds: float) -> float:
    """Return the cycles a second of one client with many tasks, each with a lock."""
    async with aio.connect(hosts, timeout=10.0) as client:

        async def work(lock: aio.Lock, until: float) -> int:
            count = 0
            while not count or time.monotonic() < until:
                async with lock:
                    count += 1
            return count

        locks = [aio.Lock(client, new_path()) for _ in range(TASKS)]
        await asyncio.gather(*(work(lock, 0.0) for lock in locks))
        until = time.monotonic() + seconds
        return sum(await asyncio.gather(*(work(lock, until) for lock in locks))) / seconds


def hand_offs(library: str, hosts: str, count: int) -> list[float]:
    """Return the seconds from each release of one process to the turn of the other."""
    moments = sorted(chain(*together(hold, 2, library, hosts, new_path(), count)))
    return [taken - released for released, taken in zip(moments[1::2], moments[2::2], strict=False)]


def hold(pipe: Connection, library: str, hosts: str, path: str, count: int) -> None:
    """Take the lock so often, and tell when it was taken and given back."""
    moments: list[float] = []
    with ExitStack() as stack:
        lock = lock_by(library, hosts, path, stack)
        begin(pipe)
        for _ in range(count):
            assert lock.acquire()
            moments.append(time.monotonic())
            time.sleep(HOLD)
            moments.append(time.monotonic())
            lock.release()
    pipe.send(moments)
