"""A worker of a pool as a process; what it notes is as of ``worker``, for the same checker.

``python -m tests.chaos.pool_worker SETTINGS`` (JSON: hosts, path, identity, folder, and what else
``WorkerPool`` takes; ``timeout`` of the session; ``front``, "threads" or "asyncio"; ``store``, the
file of an SQLite store to which handlers write, by default none). Nobody asks for a shard: a grant
has no ``ask``. It hears one command a line, a JSON list of a word and its arguments, and answers
each with one JSON value: ``owned``, ``drain``, ``resume``, ``capacity``, ``shards``,
``leads``, ``stop``. The end of its input ends it at once. Of its hosts it takes the first that
answers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import zklock
from tests.chaos import stores
from tests.chaos.history import History
from tests.chaos.worker import connected, write
from tests.contract.fronts import FRONTS, Steps
from tests.players import Player
from tests.releases import REPOSITORY
from zklock import aio
from zklock._core.attempt import Pending
from zklock._ground.clock import clock
from zklock._pool.member import Membership
from zklock._pool.slot import Reporting
from zklock.errors import LockLost

LOOK_EVERY = 0.02
WRITE_EVERY = 0.5
BUSY_SECONDS = 0.2
"""How long a write may wait for those of others: it keeps a loop waiting, too."""
LONG = 300.0
"""Seconds that it may take for an answer: it asks ZooKeeper again and again."""


WORKERS: dict[str, type[Membership[Any]]] = {
    "threads": zklock.WorkerPool,
    "asyncio": aio.WorkerPool,
}


def noted(history: History, grants: type[Reporting]) -> type[Reporting]:
    """Return a class of grants that note what becomes of them."""

    class Noted(grants):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._told: dict[None, object] = {}
            history.note(
                "grant",
                lock=self.lock_path,
                node=self.path,
                token=str(self.token),
                session=self.session_id,
                began=clock(),
            )

        def _end(self) -> Pending[Any]:
            history.note("release", node=self.path, how="release")
            try:
                answer: Pending[Any] = super()._end()
            except LockLost:
                history.note("released", node=self.path, outcome="lost")
                raise
            history.note("released", node=self.path, outcome="done")
            return answer

        def _set_lost(self) -> None:
            super()._set_lost()
            loss = self._loss
            assert loss is not None
            if self._told.setdefault(None, at := object()) is not at:
                return  # telling may be repeated
            history.note(
                "lost",
                node=self.path,
                reason=loss.reason.name,
                noticed=loss.noticed,
                lease_end=loss.lease_end,
            )

    return Noted


def main(settings: str) -> None:
    """Work until told to stop."""
    given = json.loads(settings)
    client = connected(given.pop("hosts"), given.pop("timeout"), randomize_hosts=False)
    history = History(Path(given.pop("folder")), given["identity"])

    name = given.pop("front", "threads")
    front = {each.name: each for each in FRONTS}[name]()

    file = given.pop("store", None)
    writes = itertools.count(1)

    def handle(shard: zklock.Shard) -> Steps:
        made = None if file is None else stores.SqliteStore(Path(file), BUSY_SECONDS)
        with contextlib.closing(made) if made else contextlib.nullcontext() as store:
            while True:
                at, grant = clock(), shard._grant
                if shard.held:
                    history.note("held", at=at, node=grant.path)
                else:
                    history.note("unheld", node=grant.path)
                if store is not None:
                    what = f"{history.source}-{next(writes)}"
                    write(store, grant.lock_path, grant, history, what, node=grant.path)
                if shard.should_stop.is_set():
                    return
                yield LOOK_EVERY if store is None else WRITE_EVERY

    path = given.pop("path")

    def joined() -> Any:
        while True:
            worker = front.pool(client, path, handler=front.script(handle), **given)
            with contextlib.suppress(zklock.NoAnswer):
                worker.start()
                return worker

    history.note("begin")
    kind = WORKERS[name]
    with mock.patch.object(kind, "_GRANT", noted(history, kind._GRANT)):
        worker = joined()
        commands: dict[str, Callable[..., object]] = {
            "owned": lambda: {number: str(it.token) for number, it in worker.owned().items()},
            "drain": worker.drain,
            "resume": worker.resume,
            "capacity": worker.set_capacity,
            "shards": worker.set_shards,
            "leads": lambda: worker.is_leader,
            "stop": worker.stop,
        }
        print("null", flush=True)
        for line in sys.stdin:
            word, *arguments = json.loads(line)
            answer = answered(partial(commands[word], *arguments))
            print(json.dumps(answer), flush=True)
            if word == "stop":
                break
        else:
            os._exit(1)
    front.close()
    history.note("close")
    client.stop()
    client.close()
    history.note("end")


def answered(ask: Callable[[], object]) -> object:
    """Ask until ZooKeeper answers: all commands may be repeated."""
    while True:
        with contextlib.suppress(zklock.NoAnswer):
            return ask()


class PoolWorker:
    """Such a process, for whoever directs it."""

    def __init__(self, release: Path = REPOSITORY, **settings: Any) -> None:
        self.identity: str = settings["identity"]
        command = [sys.executable, "-m", "tests.chaos.pool_worker", json.dumps(settings)]
        log = Path(settings["folder"], f"{self.identity}.log")
        self._player = Player(command, log, release)
        self.process = self._player.process

    def hear(self) -> Any:
        """Return its next answer; the first one says that it has joined."""
        return json.loads(self._player.hears(LONG))

    def ask(self, word: str, *arguments: Any) -> Any:
        """Give a command and return the answer."""
        self._player.tell(json.dumps([word, *arguments]))
        return self.hear()

    def owned(self) -> dict[int, str]:
        """Return the shards that it owns, with the texts of their tokens."""
        return {int(number): token for number, token in self.ask("owned").items()}

    def close(self) -> None:
        """Make sure that it is gone."""
        self.process.kill()
        self._player.close()


if __name__ == "__main__":
    main(sys.argv[1])
