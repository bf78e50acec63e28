"""One run: an ensemble, workers, a pool, the nemesis, and the verdict.

Beside what is checked it notes ``settings``; as ``servers`` what those have written down; and as
``witness`` whether they have kept it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.backends import QUICK_ELECTIONS
from tests.chaos import server_log, stores
from tests.chaos.checker import Bounds
from tests.chaos.history import History, load
from tests.chaos.nemesis import Nemesis, Victims
from tests.chaos.plan import Settings
from tests.chaos.strangers import strangers
from tests.chaos.witness import witness
from tests.chaos.workers import POOL, POOL_STORE, STORE, Pool, Workers, shard_paths
from tests.releases import REPOSITORY, Upgrading, check_out_earlier
from zklock import connect
from zklock._ground.clock import clock
from zklock._pool.nodes import PoolPaths
from zklock._recipes import names
from zklock.testing import Ensemble, wait_for
from zklock.testing.proxy import FaultProxy

log = logging.getLogger("chaos")


def run(settings: Settings, folder: Path) -> server_log.Decision:
    """Run, and decide. The histories, and what the workers printed, are left in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    offset = server_log.wall_offset()
    backend = settings.backend if settings.upgrade is None else Upgrading(settings.upgrade)
    with ExitStack() as stack:
        sources = ("run", "nemesis", "witness", "strangers", "servers")
        history, deeds, seen, met, written = (
            stack.enter_context(History(folder, source)) for source in sources
        )
        history.note("begin", pid=os.getpid())
        history.note("settings", **asdict(settings))
        earlier = stack.enter_context(_earlier(settings))
        ensemble = stack.enter_context(
            Ensemble(
                3,
                tick_time=settings.tick_time,
                sync_limit=settings.sync_limit,
                backend=backend,
                system_properties=QUICK_ELECTIONS,
            )
        )
        proxies = [
            [stack.enter_context(FaultProxy(server, record=100)) for server in ensemble.servers]
            for _ in range(settings.proxied)
        ]
        log.info("seed %s, %r", settings.seed, ensemble)
        before = [server.version() for server in ensemble.servers]
        _prepare(settings, ensemble, folder)
        hosts = [",".join(proxy.hosts for proxy in group) for group in proxies]
        hosts += [ensemble.hosts] * (settings.workers - len(hosts))
        locks = settings.paths()[: settings.locks]
        favourites = [locks[each] for each in settings.favourites()]
        workers = Workers(settings, folder, hosts, history, earlier)
        pool = Pool(settings, folder, hosts, earlier)
        every = [*settings.paths(), *shard_paths(settings.shards)]
        victims = Victims(ensemble, proxies, workers, pool, every)
        if isinstance(backend, Upgrading):
            moments = [settings.seconds * part / 5 for part in (1, 2, 3)]
            victims = replace(victims, upgrade=backend.upgrade, upgrades=moments)
        with witness(ensemble.hosts, f"{stores.ROOT}/witness", seen):
            try:
                with strangers(ensemble.hosts, locks, favourites, settings.seed, met):
                    _trouble(settings, victims, deeds)
                history.note("calm")
                workers.finish(settings.service + 30.0)
                pool.settle()
            finally:
                workers.close()
                pool.close()
        after = [server.version() for server in ensemble.servers]
        if settings.upgrade is not None and {*before} & {*after}:
            history.note("error", what=f"not every server was upgraded: {before} to {after}")
        _look(settings, ensemble, folder, history)
        changes = server_log.gather([server.data_dir for server in ensemble.servers], offset)
        server_log.keep(changes, (f"{stores.ROOT}/", POOL), written)
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


def _prepare(settings: Settings, ensemble: Ensemble, folder: Path) -> None:
    stores.SqliteStore.make(folder / STORE, settings.paths())
    with connect(ensemble.hosts, 10.0) as client:
        for lock in settings.paths():
            stores.ZooKeeperStore(client).make(lock)
            stores.GuardedStore(client).make(lock)


def _trouble(settings: Settings, victims: Victims, deeds: History) -> None:
    workers = victims.workers
    for number in range(settings.workers):
        workers.start(number)
    victims.pool.start()
    nemesis = Nemesis(settings.seed, settings.session_timeout, victims, deeds)
    begun = clock()
    nemesis.start()
    try:
        while clock() - begun < settings.seconds:
            time.sleep(0.2)
            workers.tend()
    finally:
        nemesis.stop()
        workers.tend()


def _look(settings: Settings, ensemble: Ensemble, folder: Path, history: History) -> None:
    """Note what is left, once nothing is or the time is over, and what is in the stores."""
    with ExitStack() as stack:
        client, *each = (
            stack.enter_context(connect(hosts, 30.0, start_timeout=60.0))
            for hosts in (ensemble.hosts, *(server.hosts for server in ensemble.servers))
        )

        def standing(lock: str) -> list[str]:
            client.sync(lock)
            if client.exists(lock) is None:
                return []
            return [name.text for name in names.Queue(client.get_children(lock)).contenders]

        locks = settings.paths()
        with contextlib.suppress(TimeoutError):  # the checker will object
            wait_for(
                lambda: not any(map(standing, locks)),
                settings.session_timeout * 2 + 3,
                "an empty queue",
            )
        for lock in locks:
            history.note("left", lock=lock, names=standing(lock))
            for kind in (stores.ZooKeeperStore, stores.GuardedStore):
                contents, lacking = kind.agreed(each, lock)
                history.note("contents", store=kind.name, lock=lock, **contents)
                if lacking:
                    history.note("forgotten", store=kind.name, lock=lock, lacking=lacking)
        note_pool(client, POOL, history)
    for file in (STORE, POOL_STORE):
        with contextlib.closing(stores.SqliteStore(folder / file)) as sqlite:
            for lock in sqlite.locks():
                history.note("contents", store=sqlite.name, lock=lock, **sqlite.contents(lock))


def note_pool(client: Any, path: str, history: History) -> None:
    """Note what is left of a pool."""
    shards = PoolPaths(path).shards
    for lock in [f"{shards}/{name}" for name in client.get_children(shards)]:
        history.note("left", lock=lock, names=client.get_children(lock))
    for parent in ("members", "assigned", "owned", "leader"):
        history.note("left", lock=parent, names=client.get_children(f"{path}/{parent}"))
