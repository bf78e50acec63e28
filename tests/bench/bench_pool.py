"""How fast a worker pool assigns its shards, and what that costs ZooKeeper.

``python -m tests.bench.bench_pool [--shards N …] [--workers N] [--killed N] [--added N]``

For each number of shards: workers, each a process with a session of its own, join at once; some are
killed; as many join. Timed is, by the clock that all share, how long it takes until every shard is
owned, and each worker within one of the others. Requests are those that the server has counted up
to two seconds later, when all watches are placed, and without the heartbeats and pings, whose rate
is measured afterwards. A killed worker's shards
are free once its session has ended, so that time is told apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import zklock
from zklock._ground.clock import clock
from zklock._pool.assignment import assign, moves
from zklock.testing import ZooKeeperServer, srvr

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0
IDLE_SECONDS = 3.0
AFTERWARDS = 2.0
LOOK_EVERY = 0.02


class Worker:
    """A worker process; ``owned`` is how many shards it has said last that it owns."""

    def __init__(self, hosts: str, path: str, name: str, shards: int, timeout: float) -> None:
        self.name = name
        self.owned = 0
        self.changed = 0.0
        self.ready = threading.Event()
        command = [sys.executable, "-m", "tests.bench.bench_pool", "--worker"]
        self.process = subprocess.Popen(
            [*command, hosts, path, name, str(shards), str(timeout)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if said is None:
                self.ready.set()
            else:
                self.changed, self.owned = said

    def go(self) -> None:
        """Have it join."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def work(hosts: str, path: str, name: str, shards: str, timeout: str) -> None:
    """Be a worker, and tell whenever the number of owned shards changes."""
    client = zklock.connect(hosts, float(timeout))
    pool = zklock.WorkerPool(client, path, shards=int(shards), identity=name)
    print("null", flush=True)
    sys.stdin.readline()
    threading.Thread(target=pool.start, daemon=True).start()
    threading.Thread(target=sys.stdin.read, daemon=True).start()
    before = 0
    while True:
        now = len(pool.owned())
        if now != before:
            print(json.dumps([clock(), now]), flush=True)
            before = now
        time.sleep(LOOK_EVERY)


class Bench:
    """One pool of so many shards."""

    def __init__(self, server: ZooKeeperServer, shards: int, timeout: float) -> None:
        self.server = server
        self.shards = shards
        self.timeout = timeout
        self.path = f"/bench-{uuid.uuid4().hex}"
        self.workers: list[Worker] = []

    def hire(self, count: int) -> list[Worker]:
        """Start so many processes, which wait to join."""
        names = [f"w{len(self.workers) + at:03}" for at in range(count)]
        found = [
            Worker(self.server.hosts, self.path, name, self.shards, self.timeout) for name in names
        ]
        self.workers += found
        for worker in found:
            assert worker.ready.wait(PATIENCE)
        return found

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.close()

    def received(self) -> int:
        """Return how many requests the server has counted."""
        host, _, port = self.server.hosts.partition(":")
        return srvr(host, int(port)).received

    def idle(self) -> float:
        """Return how many requests a second come anyhow."""
        before, began = self.received(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        return (self.received() - before) / (time.monotonic() - began)

    def settle(self, what: str, moved: int, began: float, requests: int) -> None:
        """Wait until the shards are settled, and tell what it took."""
        first = None
        until = time.monotonic() + PATIENCE
        live = [worker for worker in self.workers if worker.process.poll() is None]
        start = sum(worker.owned for worker in live)
        while True:
            sizes = [worker.owned for worker in live]
            if first is None and sum(sizes) > start:
                first = max(worker.changed for worker in live)
            if sum(sizes) == self.shards and max(sizes) - min(sizes) <= 1:
                break
            assert time.monotonic() < until, f"{what}: {sizes}"
            time.sleep(LOOK_EVERY)
        seconds = max(worker.changed for worker in live) - began
        time.sleep(AFTERWARDS)
        counted, took = self.received() - requests, clock() - began
        caused = counted - self.idle() * took
        waited = "" if first is None else f"{first - began:8.2f} s"
        print(
            f"  {self.shards:6} {what:24}{moved:6}{seconds:8.2f} s{waited:>10}"
            f"{counted:9}{caused:9.0f}{caused / moved:8.1f}",
            flush=True,
        )


def run(server: ZooKeeperServer, shards: int, options: argparse.Namespace) -> None:
    """Measure a pool of so many shards."""
    bench = Bench(server, shards, options.timeout)
    with ExitStack() as stack:
        stack.callback(bench.close)
        first = bench.hire(options.workers)
        before = {worker.name: frozenset[int]() for worker in first}
        plan = assign(range(shards), dict.fromkeys(before, 1.0), before)
        began, requests = clock(), bench.received()
        for worker in first:
            worker.go()
        bench.settle(f"{options.workers} join at once", shards, began, requests)
        late = bench.hire(options.added)
        began, requests = clock(), bench.received()
        for worker in first[: options.killed]:
            worker.process.kill()
            worker.process.wait()
        left = {worker.name: plan[worker.name] for worker in first[options.killed :]}
        after = assign(range(shards), dict.fromkeys(left, 1.0), left)
        bench.workers = [worker for worker in bench.workers if worker not in late]
        bench.settle(f"{options.killed} are killed", moves(left, after), began, requests)
        bench.workers += late
        began, requests = clock(), bench.received()
        for worker in late:
            worker.go()
        names = [*left, *(worker.name for worker in late)]
        joined = assign(range(shards), dict.fromkeys(names, 1.0), after)
        bench.settle(f"{options.added} join", moves(after, joined), began, requests)


def main(arguments: list[str] | None = None) -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[125, 250, 500, 1000])
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--killed", type=int, default=5)
    parser.add_argument("--added", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=6.0, help="of the sessions, in seconds")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(*options.worker)
        return
    print(f"{options.workers} workers, session timeout {options.timeout:g} s")
    print(
        f"  {'shards':>6} {'what':24}{'moves':>6}{'settled':>10}{'first':>10}"
        f"{'counted':>9}{'caused':>9}{'a move':>8}"
    )
    with ZooKeeperServer(tick_time=500) as server:
        for shards in options.shards:
            run(server, shards, options)


if __name__ == "__main__":
    main()
