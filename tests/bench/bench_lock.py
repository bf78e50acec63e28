"""zklock's Lock and its peers in one run: ``python -m tests.bench.bench_lock [--nodes 3]``.

Uncontended: acquire + release of a free lock by one thread or one task, in blocks that alternate
between all, so that they see the same machine; once as the machine is, and once with a network in
between, that is, a proxy that delivers everything with a delay. The peers are kazoo's ``Lock``,
Curator's ``InterProcessMutex`` in a warm JVM, and the floor: a bare socket that sends what has to
be sent. A peer that is missing is named. So far no server forces its log to disk. Once more, on a
server that does. For orientation, redis-py's lock on a Redis and etcd3gw's on an etcd run beside
them (elsewhere.py).

Contended: processes that take one lock in turns, each releasing it at once; the hand-offs of all of
them in a second. Curator's are clients in one JVM. Redis and etcd have no part in it: these locks
have no queue, so the process that releases is the next one, too.

With ``--nodes 3``, uncontended alone, on an ensemble without and with the disk; all clients use
the same follower. In local Java, what the members send each other passes through this process.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from tests.bench import elsewhere
from tests.bench.elsewhere import Elsewhere
from tests.bench.peers import (
    Block,
    Jvm,
    Maker,
    warm_jvm,
    with_asyncio,
    with_kazoo,
    with_wire,
    with_zklock,
)
from tests.bench.results import measured_with, quantiles, write
from zklock.testing import Ensemble, FaultProxy, ZooKeeperServer

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = 0.6
DELAY = 0.0005  # seconds, each way
FORCED = {"zookeeper.forceSync": "yes", "zookeeper.preAllocSize": "65536"}
"""ZooKeeper's own defaults, which the servers of zklock.testing change."""

CONTENDING: dict[str, Maker] = {
    "zklock": with_zklock,
    "kazoo": with_kazoo,
    "floor": with_wire,
}
MAKERS: dict[str, Maker] = {
    **CONTENDING,
    "asyncio": with_asyncio,
}
PEERS = ("kazoo", "curator", "floor")


@dataclass
class Cycles:
    """The seconds of every cycle, and the processor time of a cycle in every block."""

    times: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, float]:
        """What a file keeps of them, in seconds. A JVM counts its processor time in 10 ms."""
        return {**quantiles(self.times), "processor": statistics.fmean(self.busy)}


def uncontended(hosts: str, blocks: int, size: int, more: Mapping[str, Maker]) -> dict[str, Cycles]:
    """Return what the cycles of each took."""
    makers = {**MAKERS, **more}
    with ExitStack() as stack:
        made = {
            name: make(hosts, f"/bench-{uuid.uuid4().hex}", stack) for name, make in makers.items()
        }
        return alternated(made, blocks, size)


def alternated(made: Mapping[str, Block], blocks: int, size: int) -> dict[str, Cycles]:
    """Return what the cycles of each took, in blocks that alternate."""
    took = {name: Cycles() for name in made}
    for turn in range(blocks + 1):
        for name, block in made.items():
            gc.collect()
            times, busy = block(size)
            if turn:  # the first one warms up
                took[name].times += times
                took[name].busy.append(busy)
    return took


def contended(hosts: str, name: str, processes: int, seconds: float) -> float:
    """Return the hand-offs a second among so many processes."""
    path = f"/bench-{uuid.uuid4().hex}"
    command = [sys.executable, "-m", "tests.bench.bench_lock", "--worker", name, hosts, path]
    return float(sum(told([*command, str(seconds)], processes, seconds + 60))) / seconds


def told(command: list[str], processes: int, limit: float) -> list[Any]:
    """Return what so many processes tell. They begin together: see ``begin_together``."""
    with ExitStack() as stack:
        workers = []
        for _ in range(processes):
            worker = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(worker)
            stack.callback(worker.kill)
            workers.append(worker)
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        return [json.loads(worker.communicate(timeout=limit)[0]) for worker in workers]


def begin_together() -> None:
    """Say that this process is ready, and wait for the others."""
    print("ready", flush=True)
    sys.stdin.readline()


def work(name: str, hosts: str, path: str, seconds: str) -> None:
    """Take the lock in turns with other processes for so long, and tell how often."""
    with ExitStack() as stack:
        block = CONTENDING[name](hosts, path, stack)
        block(1)
        begin_together()
        count = 0
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            block(1)
            count += 1
        print(count, flush=True)


def line(name: str, figures: Mapping[str, float], peers: Mapping[str, float]) -> str:
    micro = {key: each * 1e6 for key, each in figures.items()}
    ratios = (f"{figures['p50'] / each:6.2f} × {peer}" for peer, each in peers.items())
    return (
        f"  {name:23}{micro['p50']:7.0f} µs median{micro['p99']:7.0f} µs p99"
        f"{micro['processor']:7.0f} µs of its processor time{''.join(ratios)}"
    )


