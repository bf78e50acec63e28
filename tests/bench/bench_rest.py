"""What clients that wait or hold cost ZooKeeper: ``python -m tests.bench.bench_rest [CLIENTS]``.

Many clients stand in the queue of one lock, behind two holders' nodes, or hold a lock each. Then
for a while: transactions a second, and the processor time of the servers. kazoo's clients, which
only ping, do the same beside them. The clients share a few processes. The processor time is known
of servers in local Java alone. With ``--nodes 3``, the clients are spread over an ensemble. With
``--stall SECONDS``, its leader then stands still for so long, while they hold: how much is written
afterwards, and how many locks are lost.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

import zklock
from tests.bench import results
from zklock._recipes import names
from zklock.testing import Ensemble, ZooKeeperServer, wait_for

TIMEOUT = 10.0
TICK = 2000
"""Milliseconds, as is usual: followers bear with a leader that stalls for ten seconds."""
WHILE = 20.0
LIMIT = 600.0
EACH = 250
"""How many clients share a process, about."""


def processor() -> float:
    """Return the seconds of processor time that the servers have taken: all Java started here."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, tail = path.read_text().rpartition(")")
            fields = tail.split()
            pid = int(path.parent.name)
            parents[pid], ticks = int(fields[1]), int(fields[11]) + int(fields[12])
            if head.endswith("(java"):
                seconds[pid] = ticks / os.sysconf("SC_CLK_TCK")
    return sum(spent for pid, spent in seconds.items() if os.getpid() in ancestors(pid, parents))


def ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    """Return the processes that have started this one, the nearest and the farthest."""
    found: set[int] = set()
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found


@contextmanager
def by_kazoo(hosts: str) -> Iterator[KazooClient]:
    """Run a client of kazoo's."""
    client = KazooClient(hosts, timeout=TIMEOUT)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@dataclass(frozen=True, slots=True)
class Part:
    """What one process does: ``count`` clients from number ``first`` on, which wait, or hold."""

    hosts: str
    path: str
    first: int
    count: int
    waits: bool
    kazoo: bool

    def play(self, told: Connection) -> None:
        """Say that all stand, unless they wait; go on until told, and say how many were lost."""
        lost = 0
        with ExitStack() as stack:
            locks = [self._lock(stack, number) for number in range(self.first, self.last)]
            waiting, held = (locks, []) if self.waits else ([], locks)
            for lock in waiting:
                thread = threading.Thread(target=self._wait, args=(lock,))
                thread.start()
                stack.callback(thread.join)
            for lock in held:
                lock.acquire()
            told.send("stands")
            told.recv()
            for lock in held:
                try:
                    lock.release()
                except zklock.LockLost:
                    lost += 1
            told.send(lost)

    @property
    def last(self) -> int:
        """The number after the last client."""
        return self.first + self.count

    def _lock(self, stack: ExitStack, number: int) -> Any:
        path = self.path if self.waits else f"{self.path}/{number}"
        if self.kazoo:
            return stack.enter_context(by_kazoo(self.hosts)).Lock(path)
        client = zklock.connect(self.hosts, TIMEOUT, start_timeout=60.0)
        return zklock.Lock(stack.enter_context(client), path)

    @staticmethod
    def _wait(lock: Any) -> None:
        with lock:
            pass


