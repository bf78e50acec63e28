#!/usr/bin/env bash
# The guess: after BEGIN IMMEDIATE no other process writes to a SQLite database until COMMIT. Reading the file
#   meanwhile, as a backup, a checksum or an upload does, changes nothing.
# Instead: SQLite's locks are POSIX locks, and those belong to the process: when it closes any descriptor of the file,
#   the kernel drops all its locks on it. One open() and close() in the transaction's own process, in any thread, lets
#   another process begin, write and commit. Both commits succeed and one is lost. With a write-ahead log the locks
#   are on the "-shm" file: a copy of the whole folder does the same.
# Why it matters: no error, and integrity_check is content. Files of a running database are for another process to
#   copy, or for the backup API or VACUUM INTO. The same holds for lockf() and fasteners, not for flock().
# Seen: pysqlite3-binary 0.5.4.post2 (SQLite 3.51.1), Linux, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install pysqlite3-binary==0.5.4.post2 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 60 "$python" - "$dir" <<'PYTHON'
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pysqlite3

print("SQLite", pysqlite3.sqlite_version)
OTHER = """
import sys
import pysqlite3
database = pysqlite3.connect(sys.argv[1], isolation_level=None, timeout=0.5)
try:
    database.execute("BEGIN IMMEDIATE")
    database.execute("UPDATE stock SET n = n - 1")
    database.execute("COMMIT")
    print("committed")
except pysqlite3.OperationalError as error:
    print(error)
"""


def read(paths):
    for path in paths:
        path.read_bytes()


def sell(mode, copied):
    """Two processes sell one piece each, the second one during the first one's transaction."""
    folder = Path(sys.argv[1], mode, copied)
    folder.mkdir(parents=True)
    path = folder / "stock.db"
    database = pysqlite3.connect(str(path), isolation_level=None)
    database.execute(f"PRAGMA journal_mode = {mode}")
    database.execute("CREATE TABLE stock (n int)")
    database.execute("INSERT INTO stock VALUES (10)")
    database.execute("BEGIN IMMEDIATE")
    (left,) = database.execute("SELECT n FROM stock").fetchone()
    backup = Thread(target=read, args=[{"nothing": [], "file": [path], "folder": list(folder.iterdir())}[copied]])
    backup.start()
    backup.join()
    run = [sys.executable, "-c", OTHER, str(path)]
    other = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    database.execute("UPDATE stock SET n = ?", [left - 1])
    database.execute("COMMIT")
    database.close()
    again = pysqlite3.connect(str(path))
    seen = other, again.execute("SELECT n FROM stock").fetchone()[0]
    (check,) = again.execute("PRAGMA integrity_check").fetchone()
    print(f"{mode}, read meanwhile: {copied} - the other: {seen[0]}; 10 pieces, left: {seen[1]}; check: {check}")
    return *seen, check


refused, lost = ("database is locked", 9, "ok"), ("committed", 9, "ok")
expected = {
    ("delete", "nothing"): refused,
    ("delete", "file"): lost,
    ("wal", "nothing"): refused,
    ("wal", "file"): refused,
    ("wal", "folder"): lost,
}
seen = {case: sell(*case) for case in expected}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
