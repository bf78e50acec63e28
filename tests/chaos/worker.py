"""A worker process of threads, or of tasks, that acquire, write, release, give up, and crash.

What it notes is defined in ``tests.chaos.history``.

``python -m tests.chaos.worker SETTINGS`` (JSON) runs one. The line ``finish`` on standard input has
every thread acquire once more and end; the end of standard input ends it at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

import zklock
from tests.chaos import plan, stores
from tests.chaos.history import History
from tests.chaos.plan import Ending, Step, Turn
from tests.contract.fronts import FRONTS, Loop, Threads
from tests.timed import timed_grants
from zklock._ground.clock import clock

CRASH_CODE = 70
LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker process is told. ``final`` is how long it may wait at the end, in seconds."""

    name: str
    folder: str
    hosts: str
    locks: list[str]
    seed: str
    session_timeout: float
    final: float
    actors: int
    front: str = "threads"
    favourite: int | None = None
    """The lock that it takes in half of its turns: it keeps its locks. ``None``: it does not."""
    spared: Sequence[int] = ()
    """The favourites of all workers."""

    def to_json(self) -> str:
        """Return the command line argument, which an earlier release understands, too."""
        usual = {each.name: each.default for each in fields(self)}
        return json.dumps({key: it for key, it in asdict(self).items() if it != usual[key]})


def is_election(path: str) -> bool:
    """Whether actors are elected there, as leaders; else it is a lock."""
    return path.rpartition("/")[0] == stores.ELECTIONS


def named(grant: Any) -> dict[str, Any]:
    """Return what names a grant in a history."""
    return {"node": grant.path, **({"use": grant.number} if grant.kept else {})}


class Connection:
    """A client that may be shared, and is made anew after it was stopped."""

    def __init__(self, settings: WorkerSettings, history: History) -> None:
        self._settings = settings
        self._history = history
        self._client: KazooClient | None = None
        self._guard = threading.Lock()

    def get(self) -> KazooClient:
        """Return the client, started; waits for the ensemble as long as it takes."""
        with self._guard:
            if self._client is None:
                self._client = connected(self._settings.hosts, self._settings.session_timeout)
            return self._client

    def close(self) -> None:
        """Stop the client."""
        with self._guard:
            client, self._client = self._client, None
        if client is not None:
            self._history.note("close")
            client.stop()
            client.close()


def connected(hosts: str, timeout: float, **options: Any) -> KazooClient:
    """Return a started client; wait for the servers as long as it takes."""
    while True:
        with contextlib.suppress(zklock.NoAnswer):
            return zklock.connect(hosts, timeout, start_timeout=5.0, **options)