def round_trip(hosts: str) -> float:
    """Return the median seconds of a read by a bare client."""
    client = KazooClient(hosts)
    client.start()
    times = []
    for _ in range(200):
        started = time.perf_counter()
        client.exists("/")
        times.append(time.perf_counter() - started)
    client.stop()
    client.close()
    return statistics.median(times)


def report_uncontended(
    where: str, hosts: str, blocks: int, size: int, more: Mapping[str, Maker]
) -> dict[str, float | dict[str, float]]:
    """Print and return the times; print the ratios of the medians to those of the peers."""
    took = uncontended(hosts, blocks, size, more)
    read = round_trip(hosts)
    print(
        f"uncontended acquire + release, {where}, {blocks} blocks of {size}, a read taking", end=" "
    )
    print(f"{read * 1e3:.2f} ms:")
    found = {name: each.figures for name, each in took.items()}
    peers = {name: found[name]["p50"] for name in PEERS if name in found}
    for name, figures in found.items():
        print(line(name, figures, peers))
    ratio = found["zklock"]["p50"] / peers["kazoo"]
    print(
        f"  zklock / kazoo {ratio:.2f} (expected on an idle machine: at most {EXPECTED})",
        flush=True,
    )
    return {"read": read, **found}


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


class Run:
    """One run: its options, the conditions that are told with the figures, and the figures."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self.options = options
        self.figures: dict[str, object] = {}
        self.missing: dict[str, str] = {}
        self.conditions: dict[str, object] = {
            "blocks": options.blocks,
            "size": options.size,
            "nodes": options.nodes,
        }
        self._stack = stack
        self._jvm: Jvm | None = None

    def warm_up(self, hosts: str) -> None:
        """Start Curator; note whether there is one."""
        jvm = warm_jvm(hosts, self._stack)
        if isinstance(jvm, Jvm):
            self._jvm = jvm
            self.conditions["Curator"] = jvm.version
        else:
            self._miss({"Curator": jvm})

    def _miss(self, missing: Mapping[str, str]) -> None:
        for name in missing.keys() - self.missing.keys():
            print(f"{name} is missing: {missing[name]}")
        self.missing |= missing

    def _uncontended(self, where: str, hosts: str, size: int, others: Elsewhere) -> None:
        more = {} if self._jvm is None else {"curator": self._jvm.make}
        self.figures[where] = report_uncontended(
            where, hosts, self.options.blocks, size, {**more, **others.makers}
        )

    def beside_others(self, where: str, hosts: str, *, forced: bool) -> None:
        """Measure on one machine, with Redis and etcd beside a single server."""
        with ExitStack() as stack:
            single = self.options.nodes == 1
            others = elsewhere.started(stack, forced=forced) if single else Elsewhere()
            self.conditions |= others.versions
            self._miss(others.missing)
            self._uncontended(where, hosts, self.options.size, others)

    def over_a_network(self, hosts: str) -> None:
        """Measure with a delay."""
        with FaultProxy(hosts) as network:
            network.delay(DELAY)
            size = max(1, self.options.size // 5)
            self._uncontended("over a network", network.hosts, size, Elsewhere())

    def contended(self, hosts: str) -> None:
        """Measure crowds."""
        seconds = self.options.seconds
        for crowd in (2, 8):
            print(f"hand-offs a second, {crowd} processes on one lock, {seconds:g} s each:")
            rates = {name: contended(hosts, name, crowd, seconds) for name in CONTENDING}
            if self._jvm is not None:
                rates["curator"] = self._jvm.contended(hosts, crowd, seconds)
            for name, rate in rates.items():
                print(f"  {name:15}{rate:7.0f} /s")
            self.figures[f"{crowd} processes"] = rates


def measure(run: Run) -> None:
    """Measure on servers of this run."""
    nodes = run.options.nodes
    where = "one machine" if nodes == 1 else f"{nodes} nodes"
    with served(nodes, forced=False) as server:
        run.conditions |= {"ZooKeeper": server.version(), "backend": server.backend}
        run.warm_up(server.hosts)
        run.beside_others(where, server.hosts, forced=False)
        if nodes == 1:
            run.over_a_network(server.hosts)
            run.contended(server.hosts)
    with served(nodes, forced=True) as server:
        run.beside_others(f"{where}, disk", server.hosts, forced=True)


def measure_there(run: Run, hosts: str) -> None:
    """Measure on a server that runs already, whatever its disk does."""
    run.warm_up(hosts)
    run.beside_others("one machine", hosts, forced=False)
    run.over_a_network(hosts)
    run.contended(hosts)


def main(arguments: list[str] | None = None) -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", help="a running server; by default one is started")
    parser.add_argument("--nodes", type=int, default=1, help="of the ensemble that is started")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--size", type=int, default=100, help="cycles in a block")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each contended run")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(*options.worker)
        return
    print(measured_with())
    with ExitStack() as stack:
        run = Run(options, stack)
        if options.hosts:
            measure_there(run, options.hosts)
        else:
            measure(run)
    told = {"missing": run.missing} if run.missing else {}
    if options.json:
        write(options.json, run.conditions | told, run.figures)


if __name__ == "__main__":
    main()
