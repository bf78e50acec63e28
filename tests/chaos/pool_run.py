"""A pool under a nemesis, and the verdict.

``python -m tests.chaos.pool_run --seconds 60 --seed 1``. Workers crash and are replaced, stand
still for shorter and longer than their lease, drain, change their weight, leave and come back, and
the number of shards changes, all at random. Every second worker is of asyncio. Every ownership is
noted as in ``pool_worker``, and judged by the same checker as the locks. Exit status 1 if a promise
was broken.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import zklock
from tests.chaos.pool_worker import PoolWorker
from zklock._ground.clock import clock
from zklock._pool.nodes import PoolPaths
from zklock.testing import ZooKeeperServer, wait_for
from zklock.testing.checker import Verdict, check
from zklock.testing.history import History, load

PATH = "/pool"
WORKERS = 5
SHARDS = 24
TIMEOUT = 2.0
CALM = 60.0


class Nemesis:
    """Does things to the workers of a pool, by a seed."""

    def __init__(self, hosts: str, folder: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self._hosts = hosts
        self._folder = folder
        self._history = History(folder, "nemesis")
        self._number = 0
        self._workers: list[PoolWorker] = []
        self._deeds: list[Callable[[PoolWorker], None]] = [
            self._kill,
            self._pause,
            self._drain,
            self._weigh,
            self._leave,
            self._resize,
        ]

    def run(self, seconds: float) -> None:
        """Do things for so long, then let the pool settle, and end it."""
        try:
            for _ in range(WORKERS):
                self._hire()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(self._chance.uniform(0.1, 1.0))
                deed = self._chance.choice(self._deeds)
                worker = self._chance.choice(self._workers)
                self._history.note("fault", what=deed.__name__.strip("_"), worker=worker.identity)
                deed(worker)
            self._history.note("calm")
            self._calm()
        finally:
            for worker in self._workers:
                worker.close()
            self._history.close()

    def _calm(self) -> None:
        shards = SHARDS
        self._workers[0].ask("shards", shards)
        for worker in self._workers:
            worker.ask("resume")
            worker.ask("capacity", 1.0)

        def settled() -> bool:
            sizes = [len(worker.owned()) for worker in self._workers]
            return sum(sizes) == shards and max(sizes) - min(sizes) <= 1

        wait_for(settled, CALM, "the shards are settled after the faults")
        for worker in self._workers:
            worker.ask("stop")
            worker.process.wait(CALM)

    def _hire(self) -> None:
        self._number += 1
        worker = PoolWorker(
            hosts=self._hosts,
            path=PATH,
            folder=str(self._folder),
            identity=f"w{self._number}",
            timeout=TIMEOUT,
            shards=SHARDS,
            front=("threads", "asyncio")[self._number % 2],
        )
        worker.hear()
        self._workers.append(worker)

    def _kill(self, worker: PoolWorker) -> None:
        self._history.note("kill", worker=worker.identity)
        self._workers.remove(worker)
        worker.close()
        self._hire()

    def _pause(self, worker: PoolWorker) -> None:
        began = clock()
        os.kill(worker.process.pid, signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.2, 2 * TIMEOUT))
        self._history.note("pause", at=began, worker=worker.identity, until=clock())
        os.kill(worker.process.pid, signal.SIGCONT)

    def _drain(self, worker: PoolWorker) -> None:
        worker.ask("drain", 0.0)
        time.sleep(self._chance.uniform(0.0, 0.5))
        worker.ask("resume")

    def _weigh(self, worker: PoolWorker) -> None:
        worker.ask("capacity", self._chance.choice([0.5, 1.0, 2.0, 3.0]))

    def _leave(self, worker: PoolWorker) -> None:
        worker.ask("stop")
        worker.process.wait(CALM)
        self._workers.remove(worker)
        worker.close()
        self._hire()

    def _resize(self, worker: PoolWorker) -> None:
        worker.ask("shards", self._chance.randrange(SHARDS // 2, SHARDS * 2))


def judge(folder: Path, hosts: str) -> Verdict:
    """Note what is left; return what the checker says."""
    client = zklock.connect(hosts)
    with History(folder, "director") as history:
        shards = PoolPaths(PATH).shards
        for name in client.get_children(shards):
            lock = f"{shards}/{name}"
            history.note("left", lock=lock, names=client.get_children(lock))
        for parent in ("members", "assigned", "owned", "leader"):
            history.note("left", lock=parent, names=client.get_children(f"{PATH}/{parent}"))
    client.stop()
    client.close()
    return check(load(folder))


def play(folder: Path, seconds: float, seed: int) -> Verdict:
    """Run a server and the nemesis, and return the verdict; the histories are in the folder."""
    with ZooKeeperServer(tick_time=400) as server:
        Nemesis(server.hosts, folder, seed).run(seconds)
        return judge(folder, server.hosts)


def main(arguments: list[str] | None = None) -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="zklock-pool-chaos-") as folder:
        verdict = play(Path(folder), options.seconds, options.seed)
    print(f"seed {options.seed}: {verdict.grants} ownerships, ended by {dict(verdict.ends)}")
    print(f"faults: {dict(verdict.faults)}")
    for how, margin in verdict.margins.items():
        print(f"  smallest margin after {how}: {margin.seconds * 1000:.1f} ms")
    for violation in verdict.violations:
        print(violation)
    print("held" if not verdict.violations else f"BROKEN: {len(verdict.violations)} violations")
    return bool(verdict.violations)


if __name__ == "__main__":
    sys.exit(main())
