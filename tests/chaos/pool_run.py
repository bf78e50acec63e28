"""A pool under a nemesis of its own.

Workers crash and are replaced, stand still for shorter and longer than their lease, drain, change
their weight, leave and come back, and the number of shards changes, all at random. Every second
worker is of asyncio. Every ownership is noted as in ``pool_worker``, and judged as those of locks.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from kazoo.client import KazooClient

from tests.chaos import stores
from tests.chaos.history import History
from tests.chaos.pool_worker import ROOT, PoolWorker
from zklock._ground.clock import clock
from zklock._pool.nodes import PoolPaths
from zklock.testing import wait_for

log = logging.getLogger("chaos")

PATH = "/pool"
WORKERS = 5
CALM = 60.0
STORE = "pool.sqlite"
"""The store to which the handlers of shards write, in the folder of the histories."""


class Nemesis:
    """Has workers of a pool, and does things to them on a thread, by chance.

    Notes ``fault`` and ``kill`` and ``pause`` as the other nemesis does. The workers take
    the entries of ``hosts`` in turn. Half of them are of the release in the folder ``earlier``.
    Leave it to end what still runs.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        folder: Path,
        chance: random.Random,
        timeout: float,
        shards: int,
        earlier: Path = ROOT,
    ) -> None:
        self._releases = (ROOT, earlier)
        self._chance = chance
        self._hosts = hosts
        self._folder = folder
        self._timeout = timeout
        self._shards = shards
        self._history = History(folder, "nemesis-pool")
        self._number = 0
        self._workers: list[PoolWorker] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nemesis-pool")
        self._failure: BaseException | None = None
        self._deeds: list[Callable[[PoolWorker], None]] = [
            self._kill,
            self._pause,
            self._drain,
            self._weigh,
            self._leave,
            self._resize,
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers:
            worker.close()
        self._history.close()

    def start(self) -> None:
        """Hire the workers, and begin."""
        stores.SqliteStore.make(self._folder / STORE, shard_paths(2 * self._shards))
        self._thread.start()

    def stop(self) -> None:
        """Do no more; raises what went wrong."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Wait until the workers share the shards, and end them in order."""
        self._history.note("calm")
        self._workers[0].ask("shards", self._shards)
        for worker in self._workers:
            worker.ask("resume")
            worker.ask("capacity", 1.0)

        def settled() -> bool:
            sizes = [len(worker.owned()) for worker in self._workers]
            return sum(sizes) == self._shards and max(sizes) - min(sizes) <= 1

        wait_for(settled, CALM, "the shards are settled after the faults")
        for worker in self._workers:
            worker.ask("stop")
            worker.process.wait(CALM)

    def _run(self) -> None:
        try:
            for _ in range(WORKERS):
                self._hire()
            while not self._over.wait(self._chance.uniform(0.1, 1.0)):
                deed = self._chance.choice(self._deeds)
                worker = self._chance.choice(self._workers)
                what = f"pool: {deed.__name__.strip('_')}"
                self._history.note("fault", what=what, worker=worker.identity)
                deed(worker)
        except BaseException as error:
            log.exception("the nemesis of the pool failed")
            self._failure = error

    def _hire(self) -> None:
        self._number += 1
        worker = PoolWorker(
            self._releases[self._number // 2 % 2],
            hosts=self._hosts[self._number % len(self._hosts)],
            path=PATH,
            folder=str(self._folder),
            store=str(self._folder / STORE),
            identity=f"pool-{self._number}",
            timeout=self._timeout,
            shards=self._shards,
            front=("threads", "asyncio")[self._number % 2],
        )
        self._workers.append(worker)
        worker.hear()

    def _kill(self, worker: PoolWorker) -> None:
        self._history.note("kill", worker=worker.identity)
        self._workers.remove(worker)
        worker.close()
        self._hire()

    def _pause(self, worker: PoolWorker) -> None:
        began = clock()
        os.kill(worker.process.pid, signal.SIGSTOP)
        self._over.wait(self._chance.uniform(0.2, 2 * self._timeout))
        self._history.note("pause", at=began, worker=worker.identity, until=clock())
        os.kill(worker.process.pid, signal.SIGCONT)

    def _drain(self, worker: PoolWorker) -> None:
        worker.ask("drain", 0.0)
        self._over.wait(self._chance.uniform(0.0, 0.5))
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
        worker.ask("shards", self._chance.randrange(self._shards // 2, self._shards * 2))


def shard_paths(shards: int) -> list[str]:
    """Return the paths of the shards' locks."""
    return [PoolPaths(PATH).shard(number) for number in range(shards)]


def look(client: KazooClient, folder: Path, history: History) -> None:
    """Note what is left of the pool, and what is in the store of its shards."""
    shards = PoolPaths(PATH).shards
    for name in client.get_children(shards):
        lock = f"{shards}/{name}"
        history.note("left", lock=lock, names=client.get_children(lock))
    for parent in ("members", "assigned", "owned", "leader"):
        history.note("left", lock=parent, names=client.get_children(f"{PATH}/{parent}"))
    store = stores.SqliteStore(folder / STORE)
    for lock in store.locks():
        history.note("contents", store=store.name, lock=lock, **store.contents(lock))
    store.close()
