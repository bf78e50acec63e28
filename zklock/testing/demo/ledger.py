"""The resource that the demo's lock protects: a ledger in SQLite that enforces tokens.

The writers number the entries. Each reads the newest number, works, and appends the next one. Two
holders at once would get this read-modify-write wrong. Only the token guards it: the numbers are
not declared unique.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zklock.errors import StaleToken
from zklock.token import FencingToken

_TABLES = """
CREATE TABLE fence (resource TEXT NOT NULL PRIMARY KEY, token TEXT NOT NULL);
CREATE TABLE entry (number INTEGER NOT NULL, token TEXT NOT NULL, worker TEXT NOT NULL);
"""

# Accepts a token that is at least as high as any seen before, and stores it, in one statement.
_ADVANCE = """
INSERT INTO fence (resource, token) VALUES ('ledger', ?)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE token <= excluded.token
"""

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

    def create(self) -> None:
        """Make the tables, in a new file."""
        with self._open() as database:
            database.executescript(_TABLES)

    def claim(self, token: FencingToken) -> int:
        """Shut out every older token from now on; return the newest number, 0 if there is none.

        ``StaleToken`` if a newer token was seen.
        """
        with self._transaction(token) as database:
            (newest,) = database.execute("SELECT coalesce(max(number), 0) FROM entry").fetchone()
            return int(newest)

    def append(self, token: FencingToken, number: int, worker: str) -> None:
        """Append an entry; ``StaleToken`` if a newer token was seen."""
        with self._transaction(token) as database:
            database.execute("INSERT INTO entry VALUES (?, ?, ?)", (number, str(token), worker))

    def entries(self) -> list[Entry]:
        """Return all entries, in the order in which they were written."""
        with self._open() as database:
            rows = database.execute("SELECT number, token, worker FROM entry ORDER BY rowid")
            return [Entry(number, FencingToken.parse(text), who) for number, text, who in rows]

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        with contextlib.closing(database):
            yield database

    @contextlib.contextmanager
    def _transaction(self, token: FencingToken) -> Iterator[sqlite3.Connection]:
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")  # an error closes, and so rolls back
            if database.execute(_ADVANCE, (str(token),)).rowcount != 1:
                (seen,) = database.execute("SELECT token FROM fence").fetchone()
                raise StaleToken(
                    f"the ledger has seen token {seen} and refuses the older {token}",
                    resource="ledger",
                    token=token,
                    highest=FencingToken.parse(seen),
                )
            yield database
            database.execute("COMMIT")
