"""Three stores that a lock guards, each with its own way to reject a stale holder.

Each keeps, for every lock, a counter, and beside it a log of the writes that it accepted, written
in the same transaction as the data. A write says what it makes of the counter, having read it
before: a write that slipped in between shows in the log. Workers of an earlier release use these
classes, too.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kazoo import exceptions
from kazoo.client import KazooClient

from zklock import ClientClosed, NoAnswer, OutcomeUnknown, StaleToken
from zklock.fencing import SqlGuard, ZooKeeperGuard

ROOT = "/chaos"
ELECTIONS = f"{ROOT}/elections"
BUSY_SECONDS = 1.0
ANSWER_SECONDS = 5.0

ACCEPTED, REFUSED, FAILED, UNKNOWN = "accepted", "refused", "failed", "unknown"
"""What becomes of a write; ``FAILED``: certainly not made, ``UNKNOWN``: there was no answer."""


UNANSWERED = (NoAnswer, OutcomeUnknown, ClientClosed)
"""What a guard of znodes raises if it was not told what has become of a request."""


class SqliteStore:
    """``SqlGuard``: a claim or write raises the mark, and one below it changes nothing.

    For the thread that made it. A database that another process keeps locked for ``busy`` seconds
    fails the write.
    """

    name = "sqlite"

    def __init__(self, file: Path, busy: float = BUSY_SECONDS) -> None:
        self._db = sqlite3.connect(file, timeout=busy, isolation_level=None)
        self._db.execute("PRAGMA synchronous = OFF")

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    @classmethod
    def make(cls, file: Path, locks: list[str]) -> None:
        """Make an empty store."""
        with contextlib.closing(cls(file)) as store:
            store._db.executescript(
                """
                PRAGMA journal_mode = WAL;
                CREATE TABLE guarded (lock TEXT PRIMARY KEY, value INTEGER NOT NULL DEFAULT 0);
                CREATE TABLE writes (
                    number INTEGER PRIMARY KEY AUTOINCREMENT, lock TEXT NOT NULL,
                    name TEXT NOT NULL, token TEXT NOT NULL, value INTEGER NOT NULL
                );
                """
            )
            rows = [(lock,) for lock in locks]
            store._db.executemany("INSERT INTO guarded (lock) VALUES (?)", rows)
        for number, lock in enumerate(locks):
            guard = SqlGuard(lambda: cls(file)._db, lock)
            if not number:
                guard.create_table()
            guard.create()

    def read(self, lock: str, grant: Any) -> int | None:
        """Claim the mark and return the counter, in one transaction; ``None``: refused."""
        try:
            with self._advanced(lock, grant):
                return self._value(lock)
        except (StaleToken, sqlite3.OperationalError):
            return None

    def write(self, lock: str, grant: Any, write: str, value: int) -> str:
        """Set the counter unless the mark is higher than this token."""
        try:
            with self._advanced(lock, grant):
                self._db.execute("UPDATE guarded SET value = ? WHERE lock = ?", (value, lock))
                self._db.execute(
                    "INSERT INTO writes (lock, name, token, value) VALUES (?, ?, ?, ?)",
                    (lock, write, str(grant.token), value),
                )
        except StaleToken:
            return REFUSED
        except sqlite3.OperationalError:
            return FAILED
        return ACCEPTED

    def locks(self) -> list[str]:
        """Return what has a counter here."""
        return [lock for (lock,) in self._db.execute("SELECT lock FROM guarded ORDER BY lock")]

    def contents(self, lock: str) -> dict[str, Any]:
        """Return counter and log."""
        columns = "SELECT name, token, value FROM writes WHERE lock = ? ORDER BY number"
        writes = self._db.execute(columns, (lock,)).fetchall()
        return {"value": self._value(lock), "writes": writes}

    def _value(self, lock: str) -> int:
        ((value,),) = self._db.execute("SELECT value FROM guarded WHERE lock = ?", (lock,))
        return int(value)

    @contextlib.contextmanager
    def _advanced(self, lock: str, grant: Any) -> Iterator[None]:
        """Advance the mark, and commit what the body changes with it."""
        guard = SqlGuard(lambda: self._db, lock)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            with guard.advance(self._db, grant.token):
                yield
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise


class ZooKeeperStore:
    """Writes in a transaction that checks the holder's own znode: no claim, no comparison."""

    name = "zookeeper"
    kept = "written"

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    def make(self, lock: str) -> None:
        """Make an empty store."""
        self._client.ensure_path(self._log(lock))
        self._client.set(self._log(lock), b"0")

    def read(self, lock: str, grant: Any) -> int | None:
        """Return the counter. A later write of this grant fails if the grant is over by then."""
        del grant  # the transaction looks at its node
        try:
            data, _ = self._client.get_async(self._log(lock)).get(timeout=ANSWER_SECONDS)
        except (exceptions.KazooException, self._client.handler.timeout_exception):
            return None
        return int(data)

    def write(self, lock: str, grant: Any, write: str, value: int) -> str:
        """Set the counter if the node of the grant exists."""
        transaction = self._client.transaction()
        transaction.check(grant.path, -1)
        self._add(transaction, lock, grant, write, value)
        try:
            first, *_ = transaction.commit_async().get(timeout=ANSWER_SECONDS)
        except (exceptions.KazooException, self._client.handler.timeout_exception):
            return UNKNOWN
        if first is True:
            return ACCEPTED
        return REFUSED if isinstance(first, exceptions.NoNodeError) else FAILED

    def _add(self, transaction: Any, lock: str, grant: Any, write: str, value: int) -> None:
        transaction.set_data(self._log(lock), str(value).encode())
        entry = json.dumps([write, str(grant.token), value]).encode()
        transaction.create(f"{self._log(lock)}/{write}", entry)

    @classmethod
    def agreed(cls, clients: Sequence[KazooClient], lock: str) -> tuple[dict[str, Any], int]:
        """Return counter and log as most servers have them, in the order of transactions.

        Return as well how many entries some server lacks. Each client is connected to one. One that
        was restarted while it caught up may have lost a creation that the others have
        (ZOOKEEPER-3911, -4646, -4785, -5010).
        """
        servers = [cls(client)._contents(lock) for client in clients]
        ((value, _),) = Counter(value for value, _ in servers).most_common(1)
        known = Counter(entry for _, entries in servers for entry in entries)
        agreed = sorted(entry for entry, many in known.items() if many * 2 > len(servers))
        lacking = sum(many < len(servers) for many in known.values())
        return {"value": value, "writes": [json.loads(data) for _, data in agreed]}, lacking

    def _contents(self, lock: str) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the counter, and each entry with its transaction, as this server has them."""
        self._client.sync(self._log(lock))
        value, _ = self._client.get(self._log(lock))
        names = self._client.get_children(self._log(lock))
        entries = []
        for begin in range(0, len(names), 500):
            paths = [f"{self._log(lock)}/{name}" for name in names[begin : begin + 500]]
            asked = [self._client.get_async(path) for path in paths]
            entries += [answer.get(timeout=ANSWER_SECONDS * 4) for answer in asked]
        return int(value), [(stat.czxid, data) for data, stat in entries]

    def _log(self, lock: str) -> str:
        return f"{ROOT}/{self.kept}/{lock.rpartition('/')[2]}"


Store: TypeAlias = SqliteStore | ZooKeeperStore


class GuardedStore(ZooKeeperStore):
    """``ZooKeeperGuard`` compares tokens, whatever has become of the holder's znode."""

    name = "zookeeper guard"
    kept = "guarded"

    def make(self, lock: str) -> None:
        """Make an empty store."""
        super().make(lock)
        self._guard(lock).create()

    def read(self, lock: str, grant: Any) -> int | None:
        """Claim the mark, then return the counter."""
        try:
            self._guard(lock).claim(grant.token)
        except (StaleToken, *UNANSWERED):
            return None
        return super().read(lock, grant)

    def write(self, lock: str, grant: Any, write: str, value: int) -> str:
        """Set the counter unless the mark is higher than this token."""
        transaction = self._guard(lock).transaction(grant.token)
        self._add(transaction, lock, grant, write, value)
        try:
            transaction.commit()
        except StaleToken:
            return REFUSED
        except UNANSWERED:
            return UNKNOWN
        return ACCEPTED

    def _guard(self, lock: str) -> ZooKeeperGuard:
        mark = f"{ROOT}/marks/{lock.rpartition('/')[2]}"
        return ZooKeeperGuard(self._client, mark, timeout=ANSWER_SECONDS)
