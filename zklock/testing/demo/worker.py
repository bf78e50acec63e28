"""A worker process of the demo.

``python -m zklock.testing.demo.worker lock NAME HOSTS TIMEOUT PATH LEDGER`` acquires a lock, and
looks at ``held`` all the time. When it is told to go on, it writes into the ledger under its token,
although the lock may be lost: like a program that was paused between its last look and its write.
Then it releases the lock. ``… pool NAME HOSTS TIMEOUT PATH SHARDS`` works in a pool until it is
told to go on. Both talk by a connection of multiprocessing, which is their standard input. If that
ends, they end at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import sys
import threading
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zklock
from zklock._core.grant import GrantBase
from zklock._ground.clock import clock
from zklock.fencing.sql import SqlGuard
from zklock.token import FencingToken

_LOOK_SECONDS = 0.01
_CALLBACK_SECONDS = 10.0
_BUSY_SECONDS = 20.0


class Ledger:
    """A table in SQLite that only the newest token may write to; ``create`` makes it."""

    def __init__(self, file: Path) -> None:
        connect = partial(sqlite3.connect, file, timeout=_BUSY_SECONDS, isolation_level=None)
        self._connect, self._guard = connect, SqlGuard(connect, "ledger")

    def create(self) -> None:
        """Make the tables, in a new file."""
        with contextlib.closing(self._connect()) as database:
            database.execute("CREATE TABLE entry (token TEXT NOT NULL, worker TEXT NOT NULL)")
        self._guard.create_table()
        self._guard.create()

    def append(self, token: FencingToken, worker: str) -> None:
        """Append an entry; ``StaleToken`` if a newer token was seen."""
        entry = "INSERT INTO entry VALUES (?, ?)", (str(token), worker)
        self._guard.run(token, lambda database: database.execute(*entry))

    def entries(self) -> list[tuple[str, str]]:
        """Return the token and the worker of each entry, in the order of writing."""
        with contextlib.closing(self._connect()) as database:
            return database.execute("SELECT token, worker FROM entry ORDER BY rowid").fetchall()


class _Demo:
    """The process that has started this one; ``asked`` is set when it tells this one to go on."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._pipe: Connection[Any, Any] = Connection(os.dup(sys.stdin.fileno()))
        self._reporting = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def report(self, what: str, **told: Any) -> None:
        """Report something, with the time in seconds since boot."""
        with self._reporting:
            self._pipe.send({"what": what, "at": clock(), **told})

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, ConnectionResetError):
            self._pipe.recv()
            self.asked.set()
            self._pipe.recv()
        os._exit(os.EX_UNAVAILABLE)  # nobody is left to report to


def hold(name: str, hosts: str, timeout: str, path: str, file: str) -> None:
    """Take the lock for one turn."""
    demo, told = _Demo(), threading.Event()

    def lost(loss: zklock.Loss) -> None:
        demo.report("lost", reason=loss.reason.name)
        told.set()

    ledger = Ledger(Path(file))
    with zklock.connect(hosts, float(timeout)) as client:
        lock = zklock.Lock(client, path, identity=name, on_lost=lost)
        grant = lock.acquire()
        assert grant is not None
        demo.report("granted", token=str(grant.token))
        believed = at = clock()
        while grant.held:
            believed = at
            if demo.asked.wait(_LOOK_SECONDS):
                break
            at = clock()  # before the look: a process may be paused within it
        demo.report("looked", believed=believed, held=grant.held)
        demo.asked.wait()
        try:
            ledger.append(grant.token, name)
        except zklock.StaleToken as stale:
            demo.report("refused", highest=str(stale.highest))
        try:
            lock.release()
        except zklock.LockLost:
            told.wait(_CALLBACK_SECONDS)
        demo.report("over")


def share(name: str, hosts: str, timeout: str, path: str, shards: str) -> None:
    """Work in a pool until told to end."""
    demo = _Demo()

    def moved(what: str, shard: int, grant: GrantBase) -> None:
        demo.report(what, shard=shard, token=str(grant.token))

    with (
        zklock.connect(hosts, float(timeout)) as client,
        zklock.WorkerPool(
            client,
            path,
            shards=int(shards),
            identity=name,
            on_assigned=partial(moved, "assigned"),
            on_revoked=partial(moved, "revoked"),
        ),
    ):
        demo.asked.wait()
    demo.report("over")


if __name__ == "__main__":
    logging.disable()  # the demo tells what happens, in its order
    {"lock": hold, "pool": share}[sys.argv[1]](*sys.argv[2:])
