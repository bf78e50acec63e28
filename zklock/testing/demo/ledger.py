"""The resource that the demo's lock protects: a ledger in SQLite, behind a guard.

The writers number the entries. Each reads the newest number, works, and appends the next one. Two
holders at once would get this read-modify-write wrong. Only the token guards it: the numbers are
not declared unique.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from zklock.fencing.sql import SqlGuard
from zklock.token import FencingToken

_BUSY_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger."""

    number: int
    token: FencingToken
    worker: str


class Ledger:
    """A ledger in the file ``path``; ``create`` makes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = SqlGuard(self._connect, "ledger")

    def create(self) -> None:
        """Make the tables, in a new file."""
        with contextlib.closing(self._connect()) as database:
            database.execute(
                "CREATE TABLE entry"
                " (number INTEGER NOT NULL, token TEXT NOT NULL, worker TEXT NOT NULL)"
            )
        self._guard.create_table()
        self._guard.create()

    def claim(self, token: FencingToken) -> int:
        """Shut out every older token from now on; return the newest number, 0 if there is none.

        ``StaleToken`` if a newer token was seen.
        """

        def newest(database: sqlite3.Connection) -> int:
            (number,) = database.execute("SELECT coalesce(max(number), 0) FROM entry").fetchone()
            return int(number)

        return self._guard.run(token, newest)

    def append(self, token: FencingToken, number: int, worker: str) -> None:
        """Append an entry; ``StaleToken`` if a newer token was seen."""

        def insert(database: sqlite3.Connection) -> None:
            database.execute("INSERT INTO entry VALUES (?, ?, ?)", (number, str(token), worker))

        self._guard.run(token, insert)

    def entries(self) -> list[Entry]:
        """Return all entries, in the order in which they were written."""
        with contextlib.closing(self._connect()) as database:
            rows = database.execute("SELECT number, token, worker FROM entry ORDER BY rowid")
            return [Entry(number, FencingToken.parse(text), who) for number, text, who in rows]

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
