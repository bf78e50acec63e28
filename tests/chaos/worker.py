"""A worker process of threads, or of tasks, that acquire, write, release, give up, and crash.

What it notes, besides ``at``; ``node`` is the full path of a grant's znode and names the grant:

- ``begin``, ``end``: of the process; ``crash``: it is about to end itself;
- ``ask`` (``ask``, ``lock``, ``timeout``): about to acquire; then ``answer`` (``ask``,
  ``outcome``: none, cancelled, closed, refused) or ``grant`` (``ask``, ``lock``, ``node``,
  ``token``, ``session``, ``began``). For a lock that is kept, both say ``keep``; a grant on a znode
  that was kept has a ``use``, which names it with ``node``, here and in what follows;
- ``held`` (``node``): ``held`` was true, looked at *after* this time; ``unheld``: it was false,
  looked at *before* this time;
- ``queue`` (``node``, ``lock``, ``epoch``, ``standing``): the numbers of those who stood in the
  queue at some moment after this time, the holder having been confirmed by a quorum afterwards;
- ``write`` (``node``, ``store``, ``lock``, ``write``, ``token``, ``value``): about to write; then
  ``written`` (``write``, ``outcome``);
- ``release`` (``node``, ``how``): about to; then ``released`` (``node``, ``outcome``: done, lost,
  closed);
- ``lost`` (``node``, ``reason``, ``noticed``, ``lease_end``): the callback was called;
- ``close``: about to stop a client; ``error`` (``what``): anything undocumented.

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
from dataclasses import asdict, dataclass, fields
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
            while self._client is None:
                with contextlib.suppress(zklock.NoAnswer):
                    self._client = zklock.connect(
                        self._settings.hosts,
                        self._settings.session_timeout,
                        start_timeout=5.0,
                    )
            return self._client

    def close(self) -> None:
        """Stop the client."""
        with self._guard:
            client, self._client = self._client, None
        if client is not None:
            self._history.note("close")
            client.stop()
            client.close()


class Actor:
    """The part of one thread, or of one task; its stores and its pauses are off the loop."""

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        history: History,
        connection: Connection,
        finish: threading.Event,
        front: Threads | Loop,
        *,
        alone: bool,
    ) -> None:
        self._front = front
        self._name = name
        self._settings = settings
        self._history = history
        self._connection = connection
        self._finish = finish
        self._alone = alone
        self._asks = itertools.count(1)
        self._writes = itertools.count(1)

    def run(self) -> None:
        """Take turns until told to finish, and a last one then."""
        self._sqlite = stores.SqliteStore(Path(self._settings.folder) / "store.sqlite")
        seed = f"{self._settings.seed}/{self._name}"
        turns = plan.turns(
            seed,
            len(self._settings.locks),
            self._settings.session_timeout,
            may_close=self._alone,
            favourite=self._settings.favourite,
            spared=self._settings.spared,
        )
        for turn in turns:
            if self._finish.is_set():
                break
            with self._watched():
                self._take(turn)
            self._finish.wait(turn.pause)
        last = Turn(turn.lock, self._settings.final, None, (Step.SQLITE,), 0, Ending.RELEASE, 0)
        with self._watched():
            self._take(last)
        self._sqlite.close()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._history.note("error", what=traceback.format_exc())
            time.sleep(0.1)

    def _take(self, turn: Turn) -> None:
        path = self._settings.locks[turn.lock]
        client = self._connection.get()
        ask = f"{self._name}-{next(self._asks)}"
        make = self._front.LeaderElection if is_election(path) else self._front.Lock
        keeps = self._settings.favourite is not None and not is_election(path)
        keep = {"keep": turn.keep} if keeps else {}
        name = {} if keeps else {"identity": ask}  # only locks of one name share what is kept
        lock = make(client, path, on_lost=self._lost, **keep, **name)
        cancelling = None
        if turn.cancel_after is not None:
            cancelling = threading.Timer(turn.cancel_after, lock.cancel)
            cancelling.start()
        self._history.note("ask", ask=ask, lock=path, timeout=turn.timeout, **keep)
        try:
            grant = lock.acquire(timeout=turn.timeout)
        except zklock.AcquireCancelled:
            self._history.note("answer", ask=ask, outcome="cancelled")
            return
        except zklock.ClientClosed:
            self._history.note("answer", ask=ask, outcome="closed")
            return
        finally:
            if cancelling is not None:
                cancelling.cancel()
        if grant is None:
            self._history.note("answer", ask=ask, outcome="none")
            return
        self._history.note(
            "grant",
            ask=ask,
            lock=path,
            token=str(grant.token),
            session=grant.session_id,
            began=grant.began,
            **named(grant),
            **keep,
        )
        self._work(turn, lock, grant, client)
        self._end(turn, lock, grant)

    def _lost(self, loss: zklock.Loss) -> None:
        self._history.note(
            "lost",
            **named(loss.grant),
            reason=loss.reason.name,
            noticed=loss.noticed,
            lease_end=loss.lease_end,
        )

    def _look(self, grant: Any) -> bool:
        before = clock()
        if grant.held:
            self._history.note("held", at=before, **named(grant))
            return True
        self._history.note("unheld", **named(grant))
        return False

    def _work(self, turn: Turn, lock: Any, grant: Any, client: KazooClient) -> None:
        zookeeper = stores.ZooKeeperStore(client)
        kept: dict[Step, stores.Store] = {
            Step.SQLITE: self._sqlite,
            Step.ZOOKEEPER: zookeeper,
            Step.GUARDED: stores.GuardedStore(client),
        }
        for step in turn.steps:
            if self._finish.is_set() and turn.timeout != self._settings.final:
                break
            held = self._look(grant)
            if step is Step.CHECK:
                self._check(grant)
            elif step is Step.QUEUE:
                self._list(lock, grant)
            else:
                # Also after the loss: a late write is what the stores are there for.
                self._write(kept[step], grant)
            until = clock() + turn.rest
            while held and clock() < until and not self._finish.is_set():
                time.sleep(min(LOOK_SECONDS, turn.rest))
                held = self._look(grant)
            if not held:
                for store in kept.values():
                    self._write(store, grant)
                break

    def _check(self, grant: Any) -> None:
        before = clock()
        try:
            grant.check()
        except zklock.LockLost:
            self._history.note("unheld", **named(grant))
        else:
            self._history.note("held", at=before, **named(grant))

    def _list(self, lock: Any, grant: Any) -> None:
        before = clock()
        try:
            standing = lock.members() if is_election(lock.path) else lock.contenders()
            grant.verify()
        except (zklock.NoAnswer, zklock.LockLost, zklock.ClientClosed):
            return
        self._history.note(
            "queue",
            at=before,
            **named(grant),
            lock=lock.path,
            epoch=grant.token.epoch,
            standing=[one.sequence for one in standing],
        )

    def _write(self, store: stores.Store, grant: Any) -> None:
        value = store.read(grant.lock_path, grant)
        if value is None:
            return
        write = f"{self._name}-w{next(self._writes)}"
        self._history.note(
            "write",
            **named(grant),
            store=store.name,
            lock=grant.lock_path,
            write=write,
            token=str(grant.token),
            value=value + 1,
        )
        outcome = store.write(grant.lock_path, grant, write, value + 1)
        self._history.note("written", write=write, outcome=outcome)

    def _end(self, turn: Turn, lock: Any, grant: Any) -> None:
        self._look(grant)
        if turn.ending is Ending.CRASH:
            self._history.note("crash")
            os._exit(CRASH_CODE)
        if turn.ending is Ending.CLOSE:
            self._connection.close()
        how = "abandon" if turn.ending is Ending.ABANDON else "release"
        self._history.note("release", **named(grant), how=how)
        outcome = "done"
        try:
            if how == "abandon":
                grant.abandon()
            else:
                (grant if is_election(lock.path) else lock).release()
        except zklock.LockLost:
            outcome = "lost"
        self._history.note("released", **named(grant), outcome=outcome)


def main(argument: str) -> None:
    """Run a worker until it is told to finish."""
    settings = WorkerSettings(**json.loads(argument))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(format="%(asctime)s %(threadName)s %(levelname)s %(message)s")
    logging.getLogger("zklock").setLevel(logging.INFO)
    finish = threading.Event()
    with (
        History(Path(settings.folder), settings.name) as history,
        timed_grants(),
    ):
        history.note("begin", pid=os.getpid())
        front = {each.name: each for each in FRONTS}[settings.front]()
        shared, own = (Connection(settings, history) for _ in range(2))
        actors = []
        for number in range(settings.actors):
            alone = number == settings.actors - 1
            name = f"{settings.name}.{number}"
            connection = own if alone else shared
            actor = Actor(name, settings, history, connection, finish, front, alone=alone)
            actors.append(threading.Thread(target=actor.run, name=name))
        for thread in actors:
            thread.start()
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
