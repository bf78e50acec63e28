"""One run: an ensemble, workers, a pool, the nemesis, and the verdict.

It notes, as ``run``: ``begin`` and ``end`` of its own; ``settings``; ``calm``: the last fault is
undone; ``left`` (``lock``, ``names``): what still stands under a lock at the very end;
``contents`` (``store``, ``lock``, ``value``, ``writes``): what a store says, its log as
``[write, token, value]``; ``error`` (``what``); as ``servers`` what they have written down; and as
``witness`` whether they have kept it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.chaos import pool_run, server_log, stores
from tests.chaos.checker import Bounds
from tests.chaos.history import History, load
from tests.chaos.nemesis import Nemesis, Victims
from tests.chaos.strangers import Strangers
from tests.chaos.witness import Witness
from tests.chaos.worker import CRASH_CODE, WorkerSettings
from tests.releases import REPOSITORY, Upgrading, check_out_earlier
from zklock import connect
from zklock._ground.clock import clock
from zklock._recipes import names
from zklock.testing import Ensemble, wait_for
from zklock.testing.proxy import FaultProxy

log = logging.getLogger("chaos")

REPORT_SECONDS = 15.0
QUICK_ELECTIONS = {
    # A server that found no leader asks again at intervals that grow to a minute by default, and
    # waits five seconds for a peer to accept a connection.
    "zookeeper.fastleader.maxNotificationInterval": "1000",
    "zookeeper.cnxTimeout": "1000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run is made of. Seconds, but for ``tick_time`` in milliseconds.

    The first ``proxied`` workers reach the servers through proxies of their own. Half of the
    workers keep their locks: one of each two, and of each front. ``upgrade``: a folder with the
    jars that the servers are given one after the other. ``earlier``: the workers that keep nothing,
    and half of those of the pool, are of the release before this one.
    """

    seed: str
    seconds: float
    backend: str | None = None
    session_timeout: float = 2.0
    tick_time: int = 500
    sync_limit: int = 10
    workers: int = 4
    actors: int = 8
    proxied: int = 2
    locks: int = 20
    elections: int = 4
    shards: int = 12
    service: float = 45.0
    upgrade: str | None = None
    earlier: bool = False

    def favourite(self, worker: int) -> int | None:
        """Return the number of the lock that a worker prefers; ``None``: it keeps no locks."""
        return None if (worker + worker // 2) % 2 else worker % self.locks

    def favourites(self) -> list[int]:
        """Return the locks that some workers prefer."""
        each = map(self.favourite, range(self.workers))
        return sorted({lock for lock in each if lock is not None})


class Workers:
    """The worker processes: started, and started again when they end by a crash of their own."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        hosts: Sequence[str],
        history: History,
        earlier: Path,
    ) -> None:
        self._earlier = earlier
        self._settings = settings
        self._folder = folder
        self._hosts = hosts
        self._history = history
        self._paths = paths(settings)
        self._guard = threading.Lock()
        self._lives = [0] * settings.workers
        self._running: dict[int, tuple[str, subprocess.Popen[str]]] = {}

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
                locks=self._paths,
                seed=f"{self._settings.seed}/{name}",
                session_timeout=self._settings.session_timeout,
                final=self._settings.service,
                actors=self._settings.actors,
                front=("threads", "asyncio")[number % 2],
                favourite=favourite,
                spared=() if earlier else self._settings.favourites(),
            )
            with (self._folder / f"{name}.log").open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.chaos.worker", told.to_json()],
                    cwd=self._earlier if earlier else REPOSITORY,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            self._running[number] = name, process

    def kill(self, number: int) -> str | None:
        """SIGKILL."""
        with self._guard:
            name, process = self._running.pop(number, (None, None))
        if process is None:
            return None
        process.kill()
        self._reap(process)
        return name

    def pause(self, number: int) -> str | None:
        """SIGSTOP."""
        return self._signal(number, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT."""
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, what: signal.Signals) -> str | None:
        with self._guard:
            name, process = self._running.get(number, (None, None))
            if process is None or process.poll() is not None:
                return None
            process.send_signal(what)
            return name

    def tend(self) -> None:
        """Replace those that ended by themselves; note those that had no business to."""
        for number, (name, process) in [*self._running.items()]:
            code = process.poll()
            if code is None:
                continue
            with self._guard:
                mine = self._running.get(number, (None, None))[1] is process
                if mine:
                    del self._running[number]
            if mine:
                self._reap(process)
                if code != CRASH_CODE:
                    self._history.note("error", what=f"{name} ended with code {code}")
                self.start(number)

    def finish(self, seconds: float) -> None:
        """Have all end in order; those that do not are made to say where they hang."""
        deadline = clock() + seconds
        for _, process in self._running.values():
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("finish\n")
                process.stdin.flush()
        for name, process in self._running.values():
            try:
                code = process.wait(max(0.0, deadline - clock()))
            except subprocess.TimeoutExpired:
                self._history.note("error", what=f"{name} hangs: see {name}.log")
                process.send_signal(signal.SIGUSR1)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
            else:
                if code not in (0, CRASH_CODE):
                    self._history.note("error", what=f"{name} ended with code {code}")
        self.close()

    def close(self) -> None:
        """End what still runs."""
        for _, process in self._running.values():
            process.kill()
            self._reap(process)
        self._running.clear()

    @staticmethod
    def _reap(process: subprocess.Popen[str]) -> None:
        process.wait()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def paths(settings: Settings) -> list[str]:
    """Return the paths of the locks, and then of the elections; their last parts differ, too."""
    locks = [f"{stores.ROOT}/locks/{number}" for number in range(settings.locks)]
    return locks + [f"{stores.ELECTIONS}/e{number}" for number in range(settings.elections)]


