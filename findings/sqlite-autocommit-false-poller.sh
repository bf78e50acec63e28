#!/usr/bin/env bash
# The guess: a worker that looks for new jobs by SELECT in a loop sees them, in whatever mode Python's sqlite3 is. So
#   nothing speaks against `autocommit=False`, the mode that the documentation has recommended since Python 3.12.
# Instead: in that mode each SELECT leaves a transaction open, and the connection sees the file as it was at the first
#   one, for ever. Its own UPDATE is then refused at once, whatever the `timeout`. With the write-ahead log its look
#   keeps the log from being emptied, and without it the producers' commits fail. The old mode does none of this.
# Why it matters: an idle worker is blind, makes the log grow with each write of others, or stops all who write, and no
#   error is raised where the fault is. Call `rollback()` or `commit()` after each look, or use `autocommit=True` and
#   BEGIN IMMEDIATE.
# Seen: Python 3.12.1 and 3.13.0 with SQLite 3.40.1, 2026-11-30. Needs Python 3.12 or later (python3.13 or python3.12).
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python=
for name in python3 python3.13 python3.12; do
  if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then python=$name; break; fi
done
[ "$python" ] || { echo "this finding needs Python 3.12 or later" >&2; exit 69; }

timeout 60 "$python" - "$dir/jobs" <<'PYTHON'
import os
import sqlite3
import sys

print("Python", sys.version.split()[0], "SQLite", sqlite3.sqlite_version)
LOOK = "SELECT count(*) FROM job WHERE state = 'new'"


def play(journal, **mode):
    """What a worker sees of a first job, whether it can take it, the log's growth by others, and if they can write."""
    path = f"{sys.argv[1]}-{journal}-{mode}"
    producer = sqlite3.connect(path, autocommit=True, timeout=0.2)
    producer.execute(f"PRAGMA journal_mode={journal}")
    producer.execute("PRAGMA synchronous=OFF")
    producer.execute("CREATE TABLE job (id INTEGER PRIMARY KEY, state TEXT)")
    worker = sqlite3.connect(path, timeout=60, **mode)
    worker.execute(LOOK).fetchall()
    try:
        producer.execute("INSERT INTO job (state) VALUES ('new')")
    except sqlite3.OperationalError as error:
        return error.sqlite_errorname
    seen = [worker.execute(LOOK).fetchone()[0] for _ in range(3)]
    try:
        taken = worker.execute("UPDATE job SET state = 'taken'").rowcount
        worker.commit()
    except sqlite3.OperationalError as error:
        taken = error.sqlite_errorname
    grown = 0
    for _ in range(3000):
        producer.execute("INSERT INTO job (state) VALUES ('new')")
    if journal == "WAL":
        grown = os.path.getsize(f"{path}-wal") > 3000 * 4096
    worker.rollback()
    after = worker.execute(LOOK).fetchone()[0]
    return seen, taken, grown, after


old = play("WAL"), play("DELETE")
recommended = play("WAL", autocommit=False), play("DELETE", autocommit=False)
print("jobs seen in three looks, jobs taken, whether the log grows without end, jobs seen after rollback()")
print("  the old mode:", *old)
print("  autocommit=False:", *recommended)
expected = ([0, 0, 0], "SQLITE_BUSY_SNAPSHOT", True, 3001), "SQLITE_BUSY"
followed = recommended == expected and old == (([1, 1, 1], 1, False, 3000), ([1, 1, 1], 1, 0, 3000))
sys.exit(None if followed else "the behaviour has changed")
PYTHON