@dataclass(frozen=True, slots=True)
class Actor:
    """The part of one thread, or of one task; its stores and its pauses are off the loop."""

    name: str
    settings: WorkerSettings
    history: History
    connection: Connection
    finish: threading.Event
    front: Threads | Loop
    alone: bool
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self) -> None:
        """Take turns until told to finish, and a last one then."""
        settings = self.settings
        turns = plan.turns(
            f"{settings.seed}/{self.name}",
            len(settings.locks),
            settings.session_timeout,
            may_close=self.alone,
            favourite=settings.favourite,
            spared=settings.spared,
        )
        with contextlib.closing(stores.SqliteStore(Path(settings.folder) / "store.sqlite")) as kept:
            for turn in turns:
                over = self.finish.is_set()
                last = Turn(turn.lock, settings.final, None, (Step.SQLITE,), 0, Ending.RELEASE, 0)
                try:
                    self._take(last if over else turn, kept)
                except Exception:
                    self.history.note("error", what=traceback.format_exc())
                    time.sleep(0.1)
                if over:
                    break
                self.finish.wait(turn.pause)

    def _take(self, turn: Turn, sqlite: stores.SqliteStore) -> None:
        path = self.settings.locks[turn.lock]
        client = self.connection.get()
        ask = f"{self.name}-{next(self.numbers)}"
        make = self.front.LeaderElection if is_election(path) else self.front.Lock
        keeps = self.settings.favourite is not None and not is_election(path)
        keep = {"keep": turn.keep} if keeps else {}
        name = {} if keeps else {"identity": ask}  # only locks of one name share what is kept
        lock = make(client, path, on_lost=self._lost, **keep, **name)
        cancelling = threading.Timer(turn.cancel_after or 0.0, lock.cancel)
        if turn.cancel_after is not None:
            cancelling.start()
        self.history.note("ask", ask=ask, lock=path, timeout=turn.timeout, **keep)
        try:
            grant, outcome = lock.acquire(timeout=turn.timeout), "none"
        except (zklock.AcquireCancelled, zklock.ClientClosed) as error:
            closed = isinstance(error, zklock.ClientClosed)
            grant, outcome = None, "closed" if closed else "cancelled"
        finally:
            cancelling.cancel()
        if grant is None:
            self.history.note("answer", ask=ask, outcome=outcome)
            return
        self.history.note(
            "grant",
            ask=ask,
            lock=path,
            token=str(grant.token),
            session=grant.session_id,
            began=grant.began,
            **named(grant),
            **keep,
        )
        self._work(turn, grant, client, sqlite)
        self._end(turn, lock, grant)

    def _lost(self, loss: zklock.Loss) -> None:
        times = {"noticed": loss.noticed, "lease_end": loss.lease_end}
        self.history.note("lost", **named(loss.grant), reason=loss.reason.name, **times)

    def _look(self, grant: Any) -> bool:
        before = clock()
        held = bool(grant.held)
        self._note_look(grant, before, held)
        return held

    def _check(self, grant: Any) -> None:
        before = clock()
        try:
            grant.check()
        except zklock.LockLost:
            self._note_look(grant, before, held=False)
        else:
            self._note_look(grant, before, held=True)

    def _note_look(self, grant: Any, before: float, held: bool) -> None:
        at = before if held else None
        self.history.note("held" if held else "unheld", at=at, **named(grant))

    def _work(
        self, turn: Turn, grant: Any, client: KazooClient, sqlite: stores.SqliteStore
    ) -> None:
        kept: dict[Step, stores.Store] = {
            Step.SQLITE: sqlite,
            Step.ZOOKEEPER: stores.ZooKeeperStore(client),
            Step.GUARDED: stores.GuardedStore(client),
        }
        for step in turn.steps:
            if self.finish.is_set() and turn.timeout != self.settings.final:
                break
            held = self._look(grant)
            if step is Step.CHECK:
                self._check(grant)
            elif step is Step.VERIFY:
                with contextlib.suppress(zklock.NoAnswer, zklock.LockLost, zklock.ClientClosed):
                    grant.verify()
            else:
                # Also after the loss: a late write is what the stores are there for.
                self._write(kept[step], grant)
            until = clock() + turn.rest
            while held and clock() < until and not self.finish.is_set():
                time.sleep(min(LOOK_SECONDS, turn.rest))
                held = self._look(grant)
            if not held:
                for store in kept.values():
                    self._write(store, grant)
                break

    def _write(self, store: stores.Store, grant: Any) -> None:
        name = f"{self.name}-w{next(self.numbers)}"
        write(store, grant.lock_path, grant, self.history, name, **named(grant))

    def _end(self, turn: Turn, lock: Any, grant: Any) -> None:
        self._look(grant)
        if turn.ending is Ending.CRASH:
            self.history.note("crash")
            os._exit(CRASH_CODE)
        if turn.ending is Ending.CLOSE:
            self.connection.close()
        how = "abandon" if turn.ending is Ending.ABANDON else "release"
        self.history.note("release", **named(grant), how=how)
        outcome = "done"
        try:
            if how == "abandon":
                grant.abandon()
            else:
                (grant if is_election(lock.path) else lock).release()
        except zklock.LockLost:
            outcome = "lost"
        self.history.note("released", **named(grant), outcome=outcome)


def write(
    store: stores.Store, lock: str, grant: Any, history: History, write: str, **name: Any
) -> None:
    """Add one to the counter of a lock, whether or not it is still held, and note that."""
    value = store.read(lock, grant)
    if value is not None:
        token, there = str(grant.token), store.name
        history.note(
            "write", **name, store=there, lock=lock, write=write, token=token, value=value + 1
        )
        history.note("written", write=write, outcome=store.write(lock, grant, write, value + 1))


def main(argument: str) -> None:
    """Run a worker until it is told to finish."""
    settings = WorkerSettings(**json.loads(argument))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(format="%(asctime)s %(threadName)s %(levelname)s %(message)s")
    logging.getLogger("zklock").setLevel(logging.INFO)
    finish = threading.Event()
    with History(Path(settings.folder), settings.name) as history, timed_grants():
        history.note("begin", pid=os.getpid())
        front = {each.name: each for each in FRONTS}[settings.front]()
        shared, own = (Connection(settings, history) for _ in range(2))
        actors = []
        for number in range(settings.actors):
            alone = number == settings.actors - 1
            name, connection = f"{settings.name}.{number}", own if alone else shared
            actor = Actor(name, settings, history, connection, finish, front, alone)
            actors.append(threading.Thread(target=actor.run, name=name))
            actors[-1].start()
        threading.Thread(target=_obey, args=(finish,), daemon=True).start()
        for thread in actors:
            thread.join()
        front.close()
        for connection in (shared, own):
            connection.close()
        history.note("end")


def _obey(finish: threading.Event) -> None:
    if sys.stdin.readline() != "finish\n":
        os._exit(1)  # nobody is there any more
    finish.set()


if __name__ == "__main__":
    main(sys.argv[1])
