#!/usr/bin/env bash
# The guess: a task that is cancelled in `await db.execute("INSERT …")` has not written, and what it began is undone.
# Instead: the statement is already in the queue of aiosqlite's thread. It runs after the cancellation, in a
#   transaction that nobody ends, until the next task on that connection commits it together with its own work.
# Why it matters: cancelling the task is how asyncio code reacts to a lost lock; the stale holder's write still
#   lands, under the name of the one who came after. Roll back, on that connection, when a task was cancelled.
# Seen: aiosqlite 0.22.1, 2026-11-27.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install aiosqlite==0.22.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 60 "$python" - "$dir/data.db" <<'PYTHON'
import asyncio
import sqlite3
import sys
import threading

import aiosqlite

print("aiosqlite", aiosqlite.__version__, "SQLite", sqlite3.sqlite_version)
rows = "SELECT written_by FROM work"


async def main():
    at_work, go_on = threading.Event(), threading.Event()

    def long_query():
        at_work.set()
        go_on.wait(30)

    async with aiosqlite.connect(sys.argv[1]) as db:
        await db.execute("CREATE TABLE work (written_by text)")
        await db.create_function("long_query", 0, long_query)
        report = asyncio.create_task(db.execute_fetchall("SELECT long_query()"))
        await asyncio.to_thread(at_work.wait)

        stale = asyncio.create_task(db.execute("INSERT INTO work VALUES ('stale holder')"))
        await asyncio.sleep(0)
        stale.cancel()
        try:
            await stale
        except asyncio.CancelledError:
            print("the stale holder's task is cancelled; it has returned")
        go_on.set()
        await report

        after = await db.execute_fetchall(rows)
        print("afterwards:", after, "transaction open:", db.in_transaction)
        await db.execute("INSERT INTO work VALUES ('new holder')")
        await db.commit()
    return after


after = asyncio.run(main())
committed = sqlite3.connect(sys.argv[1]).execute(rows).fetchall()
print("after the new holder's commit:", committed)
expected = after == [("stale holder",)] and committed == [("stale holder",), ("new holder",)]
sys.exit(None if expected else "the behaviour has changed")
PYTHON
