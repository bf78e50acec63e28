"""Two stores that a lock guards, each with its own way to reject a stale holder.

Each keeps, for every lock, a counter, and beside it a log of the writes that it accepted, written
in the same transaction as the data. A write says what it makes of the counter, having read it
before: a write that slipped in between shows in the log.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any, Protocol

from kazoo import exceptions
from kazoo.client import KazooClient

from zklock import Grant

ROOT = "/chaos"
BUSY_SECONDS = 1.0
ANSWER_SECONDS = 5.0

ACCEPTED, REFUSED, FAILED, UNKNOWN = "accepted", "refused", "failed", "unknown"
"""What becomes of a write; ``FAILED``: certainly not made, ``UNKNOWN``: there was no answer."""


class Store(Protocol):
    """What a holder asks of a store."""

    name: str

    def read(self, lock: str, grant: Grant) -> int | None:
        """Claim the store for this token where that is needed, and return the counter.

        ``None``: refused, or no answer.
        """

    def write(self, lock: str, grant: Grant, write: str, value: int) -> str:
        """Set the counter and log the write; return what became of it."""


class SqliteStore:
    """Compares tokens: a claim or write raises the fence, and one below it changes nothing.

    For the thread that made it. A database that another process keeps locked for ``BUSY_SECONDS``
    fails the write.
    """

    name = "sqlite"

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None)
        self._db.execute("PRAGMA synchronous = OFF")

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    @staticmethod
    def make(file: Path, locks: list[str]) -> None:
        """Make an empty store."""
        with sqlite3.connect(file) as db:
            db.executescript(
                """
                PRAGMA journal_mode = WAL;
                CREATE TABLE guarded (
                    lock TEXT PRIMARY KEY, fence TEXT NOT NULL DEFAULT '',
                    value INTEGER NOT NULL DEFAULT 0
                );
                CREATE TABLE writes (
                    number INTEGER PRIMARY KEY AUTOINCREMENT, lock TEXT NOT NULL,
                    name TEXT NOT NULL, token TEXT NOT NULL, value INTEGER NOT NULL
                );
                """
            )
            db.executemany("INSERT INTO guarded (lock) VALUES (?)", [(lock,) for lock in locks])
        db.close()

    def read(self, lock: str, grant: Grant) -> int | None:
        """Raise the fence to this token and return the counter, in one statement."""
        try:
            row = self._db.execute(
                "UPDATE guarded SET fence = :token WHERE lock = :lock AND fence <= :token "
                "RETURNING value",
                {"lock": lock, "token": str(grant.token)},
            ).fetchall()
        except sqlite3.OperationalError:
            return None
        return row[0][0] if row else None

    def write(self, lock: str, grant: Grant, write: str, value: int) -> str:
        """Set the counter unless the fence is higher than this token."""
        token = str(grant.token)
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return FAILED
        try:
            changed = self._db.execute(
                "UPDATE guarded SET fence = :token, value = :value "
                "WHERE lock = :lock AND fence <= :token",
                {"lock": lock, "token": token, "value": value},
            ).rowcount
            if not changed:
                self._db.execute("ROLLBACK")
                return REFUSED
            self._db.execute(
                "INSERT INTO writes (lock, name, token, value) VALUES (?, ?, ?, ?)",
                (lock, write, token, value),
            )
            self._db.execute("COMMIT")
        except sqlite3.OperationalError:
            self._db.execute("ROLLBACK")
            return FAILED
        return ACCEPTED

    def contents(self, lock: str) -> dict[str, Any]:
        """Return counter and log."""
        ((value,),) = self._db.execute("SELECT value FROM guarded WHERE lock = ?", (lock,))
        writes = self._db.execute(
            "SELECT name, token, value FROM writes WHERE lock = ? ORDER BY number", (lock,)
        ).fetchall()
        return {"value": value, "writes": writes}


class ZooKeeperStore:
    """Writes in a transaction that checks the holder's own znode: no claim, no comparison."""

    name = "zookeeper"

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    @staticmethod
    def make(client: KazooClient, locks: list[str]) -> None:
        """Make an empty store."""
        for lock in locks:
            client.ensure_path(_log(lock))
            client.set(_log(lock), b"0")

    def read(self, lock: str, grant: Grant) -> int | None:
        """Return the counter. A later write of this grant fails if the grant is over by then."""
        del grant  # the transaction looks at its node
        try:
            data, _ = self._client.get_async(_log(lock)).get(timeout=ANSWER_SECONDS)
        except (exceptions.KazooException, self._client.handler.timeout_exception):
            return None
        return int(data)

    def write(self, lock: str, grant: Grant, write: str, value: int) -> str:
        """Set the counter if the node of the grant exists."""
        transaction = self._client.transaction()
        transaction.check(grant.path, -1)
        transaction.set_data(_log(lock), str(value).encode())
        entry = json.dumps([write, str(grant.token), value]).encode()
        transaction.create(f"{_log(lock)}/{write}", entry)
        try:
            first, *_ = transaction.commit_async().get(timeout=ANSWER_SECONDS)
        except (exceptions.KazooException, self._client.handler.timeout_exception):
            return UNKNOWN
        if first is True:
            return ACCEPTED
        return REFUSED if isinstance(first, exceptions.NoNodeError) else FAILED

    def contents(self, lock: str) -> dict[str, Any]:
        """Return counter and log, in the order of ZooKeeper's transactions."""
        self._client.sync(_log(lock))
        value, _ = self._client.get(_log(lock))
        names = self._client.get_children(_log(lock))
        entries = []
        for begin in range(0, len(names), 500):
            asked = [
                self._client.get_async(f"{_log(lock)}/{name}")
                for name in names[begin : begin + 500]
            ]
            entries += [answer.get(timeout=ANSWER_SECONDS * 4) for answer in asked]
        entries.sort(key=lambda entry: entry[1].czxid)
        return {"value": int(value), "writes": [json.loads(data) for data, _ in entries]}


def _log(lock: str) -> str:
    return f"{ROOT}/written/{lock.rpartition('/')[2]}"
