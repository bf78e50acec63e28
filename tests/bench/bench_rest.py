"""What clients that only wait cost ZooKeeper: ``python -m tests.bench.bench_rest [CLIENTS]``.

Many clients stand in the queue of one lock, behind two holders' nodes, or hold a lock each. Then
for a while: transactions a second, and the processor time of the server. kazoo's clients, which
only ping, do the same beside them. The processor time is known of a server in local Java alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

import zklock
from zklock._recipes import names
from zklock.testing import ZooKeeperServer, wait_for

TIMEOUT = 10.0
WHILE = 20.0
LIMIT = 600.0


def processor() -> float:
    """Return the seconds of processor time that the server has taken: all that this one started."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], ticks = int(fields[1]), int(fields[11]) + int(fields[12])
            seconds[pid] = ticks / os.sysconf("SC_CLK_TCK")
    return sum(seconds[pid] for pid in parents if os.getpid() in ancestors(pid, parents))


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


@contextmanager
def in_threads(calls: list[Callable[[], object]]) -> Iterator[None]:
    """Run each call on a thread of its own."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def measure(server: ZooKeeperServer, watcher: KazooClient, stone: str, what: str) -> None:
    """Print what the server does for a while."""
    first, busy = watcher.set(stone, b"").mzxid, processor()
    time.sleep(WHILE)
    last, busy = watcher.set(stone, b"").mzxid, processor() - busy
    known = f"{busy / WHILE:8.1%} of a core" if server.backend == "java" else ""
    print(f"{what:<28} {(last - first - 1) / WHILE:8.1f} writes/s {known}")


def waiting(server: ZooKeeperServer, watcher: KazooClient, count: int, peer: str) -> None:
    """Have clients wait in one queue."""
    path = f"/bench-{uuid.uuid4().hex[:8]}"
    watcher.ensure_path(f"{path}/lock")
    watcher.ensure_path(f"{path}/stone")
    kazoos = peer == "kazoo"
    name = uuid.uuid4().hex + "__lock__" if kazoos else names.prefix(names.Kind.EXCLUSIVE, "0" * 32)
    gates = [watcher.create(f"{path}/lock/{name}", ephemeral=True, sequence=True) for _ in range(2)]

    def wait(lock: Any) -> Callable[[], object]:
        def call() -> None:
            with lock:
                pass

        return call

    with ExitStack() as stack:
        connect = by_kazoo if kazoos else lambda hosts: zklock.connect(hosts, timeout=TIMEOUT)
        clients = [stack.enter_context(connect(server.hosts)) for _ in range(count)]
        locks = [
            client.Lock(f"{path}/lock") if kazoos else zklock.Lock(client, f"{path}/lock")
            for client in clients
        ]
        with in_threads([wait(lock) for lock in locks]):
            wait_for(
                lambda: len(watcher.get_children(f"{path}/lock")) == count + 2, LIMIT, "the queue"
            )
            time.sleep(TIMEOUT / 5)  # what was sent when they entered is not counted
            measure(server, watcher, f"{path}/stone", f"{count} wait, {peer}")
            for gate in gates:
                watcher.delete(gate)


def holding(
    server: ZooKeeperServer, watcher: KazooClient, count: int, proofs: int | None = None
) -> None:
    """Have clients hold a lock each; ``proofs``: how many of their heartbeats are writes."""
    path = f"/bench-{uuid.uuid4().hex[:8]}"
    watcher.ensure_path(f"{path}/stone")
    with ExitStack() as stack:
        for number in range(count):
            client = stack.enter_context(
                zklock.connect(server.hosts, timeout=TIMEOUT, proofs=proofs)
            )
            stack.enter_context(zklock.Lock(client, f"{path}/{number}"))
        few = "" if proofs is None else f", {proofs} proofs"
        measure(server, watcher, f"{path}/stone", f"{count} hold, zklock{few}")


def main(arguments: list[str] | None = None) -> None:
    """Measure those who wait, and those who hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="?", type=int, default=200)
    count = parser.parse_args(arguments).clients
    with ZooKeeperServer() as server, by_kazoo(server.hosts) as watcher:
        waiting(server, watcher, count, "zklock")
        waiting(server, watcher, count, "kazoo")
        holding(server, watcher, count)
        holding(server, watcher, count, proofs=4)


if __name__ == "__main__":
    main()
