"""One process for hours: ``python -m tests.chaos.soak --minutes 120 [--json FILE]``.

Threads and tasks of one process lock, lead and own shards, on clients whose connections suffer mild
faults: drops, silences shorter and longer than a session, slow answers, nodes that an operator
deletes. Locks, elections, pools and clients are made and thrown away all the while. Every half
minute it counts what could grow: threads, descriptors, memory, objects, watches and nodes of the
server. Exit status 1 if any of it still grew in the second half.
"""

from __future__ import annotations

import argparse
import collections
import gc
import os
import random
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from kazoo.exceptions import KazooException

import zklock
from tests.bench import results
from tests.bench.together import resident
from tests.contract.fronts import Loop, Steps, Threads
from tests.contract.support import open_files
from zklock.testing import FaultProxy, ZooKeeperServer, four_letter

EVERY = 30.0
"""Seconds from one count to the next."""

PACE = 20.0
"""How often each user acts, in a second."""

TIMEOUT = 4.0
"""The session timeout of all clients, in seconds."""

ROOT = "/soak"
PATHS = tuple(f"{ROOT}/{number}" for number in range(4))
SHARDS = 12
TIMEOUTS = (0.0, 0.2, 5.0)
"""Of those who acquire, in seconds."""

KINDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Lock", "", {}),
    ("RLock", "", {}),
    ("ReadLock", "-rw", {}),
    ("WriteLock", "-rw", {}),
    ("Semaphore", "-s", {"limit": 2}),
)
"""Class, what its paths end with, options."""

MEASURES = {
    "threads": (0.05, 8),
    "descriptors": (0.05, 8),
    "memory, MiB": (0.08, 4),
    "objects": (0.05, 3000),
    "watches": (0.10, 20),
    "ephemeral nodes": (0.10, 10),
    "nodes": (0.05, 20),
}
"""How much more there may be at the end: a part of what there was, and some in any case.

Users come and go by chance, each with a few threads, sockets and watches.
"""


class Users:
    """What the threads of the process do until they are told to stop, on both fronts."""

    def __init__(self, seed: str) -> None:
        self.stop = threading.Event()
        self.errors: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self._counting = threading.Lock()
        self._seed = seed
        self._threads: list[threading.Thread] = []

    def add(self, what: str) -> None:
        """Count one."""
        with self._counting:
            self.counts[what] += 1

    def start(self, name: str, act: Callable[..., object], *arguments: Any) -> None:
        """Have a thread act again and again; errors that are documented are counted."""

        def run() -> None:
            chance = random.Random(f"{self._seed}/{name}")
            while not self.stop.is_set():
                try:
                    act(chance, *arguments)
                except (zklock.ZkLockError, KazooException) as error:
                    self.add(f"{name.partition(' ')[0]}: {type(error).__name__}")
                    self.stop.wait(0.05)  # it is out of touch: ask not too often
                except Exception:
                    self.errors.append(f"{name}: {traceback.format_exc()}")
                self.stop.wait(chance.expovariate(PACE))

        self._threads.append(threading.Thread(target=run, name=f"soak-{name}"))
        self._threads[-1].start()

    def finish(self) -> None:
        """Have all end."""
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def lock(self, chance: random.Random, front: Any, client: zklock.Client) -> None:
        """Acquire a lock of some kind."""
        name, suffix, options = chance.choice(KINDS)
        lock = getattr(front, name)(client, chance.choice(PATHS) + suffix, **options)
        with lock.attempt(timeout=chance.choice(TIMEOUTS)) as grant:
            self.add(f"{front.name}: granted" if grant else f"{front.name}: not free")
            if grant:
                self.stop.wait(chance.uniform(0, 0.05))

    def several(self, chance: random.Random, front: Any, client: zklock.Client) -> None:
        """Acquire several locks at once."""
        some = [front.Lock(client, path) for path in chance.sample(PATHS, 3)]
        with front.MultiLock(some).attempt(timeout=5.0) as grant:
            if grant:
                self.add(f"{front.name}: granted several")

    def lead(self, chance: random.Random, front: Any, client: zklock.Client) -> None:
        """Stand for election, lead for a moment, and leave."""
        election = front.LeaderElection(client, f"{ROOT}/election")

        def lead(_: object) -> Steps:
            self.add(f"{front.name}: led")
            yield chance.uniform(0, 0.5)
            election.stop()

        election.run(front.script(lead))

    def work(self, chance: random.Random, front: Any, client: zklock.Client) -> None:
        """Be a worker of a pool for a while."""

        def handle(shard: zklock.Shard) -> Steps:
            self.add(f"{front.name}: shard")
            yield shard.should_stop

        handler = front.script(handle)
        with front.pool(client, f"{ROOT}/pool", shards=SHARDS, handler=handler):
            self.stop.wait(chance.uniform(2, 20))

    def connect(self, chance: random.Random, hosts: str) -> None:
        """Make a client, and a loop, use them, and throw them away."""
        with closing(Loop()) as loop, zklock.connect(hosts, timeout=TIMEOUT) as client:
            for front in (Threads(), loop):
                self.lock(chance, front, client)
            self.add("client: used")
        self.stop.wait(chance.uniform(0, 3))

    def fault(
        self, chance: random.Random, proxies: Sequence[FaultProxy], operator: zklock.Client
    ) -> None:
        """Do something mild to one of the connections."""
        self.stop.wait(chance.uniform(5, 15))
        proxy = chance.choice(proxies)
        what = chance.choice(("drop", "silence", "long silence", "slow", "operator"))
        self.add(f"fault: {what}")
        match what:
            case "drop":
                proxy.drop()
            case "slow":
                proxy.delay(0.05)
                self.stop.wait(5)
            case "operator":
                path = chance.choice(PATHS)
                for name in operator.get_children(path)[:1]:
                    operator.delete(f"{path}/{name}")
            case _:
                proxy.blackhole()
                self.stop.wait((1.8 if what == "long silence" else 0.4) * TIMEOUT)
        proxy.restore()