def run(settings: Settings, folder: Path) -> server_log.Decision:
    """Run, and decide. The histories, and what the workers printed, are left in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    offset = server_log.wall_offset()
    backend = settings.backend if settings.upgrade is None else Upgrading(settings.upgrade)
    with (
        _earlier(settings) as earlier,
        History(folder, "run") as history,
        History(folder, "nemesis") as deeds,
        History(folder, "witness") as seen,
    ):
        history.note("begin", pid=os.getpid())
        history.note("settings", **asdict(settings))
        with (
            Ensemble(
                3,
                tick_time=settings.tick_time,
                sync_limit=settings.sync_limit,
                backend=backend,
                system_properties=QUICK_ELECTIONS,
            ) as ensemble,
            _proxies(settings, ensemble) as proxies,
        ):
            log.info("seed %s, %r", settings.seed, ensemble)
            before = _versions(ensemble)
            _prepare(settings, ensemble, folder)
            hosts = [",".join(proxy.hosts for proxy in group) for group in proxies]
            hosts += [ensemble.hosts] * (settings.workers - len(hosts))
            workers = Workers(settings, folder, hosts, history, earlier)
            every = [*paths(settings), *pool_run.shard_paths(settings.shards)]
            victims = Victims(ensemble, proxies, workers, settings.workers, every)
            if isinstance(backend, Upgrading):
                moments = [settings.seconds * part / 5 for part in (1, 2, 3)]
                victims = replace(victims, upgrade=backend.upgrade, upgrades=moments)
            with (
                Witness(ensemble.hosts, f"{stores.ROOT}/witness", seen),
                pool_run.Nemesis(
                    hosts,
                    folder,
                    random.Random(f"{settings.seed}/pool"),
                    settings.session_timeout,
                    settings.shards,
                    earlier,
                ) as pool,
            ):
                try:
                    with _strangers(settings, ensemble.hosts, folder):
                        _trouble(settings, victims, workers, pool, deeds, folder)
                    history.note("calm")
                    workers.finish(settings.service + 30.0)
                    pool.settle()
                finally:
                    workers.close()
            after = _versions(ensemble)
            history.note("versions", before=before, after=after)
            if settings.upgrade is not None and {*before} & {*after}:
                history.note("error", what=f"not every server was upgraded: {before} to {after}")
            _look(settings, ensemble, folder, history)
            _keep_log(ensemble, offset, folder)
        history.note("end")
    return decide(settings, folder)


@contextlib.contextmanager
def _earlier(settings: Settings) -> Iterator[Path]:
    """Return the folder that some workers are of: that of this release, unless told otherwise."""
    if not settings.earlier:
        yield REPOSITORY
        return
    with tempfile.TemporaryDirectory(prefix="zklock-earlier-") as folder:
        log.info("some workers are of %s", check_out_earlier(Path(folder)))
        # Both write to the same stores, in the same way.
        shutil.copy(stores.__file__, Path(folder, "tests", "chaos"))
        yield Path(folder)


def decide(settings: Settings, folder: Path) -> server_log.Decision:
    """Return the verdict on the histories in a folder."""
    bounds = Bounds(service=settings.service)
    patience = settings.session_timeout + settings.tick_time / 1000 + bounds.slack
    return server_log.decide(load(folder), bounds, patience)


@contextlib.contextmanager
def _strangers(settings: Settings, hosts: str, folder: Path) -> Iterator[None]:
    """Have strangers queue for the locks, and above all for the favourites of those that keep."""
    locks = paths(settings)[: settings.locks]
    preferred = [locks[each] for each in settings.favourites()]
    with (
        History(folder, "strangers") as history,
        Strangers(
            hosts,
            locks,
            preferred,
            settings.seed,
            settings.session_timeout,
            history,
        ),
    ):
        yield


def _versions(ensemble: Ensemble) -> list[str]:
    return [server.version() for server in ensemble.servers]


@contextlib.contextmanager
def _proxies(settings: Settings, ensemble: Ensemble) -> Iterator[list[list[FaultProxy]]]:
    with contextlib.ExitStack() as stack:
        yield [
            [stack.enter_context(FaultProxy(server, record=100)) for server in ensemble.servers]
            for _ in range(settings.proxied)
        ]


def _keep_log(ensemble: Ensemble, offset: float, folder: Path) -> None:
    """Note what the servers have written down, if their files can be read."""
    changes = server_log.gather([server.data_dir for server in ensemble.servers], offset)
    with History(folder, "servers") as history:
        server_log.keep(changes, (f"{stores.ROOT}/", pool_run.PATH), history)


def _prepare(settings: Settings, ensemble: Ensemble, folder: Path) -> None:
    client = connect(ensemble.hosts, 10.0)
    try:
        stores.SqliteStore.make(folder / "store.sqlite", paths(settings))
        stores.ZooKeeperStore.make(client, paths(settings))
        stores.GuardedStore.make(client, paths(settings))
    finally:
        client.stop()
        client.close()


def _trouble(
    settings: Settings,
    victims: Victims,
    workers: Workers,
    pool: pool_run.Nemesis,
    deeds: History,
    folder: Path,
) -> None:
    for number in range(settings.workers):
        workers.start(number)
    pool.start()
    nemesis = Nemesis(settings.seed, settings.session_timeout, victims, deeds)
    over = threading.Event()
    begun = reported = clock()
    nemesis.start()
    try:
        while clock() - begun < settings.seconds:
            over.wait(0.2)
            workers.tend()
            if clock() - reported >= REPORT_SECONDS:
                reported = clock()
                log.info("%3.0f s: %s", reported - begun, _progress(folder))
    finally:
        try:
            nemesis.stop()
        finally:
            pool.stop()
        workers.tend()


def _progress(folder: Path) -> str:
    events = load(folder)
    counts = Counter(event.kind for event in events)
    kinds = ("grant", "lost", "written", "fault", "error", "stranger")
    asked = {event["ask"]: event.at for event in events if event.kind == "ask"}
    waits = [
        event.at - asked[event["ask"]]
        for event in events
        if event.kind == "grant" and "ask" in event.data
    ]
    said = ", ".join(f"{counts[kind]} {kind}" for kind in kinds)
    return f"{said}, longest wait {max(waits, default=0.0):.2f} s"


def _look(settings: Settings, ensemble: Ensemble, folder: Path, history: History) -> None:
    """Note what is left, once nothing is or the time is over, and what is in the stores."""
    client = connect(ensemble.hosts, 30.0, start_timeout=60.0)
    each = [connect(server.hosts, 30.0, start_timeout=60.0) for server in ensemble.servers]
    sqlite = stores.SqliteStore(folder / "store.sqlite")

    def standing(lock: str) -> list[str]:
        client.sync(lock)
        if client.exists(lock) is None:
            return []
        return [name.text for name in names.Queue(client.get_children(lock)).contenders]

    try:
        locks = paths(settings)
        with contextlib.suppress(TimeoutError):  # the checker will object
            wait_for(
                lambda: not any(map(standing, locks)),
                settings.session_timeout * 2 + 3,
                "an empty queue",
            )
        for lock in locks:
            history.note("left", lock=lock, names=standing(lock))
            history.note("contents", store=sqlite.name, lock=lock, **sqlite.contents(lock))
            for kind in (stores.ZooKeeperStore, stores.GuardedStore):
                contents, lacking = kind.agreed(each, lock)
                history.note("contents", store=kind.name, lock=lock, **contents)
                if lacking:
                    history.note("forgotten", store=kind.name, lock=lock, lacking=lacking)
        pool_run.look(client, folder, history)
    finally:
        for connected in (client, *each):
            connected.stop()
            connected.close()
        sqlite.close()
