#!/usr/bin/env bash
# The guess: `SELECT … WHERE state = 'new' ORDER BY priority LIMIT 1 FOR UPDATE SKIP LOCKED` locks the one job that it
#   returns, and a second worker gets the next one, as in PostgreSQL.
# Instead: InnoDB locks each row when it reads it, and it sorts afterwards. Unless an index has the condition's and the
#   order's columns in this order, the first worker holds *all* new jobs, and gets one. Every other worker finds an
#   empty queue, and no error, until the first one commits. READ COMMITTED changes nothing, as all of them do match.
# Why it matters: ten workers do the work of one, and who pauses or stops when the queue is empty stops; with a few jobs
#   in the test it looks like bad luck. The index (state, priority) is part of the lock; EXPLAIN must not say "Using
#   filesort". An index on state alone, the usual one, is not enough.
# Seen: MariaDB 10.11.19 (Debian 12), PyMySQL 1.2.4, 2026-11-30.
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

timeout 120 "$python" - "$port" <<'PYTHON'
import sys
from importlib.metadata import version

import pymysql


def connect(level, **options):
    setting = f"SET SESSION tx_isolation = '{level}'"
    return pymysql.connect(host="127.0.0.1", port=int(sys.argv[1]), user="root", init_command=setting, **options)


print("PyMySQL", version("PyMySQL"))
with connect("REPEATABLE-READ", autocommit=True) as admin:
    admin.cursor().execute("CREATE DATABASE shop")


def take(worker):
    with worker.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM jobs WHERE state = 'new' ORDER BY priority LIMIT 1 FOR UPDATE SKIP LOCKED",
        )
        return [job for (job,) in cursor.fetchall()]


def three_workers(level, index):
    """What three workers get, one after the other, each in an open transaction, of fifty new jobs."""
    admin = connect(level, database="shop", autocommit=True).cursor()
    columns = f"id int PRIMARY KEY, state varchar(10), priority int{index}"
    admin.execute(f"CREATE OR REPLACE TABLE jobs ({columns})")
    admin.executemany("INSERT INTO jobs VALUES (%s, 'new', %s)", [(job, 100 - job) for job in range(1, 51)])
    admin.execute("ANALYZE TABLE jobs")
    workers = [connect(level, database="shop") for _ in range(3)]
    got = [take(worker) for worker in workers]
    for worker in workers:
        worker.close()
    return got


seen = {}
for level in ("REPEATABLE-READ", "READ-COMMITTED"):
    for index in ("", ", KEY (state)", ", KEY (state, priority)"):
        seen[level, index] = three_workers(level, index)
        print(f"{level}, {index[2:] or 'no index'}: three workers got {seen[level, index]}")
one, three = [[50], [], []], [[50], [49], [48]]
sys.exit(None if list(seen.values()) == [one, one, three] * 2 else "the behaviour has changed")
PYTHON
