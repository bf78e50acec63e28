#!/usr/bin/env bash
# The guess: when `commit()` raises "database is locked", the transaction is over and nothing of it was written, as with
#   every other database. One does the work again.
# Instead: without a write-ahead log, it is the COMMIT that waits for the readers. When it gives up, the transaction is
#   still open with all that it has written. The second run of the work lands in the same transaction, and the next
#   `commit()` writes both. Until then nobody can begin to read either.
# Why it matters: one slow reader (a report, a backup, a cursor that was not read to its end) makes the retry put the
#   order, the payment or the job in twice, in one commit and without an error. Call `commit()` again, or `rollback()`
#   before the work is done again. `with connection:` rolls back.
# Seen: Python 3.11.7, 3.12.1 and 3.13.0, SQLite 3.40.1, aiosqlite 0.22.1, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install aiosqlite==0.22.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 100 "$python" - "$dir" <<'PYTHON'
import asyncio
import platform
import sqlite3
import sys
from importlib.metadata import version

import aiosqlite

INSERT = "INSERT INTO payment VALUES (1, 10)"


class Shop:
    """A database with a reader that has not read its rows to the end."""

    def __init__(self, name, wal=False):
        self.path = f"{sys.argv[1]}/{name}.db"
        admin = sqlite3.connect(self.path)
        if wal:
            admin.execute("PRAGMA journal_mode=WAL")
        admin.execute("CREATE TABLE payment (customer int, amount int)")
        admin.execute("CREATE TABLE customer AS SELECT 1 AS id UNION ALL SELECT 2")
        admin.commit()
        admin.close()
        self.reader = sqlite3.connect(self.path)
        self.report = self.reader.execute("SELECT * FROM customer")
        self.report.fetchone()

    def second_reader(self):
        try:
            return sqlite3.connect(self.path, timeout=0.2).execute("SELECT count(*) FROM payment").fetchone()[0]
        except sqlite3.OperationalError as error:
            return str(error)

    def ends(self):
        self.report.fetchall()

    def payments(self):
        return sqlite3.connect(self.path).execute("SELECT count(*) FROM payment").fetchone()[0]


def plain(shop, attempt=lambda connection, work: work()):
    """Do the work, and once more after an error; what another reader met in between, and the number of payments."""
    connection = sqlite3.connect(shop.path, timeout=0.5)

    def work():
        connection.execute(INSERT)
        connection.commit()

    try:
        attempt(connection, work)
        met = "no error"
    except sqlite3.OperationalError:
        met = shop.second_reader()
        shop.ends()
        attempt(connection, work)
    return met, shop.payments()


def in_with(connection, _work):
    with connection:
        connection.execute(INSERT)


def rolled_back(connection, work):
    connection.rollback()
    work()


async def with_aiosqlite(shop):
    async with aiosqlite.connect(shop.path, timeout=0.5) as connection:

        async def work():
            await connection.execute(INSERT)
            await connection.commit()

        met = "no error"
        try:
            await work()
        except sqlite3.OperationalError:
            met = shop.second_reader()
            shop.ends()
            await work()
        return met, shop.payments()


print("Python", platform.python_version(), "SQLite", sqlite3.sqlite_version, end=" ")
print("aiosqlite", version("aiosqlite"))
seen = {
    "commit() raises, the work is done again": plain(Shop("plain")),
    "the same by aiosqlite": asyncio.run(with_aiosqlite(Shop("aiosqlite"))),
    "rollback() before each try": plain(Shop("rollback"), rolled_back),
    "`with connection:`": plain(Shop("with"), in_with),
    "with a write-ahead log": plain(Shop("wal", wal=True)),
}
for what, (met, payments) in seen.items():
    print(f"{what}: another reader meets {met!r}, payments in the end: {payments}")
locked = "database is locked"
expected = [(locked, 2), (locked, 2), (locked, 1), (0, 1), ("no error", 1)]
sys.exit(None if list(seen.values()) == expected else "the behaviour has changed")
PYTHON
