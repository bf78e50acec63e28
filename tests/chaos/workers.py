"""The processes of a run, for whoever directs them: workers that lock, and those of a pool."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.history import History
from tests.chaos.plan import Settings
from tests.chaos.pool_worker import PoolWorker
from tests.chaos.stores import SqliteStore
from tests.chaos.worker import CRASH_CODE, WorkerSettings
from tests.players import Player
from tests.releases import REPOSITORY
from zklock._ground.clock import clock
from zklock._pool.nodes import PoolPaths
from zklock.testing import wait_for

POOL = "/pool"
POOL_WORKERS = 5
CALM = 60.0
STORE, POOL_STORE = "store.sqlite", "pool.sqlite"
"""Those to which workers and handlers of shards write, in the folder of the histories."""


class Workers:
    """Workers that lock: started, and started again when they end by a crash of their own."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        hosts: Sequence[str],
        history: History,
        earlier: Path,
    ) -> None:
        self.count = settings.workers
        self._earlier = earlier
        self._settings = settings
        self._folder = folder
        self._hosts = hosts
        self._history = history
        self._guard = threading.Lock()
        self._lives = [0] * settings.workers
        self._running: dict[int, tuple[str, Player]] = {}

    def start(self, number: int) -> None:
        """Start a worker in this place."""
        with self._guard:
            self._lives[number] += 1
            name = f"w{number}-{self._lives[number]}"
            favourite = self._settings.favourite(number)
            earlier = self._settings.earlier and favourite is None
            told = WorkerSettings(
                name=name,
                folder=str(self._folder),
                hosts=self._hosts[number],
                locks=self._settings.paths(),
                seed=f"{self._settings.seed}/{name}",
                session_timeout=self._settings.session_timeout,
                final=self._settings.service,
                actors=self._settings.actors,
                front=("threads", "asyncio")[number % 2],
                favourite=favourite,
                spared=() if earlier else self._settings.favourites(),
            )
            command = [sys.executable, "-m", "tests.chaos.worker", told.to_json()]
            place = self._earlier if earlier else REPOSITORY
            self._running[number] = name, Player(command, self._folder / f"{name}.log", place)

    def kill(self, number: int, only: Player | None = None) -> str | None:
        """SIGKILL it; return the name of the process, ``None`` if there was none, or another."""
        with self._guard:
            name, player = self._running.get(number, (None, None))
            if player is None or only not in (None, player):
                return None
            del self._running[number]
        player.close()  # it has answered nothing, so it is killed
        return name

    def signal(self, number: int, what: signal.Signals) -> str | None:
        """Send it a signal; return the name of the process, ``None`` if there was none."""
        with self._guard:
            name, player = self._running.get(number, (None, None))
            if player is None or player.process.poll() is not None:
                return None
            player.process.send_signal(what)
            return name

    def tend(self) -> None:
        """Replace those that ended by themselves; note those that had no business to."""
        for number, (name, player) in [*self._running.items()]:
            code = player.process.poll()
            if code is not None and self.kill(number, player) is not None:
                self._ended(name, code, CRASH_CODE)
                self.start(number)

    def finish(self, seconds: float) -> None:
        """Have all end in order; those that do not are made to say where they hang."""
        deadline = clock() + seconds
        for _, player in self._running.values():
            with contextlib.suppress(BrokenPipeError):
                player.tell("finish")
        for name, player in self._running.values():
            try:
                self._ended(name, player.process.wait(max(0.0, deadline - clock())), 0, CRASH_CODE)
            except subprocess.TimeoutExpired:
                self._history.note("error", what=f"{name} hangs: see {name}.log")
                player.process.send_signal(signal.SIGUSR1)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    player.process.wait(1.0)
        self.close()

    def _ended(self, name: str, code: int, *expected: int) -> None:
        if code not in expected:
            self._history.note("error", what=f"{name} ended with code {code}")

    def close(self) -> None:
        """End what still runs."""
        for number in [*self._running]:
            self.kill(number)


class Pool:
    """Workers of a pool, every second of asyncio; half of them of the release in ``earlier``.

    They take the entries of ``hosts`` in turn. Every ownership is judged as those of locks.
    """

    def __init__(
        self, settings: Settings, folder: Path, hosts: Sequence[str], earlier: Path
    ) -> None:
        self.shards = settings.shards
        self.workers: list[PoolWorker] = []
        self._releases = (REPOSITORY, earlier)
        self._timeout = settings.session_timeout
        self._hosts = hosts
        self._folder = folder
        self._number = 0

    def start(self) -> None:
        """Hire the workers."""
        SqliteStore.make(self._folder / POOL_STORE, shard_paths(2 * self.shards))
        for worker in [self._hire() for _ in range(POOL_WORKERS)]:
            worker.hear()

    def _hire(self) -> PoolWorker:
        self._number += 1
        worker = PoolWorker(
            self._releases[self._number // 2 % 2],
            hosts=self._hosts[self._number % len(self._hosts)],
            path=POOL,
            folder=str(self._folder),
            store=str(self._folder / POOL_STORE),
            identity=f"pool-{self._number}",
            timeout=self._timeout,
            shards=self.shards,
            front=("threads", "asyncio")[self._number % 2],
        )
        self.workers.append(worker)
        return worker

    def replace(self, worker: PoolWorker) -> None:
        """Make sure that it is gone, and hire another."""
        self.workers.remove(worker)
        worker.close()
        self._hire().hear()

    def settle(self) -> None:
        """Wait until the workers share the shards, and end them in order."""
        self.workers[0].ask("shards", self.shards)
        for worker in self.workers:
            worker.ask("resume")
            worker.ask("capacity", 1.0)

        def settled() -> bool:
            sizes = [len(worker.owned()) for worker in self.workers]
            return sum(sizes) == self.shards and max(sizes) - min(sizes) <= 1

        wait_for(settled, CALM, "the shards are settled after the faults")
        for worker in self.workers:
            worker.ask("stop")
            worker.process.wait(CALM)

    def close(self) -> None:
        """End what still runs."""
        for worker in self.workers:
            worker.close()


def shard_paths(shards: int) -> list[str]:
    """Return the paths of the shards' locks."""
    return [PoolPaths(POOL).shard(number) for number in range(shards)]
