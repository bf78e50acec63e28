"""zklock's Lock and kazoo's, on one server, in one run: ``python -m tests.bench.bench_lock``.

Uncontended: acquire + release of a free lock by one thread, in blocks that alternate between the
two, so that both see the same machine; once as the machine is, and once with a network in between,
that is, a proxy that delivers everything with a delay. zklock's runs a second time with riders
(``ZKLOCK_RIDER=on``, docs/design.md), which are off by default. Contended: processes that take one
lock in turns, each releasing it at once; the hand-offs of all of them in a second.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from unittest import mock

from kazoo.client import KazooClient

import zklock
from tests.bench.results import quantiles, write
from zklock.testing import FaultProxy, ZooKeeperServer

Cycle: TypeAlias = Callable[[], None]

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = 0.6
DELAY = 0.0005  # seconds, each way


def zklock_cycle(hosts: str, path: str, stack: ExitStack) -> Cycle:
    """Return a call that acquires and releases zklock's Lock."""
    client = zklock.connect(hosts, timeout=10.0)
    stack.callback(client.close)
    stack.callback(client.stop)
    lock = zklock.Lock(client, path)

    def cycle() -> None:
        grant = lock.acquire()
        assert grant is not None
        lock.release()

    return cycle


def kazoo_cycle(hosts: str, path: str, stack: ExitStack) -> Cycle:
    """Return a call that acquires and releases kazoo's Lock."""
    client = KazooClient(hosts, timeout=10.0)
    client.start()
    stack.callback(client.close)
    stack.callback(client.stop)
    lock = client.Lock(path, "bench")

    def cycle() -> None:
        assert lock.acquire()
        lock.release()

    return cycle


def riding_cycle(hosts: str, path: str, stack: ExitStack) -> Cycle:
    """Return a call that acquires and releases zklock's Lock, on a client with riders."""
    with mock.patch.dict(os.environ, {"ZKLOCK_RIDER": "on"}):
        return zklock_cycle(hosts, path, stack)


MAKERS = {"zklock": zklock_cycle, "riders": riding_cycle, "kazoo": kazoo_cycle}


@dataclass
class Cycles:
    """The seconds of every cycle, and the processor time of a cycle in every block."""

    times: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


def uncontended(hosts: str, blocks: int, size: int) -> dict[str, Cycles]:
    """Return what the cycles of each took."""
    with ExitStack() as stack:
        cycles = {
            name: make(hosts, f"/bench-{uuid.uuid4().hex}", stack) for name, make in MAKERS.items()
        }
        return alternated(cycles, blocks, size)


def alternated(cycles: Mapping[str, Cycle], blocks: int, size: int) -> dict[str, Cycles]:
    """Return what the cycles of each took, in blocks that alternate."""
    took = {name: Cycles() for name in cycles}
    for block in range(blocks + 1):
        for name, cycle in cycles.items():
            gc.collect()
            times = []
            busy = time.process_time()
            for _ in range(size):
                started = time.perf_counter()
                cycle()
                times.append(time.perf_counter() - started)
            if block:  # the first one warms up
                took[name].times += times
                took[name].busy.append((time.process_time() - busy) / size)
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
        cycle = MAKERS[name](hosts, path, stack)
        cycle()
        print("ready", flush=True)
        sys.stdin.readline()
        count = 0
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            cycle()
            count += 1
        print(count, flush=True)


def line(name: str, took: Cycles, peer: Cycles) -> str:
    micro = sorted(each * 1e6 for each in took.times)
    p99 = micro[int(len(micro) * 0.99)]
    busy = statistics.median(took.busy)
    return (
        f"  {name:7}{statistics.median(micro):8.0f} µs median{p99:8.0f} µs p99"
        f"{busy * 1e6:8.0f} µs of processor time, {busy / statistics.median(peer.busy):.2f} ×"
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


def report_uncontended(hosts: str, blocks: int, size: int) -> dict[str, object]:
    """Print and return the times; print the ratios of the medians to kazoo's."""
    took = uncontended(hosts, blocks, size)
    read = round_trip(hosts)
    print(f"uncontended acquire + release, {blocks} blocks of {size}, a read taking", end=" ")
    print(f"{read * 1e3:.2f} ms:")
    for name, each in took.items():
        print(line(name, each, took["kazoo"]))
    medians = {name: statistics.median(each.times) for name, each in took.items()}
    ratio, riding = (medians[name] / medians["kazoo"] for name in ("zklock", "riders"))
    print(f"  ratio  {ratio:8.2f} (expected on an idle machine: at most {EXPECTED})")
    print(f"         {riding:8.2f} with riders")
    return {"read": read, **{name: quantiles(each.times) for name, each in took.items()}}


def report(hosts: str, options: argparse.Namespace) -> dict[str, object]:
    """Print and return everything, in seconds and in hand-offs a second."""
    found: dict[str, object] = {}
    found["one machine"] = report_uncontended(hosts, options.blocks, options.size)
    with FaultProxy(hosts) as network:
        network.delay(DELAY)
        size = max(1, options.size // 5)
        found["over a network"] = report_uncontended(network.hosts, options.blocks, size)
    for processes in (2, 8):
        print(f"hand-offs a second, {processes} processes on one lock, {options.seconds:g} s each:")
        rates = {name: contended(hosts, name, processes, options.seconds) for name in MAKERS}
        for name, rate in rates.items():
            print(f"  {name:7}{rate:8.0f} /s")
        found[f"{processes} processes"] = rates
    return found


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
        found = report(options.hosts, options)
    else:
        with ZooKeeperServer(tick_time=2000) as server:
            found = report(server.hosts, options)
            conditions["ZooKeeper"] = server.version()
    if options.json:
        write(options.json, conditions, found)


if __name__ == "__main__":
    main()
