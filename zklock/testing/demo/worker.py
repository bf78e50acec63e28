"""A worker process of the demo.

``python -m zklock.testing.demo.worker lock NAME HOSTS TIMEOUT PATH LEDGER`` acquires a lock, and
looks at ``held`` all the time. When it reads a line on its standard input, it writes into the
ledger under its token, although the lock may be lost: like a program that was paused between its
last look and its write. Then it releases the lock. ``… pool NAME HOSTS TIMEOUT PATH SHARDS`` works
in a pool until it reads a line. Both report on their standard output, one JSON object a line. If
their input ends, they end at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import sys
import threading
from functools import partial
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
_reporting = threading.Lock()


class Ledger:
    """A table in SQLite that only the newest token may write to; ``create`` makes it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._guard = SqlGuard(self._connect, "ledger")

    def create(self) -> None:
        """Make the tables, in a new file."""
        with contextlib.closing(self._connect()) as database:
            database.execute("CREATE TABLE entry (token TEXT NOT NULL, worker TEXT NOT NULL)")
        self._guard.create_table()
        self._guard.create()

    def append(self, token: FencingToken, worker: str) -> None:
        """Append an entry; ``StaleToken`` if a newer token was seen."""

        def insert(database: sqlite3.Connection) -> None:
            database.execute("INSERT INTO entry VALUES (?, ?)", (str(token), worker))

        self._guard.run(token, insert)

    def entries(self) -> list[tuple[str, str]]:
        """Return the token and the worker of each entry, in the order of writing."""
        with contextlib.closing(self._connect()) as database:
            return database.execute("SELECT token, worker FROM entry ORDER BY rowid").fetchall()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=_BUSY_SECONDS, isolation_level=None)


def report(what: str, *, at: float | None = None, **told: Any) -> None:
    """Report something to the process that reads: ``at`` is in seconds since boot, or now."""
    line = json.dumps({"what": what, "at": clock() if at is None else at, **told})
    with _reporting:
        print(line, flush=True)


def hold(name: str, hosts: str, timeout: str, path: str, file: str) -> None:
    """Take the lock for one turn."""
    asked, told = threading.Event(), threading.Event()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()

    def lost(loss: zklock.Loss) -> None:
        report("lost", reason=loss.reason.name)
        told.set()

    ledger = Ledger(Path(file))
    with zklock.connect(hosts, float(timeout)) as client:
        lock = zklock.Lock(client, path, identity=name, on_lost=lost)
        grant = lock.acquire()
        assert grant is not None
        report("granted", token=str(grant.token))
        believed = _look_until(asked, grant)
        report("looked", believed=believed, held=grant.held)
        asked.wait()
        try:
            ledger.append(grant.token, name)
        except zklock.StaleToken as stale:
            report("refused", highest=str(stale.highest))
        try:
            lock.release()
        except zklock.LockLost:
            told.wait(_CALLBACK_SECONDS)
        report("over")


def _look_until(asked: threading.Event, grant: zklock.Grant) -> float:
    """Look until the lock is lost, or a write is asked for; return when it was last held."""
    believed = clock()
    while True:
        at = clock()  # before the look: a process may be paused within it
        if not grant.held:
            return believed
        believed = at
        if asked.wait(_LOOK_SECONDS):
            return believed


def share(name: str, hosts: str, timeout: str, path: str, shards: str) -> None:
    """Work in a pool until told to end."""

    def moved(what: str, shard: int, grant: GrantBase) -> None:
        report(what, shard=shard, token=str(grant.token))

    asked = threading.Event()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
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
        asked.wait()
    report("over")


def _listen(asked: threading.Event) -> None:
    if sys.stdin.readline():
        asked.set()
    sys.stdin.read()
    os._exit(os.EX_UNAVAILABLE)  # nobody is left to report to


if __name__ == "__main__":
    logging.disable()  # the demo tells what happens, in its order
    {"lock": hold, "pool": share}[sys.argv[1]](*sys.argv[2:])
