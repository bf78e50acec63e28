#!/usr/bin/env bash
# The guess: as in every DB-API driver, a cursor of a DuckDB connection works in the connection's transaction: what it
#   writes is committed and rolled back with it, and it sees what the connection has written.
# Instead: `connection.cursor()` makes another connection to the same database. What it writes is committed at once and
#   stays after the rollback; it does not see the open transaction, and can have a conflict with it. A temporary table
#   is not there either.
# Why it matters: `with closing(connection.cursor())` is the habit of whoever comes from sqlite3 or psycopg. The token's
#   mark is checked and advanced in one transaction and the data is written in another one, so a refused or failed
#   transaction leaves its data behind. Call execute() on the connection that began.
# Seen: DuckDB 2.0.1, and sqlite3 of Python 3.11 beside it, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install duckdb==2.0.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 120 "$python" - "$dir/data" <<'PYTHON'
import sqlite3
import sys

import duckdb


def work(connection):
    """A transaction that writes by the connection and by its cursor, then fails; and what the cursor saw."""
    connection.execute("CREATE TABLE report (writer text)")
    connection.execute("BEGIN")
    connection.execute("INSERT INTO report VALUES ('connection')")
    cursor = connection.cursor()
    saw = cursor.execute("SELECT writer FROM report").fetchall()
    cursor.execute("INSERT INTO report VALUES ('cursor')")
    connection.execute("ROLLBACK")
    return saw, connection.execute("SELECT writer FROM report").fetchall()


def conflict(connection):
    connection.execute("CREATE TABLE fence (token int)")
    connection.execute("INSERT INTO fence VALUES (33)")
    connection.execute("BEGIN")
    connection.execute("UPDATE fence SET token = 34")
    try:
        connection.cursor().execute("UPDATE fence SET token = 34")
    except duckdb.TransactionException:
        return True
    return False


usual = work(sqlite3.connect(sys.argv[1] + ".sqlite", isolation_level=None))
duck = work(duckdb.connect(sys.argv[1] + ".duckdb"))
own = conflict(duckdb.connect(sys.argv[1] + "-2.duckdb"))
print("DuckDB", duckdb.__version__)
print("sqlite3: the cursor saw", usual[0], "and after the rollback there is", usual[1])
print("DuckDB: the cursor saw", duck[0], "and after the rollback there is", duck[1])
print("DuckDB: the cursor is in conflict with its own connection:", own)
expected = ([("connection",)], []), ([], [("cursor",)]), True
sys.exit(None if (usual, duck, own) == expected else "the behaviour has changed")
PYTHON
