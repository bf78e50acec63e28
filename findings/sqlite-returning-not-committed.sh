#!/usr/bin/env bash
# The guess: in autocommit mode (isolation_level=None) a statement is committed when execute() has returned. So `for
#   row in db.execute("UPDATE … SET state = 'taken' … RETURNING id")` first takes the jobs, then hands them out.
# Instead: all rows are changed at once, but committed when the last row has been fetched, or the cursor is closed.
#   Until then the loop holds the write lock of the whole file: others get "database is locked" and see no job taken,
#   and in_transaction says False. If the process dies in the loop, all its jobs are new again, those it has done,
#   too.
# Why it matters: a claim, a lease or a fencing token that was handed out was never written; the work is done twice.
#   Use fetchall(), or a transaction that is committed before the work begins.
# Seen: pysqlite3-binary 0.5.4.post2 (Python's sqlite3 behaves alike), 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install pysqlite3-binary==0.5.4.post2 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 60 "$python" - "$dir/jobs" <<'PYTHON'
import os
import signal
import subprocess
import sys
from importlib.metadata import version

import pysqlite3

print("pysqlite3-binary", version("pysqlite3-binary"), "SQLite", pysqlite3.sqlite_version)
WORKER = """
import sys
import pysqlite3
jobs = pysqlite3.connect(sys.argv[1], isolation_level=None)
taken = jobs.execute("UPDATE jobs SET state = 'taken' WHERE state = 'new' RETURNING id")
for (job,) in taken.fetchall() if sys.argv[2] == "fetchall()" else taken:
    print(job, jobs.in_transaction, flush=True)
    sys.stdin.readline()
"""


def new(jobs):
    return jobs.execute("SELECT count(*) FROM jobs WHERE state = 'new'").fetchone()[0]


def killed_at_the_second(how):
    """What another sees and may do while a worker does its second job; and how many jobs are new when it was killed."""
    path = f"{sys.argv[1]}-{how}"
    jobs = pysqlite3.connect(path, isolation_level=None, timeout=0.5)
    jobs.execute("PRAGMA journal_mode = WAL")
    jobs.execute("CREATE TABLE jobs (id integer PRIMARY KEY, state text DEFAULT 'new')")
    jobs.execute("INSERT INTO jobs (id) VALUES (1), (2), (3)")
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, path, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    said = [worker.stdout.readline().strip()]
    worker.stdin.write("\n")
    worker.stdin.flush()
    said.append(worker.stdout.readline().strip())
    during = new(jobs)
    try:
        jobs.execute("INSERT INTO jobs (id, state) VALUES (4, 'other')")
        write = "done"
    except pysqlite3.OperationalError as error:
        write = str(error)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    print(f"{how}: job, in_transaction: {said}; new meanwhile: {during}, another write: {write}; new now: {new(jobs)}")
    return said, during, write, new(jobs)


loop, first = killed_at_the_second("the loop"), killed_at_the_second("fetchall()")
said = ["1 False", "2 False"]
expected = (said, 3, "database is locked", 3), (said, 0, "done", 0)
sys.exit(None if (loop, first) == expected else "the behaviour has changed")
PYTHON
