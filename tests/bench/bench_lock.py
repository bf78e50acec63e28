"""zklock's Lock and its peers, on one server, in one run: ``python -m tests.bench.bench_lock``.

Uncontended: acquire + release of a free lock by one thread or one task, in blocks that alternate
between all, so that they see the same machine; once as the machine is, and once with a network in
between, that is, a proxy that delivers everything with a delay. The peers are kazoo's ``Lock``,
Curator's ``InterProcessMutex`` in a warm JVM, and the floor: a bare socket that sends what has to
be sent. zklock's runs a second time without riders (``ZKLOCK_RIDER=off``, docs/design.md). A peer
that is missing is named.

Contended: processes that take one lock in turns, each releasing it at once; the hand-offs of all of
them in a second. Curator's are clients in one JVM.
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
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from kazoo.client import KazooClient

from tests.bench.peers import (
    Block,
    Jvm,
    Maker,
    warm_jvm,
    with_asyncio,
    with_kazoo,
    with_wire,
    with_zklock,
    without_riders,
)
from tests.bench.results import quantiles, write
from zklock.testing import FaultProxy, ZooKeeperServer

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = 0.6
DELAY = 0.0005  # seconds, each way

CONTENDING: dict[str, Maker] = {
    "zklock": with_zklock,
    "without riders": without_riders(with_zklock),
    "kazoo": with_kazoo,
}
MAKERS: dict[str, Maker] = {
    **CONTENDING,
    "asyncio": with_asyncio,
    "asyncio, without riders": without_riders(with_asyncio),
    "floor": with_wire,
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


def uncontended(hosts: str, blocks: int, size: int, jvm: Jvm | None) -> dict[str, Cycles]:
    """Return what the cycles of each took."""
    makers = MAKERS if jvm is None else {**MAKERS, "curator": jvm.make}
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
    with ExitStack() as stack:
        workers = []
        for _ in range(processes):
            worker = subprocess.Popen(
                [*command, str(seconds)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
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
        counts = [json.loads(worker.communicate(timeout=seconds + 60)[0]) for worker in workers]
    return float(sum(counts)) / seconds


def work(name: str, hosts: str, path: str, seconds: str) -> None:
    """Take the lock in turns with other processes for so long, and tell how often."""
    with ExitStack() as stack:
        block = CONTENDING[name](hosts, path, stack)
        block(1)
        print("ready", flush=True)
        sys.stdin.readline()
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
        f"  {name:15}{micro['p50']:7.0f} µs median{micro['p99']:7.0f} µs p99"
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
    hosts: str, blocks: int, size: int, jvm: Jvm | None
) -> dict[str, float | dict[str, float]]:
    """Print and return the times; print the ratios of the medians to those of the peers."""
    took = uncontended(hosts, blocks, size, jvm)
    read = round_trip(hosts)
    print(f"uncontended acquire + release, {blocks} blocks of {size}, a read taking", end=" ")
    print(f"{read * 1e3:.2f} ms:")
    found = {name: each.figures for name, each in took.items()}
    peers = {name: found[name]["p50"] for name in PEERS if name in found}
    for name, figures in found.items():
        print(line(name, figures, peers))
    ratio = found["zklock"]["p50"] / peers["kazoo"]
    print(f"  zklock / kazoo {ratio:.2f} (expected on an idle machine: at most {EXPECTED})")
    return {"read": read, **found}


def report(hosts: str, options: argparse.Namespace, jvm: Jvm | None) -> dict[str, object]:
    """Print and return everything, in seconds and in hand-offs a second."""
    found: dict[str, object] = {}
    found["one machine"] = report_uncontended(hosts, options.blocks, options.size, jvm)
    with FaultProxy(hosts) as network:
        network.delay(DELAY)
        size = max(1, options.size // 5)
        found["over a network"] = report_uncontended(network.hosts, options.blocks, size, jvm)
    for crowd in (2, 8):
        print(f"hand-offs a second, {crowd} processes on one lock, {options.seconds:g} s each:")
        rates = {name: contended(hosts, name, crowd, options.seconds) for name in CONTENDING}
        if jvm is not None:
            rates["curator"] = jvm.contended(hosts, crowd, options.seconds)
        for name, rate in rates.items():
            print(f"  {name:15}{rate:7.0f} /s")
        found[f"{crowd} processes"] = rates
    return found


def measure(hosts: str, options: argparse.Namespace, conditions: dict[str, object]) -> object:
    """Print and return everything; note which peers there were."""
    with ExitStack() as stack:
        jvm = warm_jvm(hosts, stack)
        if isinstance(jvm, Jvm):
            conditions["Curator"] = jvm.version
            return report(hosts, options, jvm)
        print(f"Curator is missing: {jvm}")
        conditions["missing"] = {"Curator": jvm}
        return report(hosts, options, None)


def main(arguments: list[str] | None = None) -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", help="a running server; by default one is started")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--size", type=int, default=100, help="cycles in a block")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each contended run")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(*options.worker)
        return
    conditions: dict[str, object] = {"blocks": options.blocks, "size": options.size}
    if options.hosts:
        found = measure(options.hosts, options, conditions)
    else:
        with ZooKeeperServer(tick_time=2000) as server:
            found = measure(server.hosts, options, conditions)
            conditions["ZooKeeper"] = server.version()
    if options.json:
        write(options.json, conditions, found)


if __name__ == "__main__":
    main()
