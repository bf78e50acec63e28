#!/usr/bin/env bash
# The guess: a worker that looks for a job by `SELECT … WHERE state = 'new' … LIMIT 1 FOR UPDATE SKIP LOCKED` and finds
#   none has locked nothing; one that finds a job has locked that job. Who puts jobs in never waits for workers.
# Instead: at REPEATABLE READ, the default, InnoDB locks what it looked at, gaps included. A poll that found *nothing*
#   locks the place where the next job would go: each INSERT of a new job waits until that worker's transaction ends,
#   and fails after innodb_lock_wait_timeout (50 s). SKIP LOCKED is for the rows of others; it gives up no gap. At READ
#   COMMITTED nothing of this happens.
# Why it matters: idle workers that poll within an open transaction (autocommit is off by default in Python) stop the
#   producers; the busier the queue, the less one sees of it. Roll back after an empty poll, or use READ COMMITTED.
# Seen: MariaDB 10.11.19 (Debian 12), PyMySQL 1.2.4, 2026-11-29.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
version=$(mariadbd --version 2>/dev/null || true)
case $version in
  *" 10.11."*) echo "$version" ;;
  *) echo "this finding needs MariaDB 10.11 (Debian 12: mariadb-server)" >&2; exit 69 ;;
esac
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install pymysql==1.2.4 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
options=(--no-defaults --datadir="$dir/data" --user="$(id -un)")
mariadb-install-db "${options[@]}" --skip-test-db >"$dir/install.log" 2>&1
mariadbd "${options[@]}" --skip-grant-tables --skip-networking=0 --bind-address=127.0.0.1 --port="$port" \
  --socket="$dir/socket" --pid-file="$dir/pid" --innodb-buffer-pool-size=16M >"$dir/server.log" 2>&1 &
server=$!
timeout 60 sh -c "until mariadb-admin --no-defaults --socket='$dir/socket' ping >/dev/null 2>&1; do sleep 0.2; done"

timeout 90 "$python" - "$port" <<'PYTHON'
import sys
from importlib.metadata import version

import pymysql


def connect(level, **options):
    setting = f"SET SESSION tx_isolation = '{level}', innodb_lock_wait_timeout = 2"
    return pymysql.connect(host="127.0.0.1", port=int(sys.argv[1]), user="root", init_command=setting, **options)


print("PyMySQL", version("PyMySQL"))
with connect("REPEATABLE-READ", autocommit=True) as admin:
    admin.cursor().execute("CREATE DATABASE shop")


def insert(cursor, state):
    try:
        cursor.execute("INSERT INTO jobs (state) VALUES (%s)", (state,))
        return "put"
    except pymysql.OperationalError as error:
        return error.args[0]


def poll(level, jobs):
    """What a worker finds, and what a producer is told that puts a new job while the worker's transaction is open."""
    producer = connect("REPEATABLE-READ", database="shop", autocommit=True).cursor()
    producer.execute("CREATE OR REPLACE TABLE jobs (id int AUTO_INCREMENT PRIMARY KEY, state text, KEY (state(8)))")
    for state in ("done", "done", *jobs):
        producer.execute("INSERT INTO jobs (state) VALUES (%s)", (state,))
    worker = connect(level, database="shop")
    cursor = worker.cursor()
    cursor.execute("SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED")
    found = len(cursor.fetchall())
    during = insert(producer, "new")
    worker.rollback()
    return found, during, insert(producer, "new")


seen = {}
for level in ("REPEATABLE-READ", "READ-COMMITTED"):
    seen[level] = poll(level, []), poll(level, ["new"])
    print(f"{level}: jobs found, a new job while the transaction is open, after it: {seen[level]}")
waits = 1205
expected = {
    "REPEATABLE-READ": ((0, waits, "put"), (1, waits, "put")),
    "READ-COMMITTED": ((0, "put", "put"), (1, "put", "put")),
}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