def count(server: ZooKeeperServer) -> dict[str, float]:
    """Return how much there is of each measure."""
    gc.collect()
    lines = four_letter(server.host, server.port, "mntr").splitlines()
    said = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return {
        "threads": threading.active_count(),
        "descriptors": len(open_files()),
        "memory, MiB": resident() / 1024,
        "objects": len(gc.get_objects()),
        "watches": int(said["zk_watch_count"]),
        "ephemeral nodes": int(said["zk_ephemerals_count"]),
        "nodes": int(said["zk_znode_count"]),
    }


def grown(samples: Sequence[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Return what grew in the second half: the means of its first and of its second part."""
    quarter = max(1, len(samples) // 4)
    parts = samples[-2 * quarter : -quarter], samples[-quarter:]
    found = {}
    for name, (share, some) in MEASURES.items():
        before, after = (statistics.fmean(each[name] for each in part) for part in parts)
        if after > before * (1 + share) + some:
            found[name] = before, after
    return found


def soak(minutes: float, seed: str) -> tuple[list[dict[str, float]], Users]:
    """Run; return the samples, and who ran."""
    samples: list[dict[str, float]] = []
    users = Users(seed)
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer())
        proxies = [stack.enter_context(FaultProxy(server, record=100)) for _ in range(3)]
        operator = stack.enter_context(zklock.connect(server.hosts, timeout=30))
        clients = [
            stack.enter_context(zklock.connect(proxy.hosts, timeout=TIMEOUT)) for proxy in proxies
        ]
        for path in PATHS:
            operator.ensure_path(path)
        for front in (Threads(), stack.enter_context(closing(Loop()))):
            for number, client in enumerate(clients):
                users.start(f"lock {front.name} {number}", users.lock, front, client)
                users.start(f"leader {front.name} {number}", users.lead, front, client)
            users.start(f"several {front.name}", users.several, front, clients[1])
            users.start(f"worker {front.name}", users.work, front, clients[0])
        users.start("client", users.connect, proxies[2].hosts)
        users.start("faults", users.fault, proxies, operator)
        end = time.monotonic() + 60 * minutes
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(EVERY, left))
            samples.append(count(server))
            line = "  ".join(f"{name} {value:.6g}" for name, value in samples[-1].items())
            print(f"{len(samples) * EVERY / 60:6.1f} min  {line}", flush=True)
        users.finish()
    return samples, users


def main() -> int:
    """Run, print what was counted, and decide."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", default=os.urandom(4).hex())
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    samples, users = soak(options.minutes, options.seed)
    run = results.Run({"minutes": options.minutes, "seed": options.seed})
    run.note("counts", dict(sorted(users.counts.items())))
    run.figures["samples"] = {name: [each[name] for each in samples] for name in MEASURES}
    more = grown(samples)
    print(*users.errors, f"seed {options.seed}; grew in the second half: {more}", sep="\n")
    if options.json is not None:
        run.write(options.json)
    return bool(more or users.errors)


if __name__ == "__main__":
    sys.exit(main())