class Measuring:
    """Measures clients on some servers, and prints it."""

    def __init__(
        self,
        servers: ZooKeeperServer | Ensemble,
        watcher: KazooClient,
        count: int,
        stall: float = 0.0,
    ) -> None:
        self.figures: dict[str, dict[str, float]] = {}
        self._servers = servers
        self._stall = stall
        one = servers.servers[0] if isinstance(servers, Ensemble) else servers
        self._by_java = one.backend == "java"
        self._watcher = watcher
        self._count = count

    def waiting(self, peer: str) -> None:
        """Have clients wait in one queue."""
        kazoos = peer == "kazoo"
        path = f"/bench-{uuid.uuid4().hex[:8]}"
        self._watcher.ensure_path(path)
        prefix = names.prefix(names.Kind.EXCLUSIVE, "0" * 32)
        name = uuid.uuid4().hex + "__lock__" if kazoos else prefix
        gates = [
            self._watcher.create(f"{path}/{name}", ephemeral=True, sequence=True) for _ in range(2)
        ]

        def stand() -> bool:
            return len(self._watcher.get_children(path)) == self._count + 2

        with self._clients(path, waits=True, kazoo=kazoos):
            wait_for(stand, LIMIT, "the queue")
            time.sleep(TIMEOUT / 5)  # what was sent when they entered is not counted
            self._measure(f"wait, {peer}")
            for gate in gates:
                self._watcher.delete(gate)

    def holding(self) -> None:
        """Have clients hold a lock each."""
        what = "hold, zklock"
        with self._clients(f"/bench-{uuid.uuid4().hex[:8]}") as lost:
            self._measure(what)
            if isinstance(self._servers, Ensemble) and self._stall:
                leader = self._servers.leader()
                leader.pause()
                time.sleep(self._stall)
                leader.resume()
                for seconds in range(0, 20, 5):
                    self._measure(f"{what}, {seconds} s after a stall", 5.0)
        if self._stall:
            print(f"  lost: {sum(lost)}")

    @contextmanager
    def _clients(
        self, path: str, *, waits: bool = False, kazoo: bool = False
    ) -> Iterator[list[int]]:
        """Run clients; how many have lost their locks is in the list after the block."""
        lost: list[int] = []
        context = multiprocessing.get_context("spawn")
        processes, ends = [], []
        for first in range(0, self._count, EACH):
            ours, theirs = context.Pipe()
            many = min(EACH, self._count - first)
            part = Part(self._servers.hosts, path, first, many, waits, kazoo)
            processes.append(context.Process(target=part.play, args=(theirs,)))
            ends.append(ours)
        for process in processes:
            process.start()
        try:
            for end in ends:
                if not end.poll(LIMIT):
                    raise TimeoutError("a process has not got its clients to stand")
                end.recv()
            yield lost
            for end in ends:
                end.send("go")
            lost.extend(end.recv() for end in ends)
            for process in processes:
                process.join(LIMIT)
        finally:
            for process in processes:
                process.kill()
                process.join()

    def _measure(self, what: str, seconds: float = WHILE) -> None:
        """Print what the servers do for a while."""
        stone = f"/stone-{uuid.uuid4().hex[:8]}"
        self._watcher.create(stone)
        first, busy = self._watcher.set(stone, b"").mzxid, processor()
        time.sleep(seconds)
        last, busy = self._watcher.set(stone, b"").mzxid, processor() - busy
        writes = (last - first - 1) / seconds
        self.figures[what] = {"writes a second": writes}
        known = ""
        if self._by_java:
            self.figures[what]["processor"] = busy / seconds
            known = f"{busy / seconds:8.1%} of a core"
        print(f"{self._count} {what:<28} {writes:8.1f} writes/s {known}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure those who wait, and those who hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="?", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=1, metavar="SERVERS")
    parser.add_argument("--stall", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.stall and options.nodes == 1:
        parser.error("--stall needs --nodes 3")
    servers: ZooKeeperServer | Ensemble
    if options.nodes == 1:
        servers = ZooKeeperServer(tick_time=TICK)
    else:
        servers = Ensemble(options.nodes, tick_time=TICK)
    with servers, by_kazoo(servers.hosts) as watcher:
        measuring = Measuring(servers, watcher, options.clients, options.stall)
        steps: list[Callable[[], None]] = [
            lambda: measuring.waiting("zklock"),
            lambda: measuring.waiting("kazoo"),
            measuring.holding,
        ]
        for step in steps:
            step()
    if options.json is not None:
        told: dict[str, object] = {
            name: getattr(options, name) for name in ("clients", "nodes", "stall")
        }
        results.write(options.json, told, measuring.figures)


if __name__ == "__main__":
    main()
