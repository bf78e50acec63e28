#!/usr/bin/env bash
# The guess: GET_LOCK(name, -1) waits without a time limit, as in MySQL since 5.7.5; a library that offers locks "for
#   MySQL and MariaDB" waits in its default, `acquire()` without a timeout.
# Instead: MariaDB returns NULL for a negative time, at once, whether the lock is free or not. sqlalchemy-dlock sends -1
#   when no timeout is given: on MariaDB its acquire() and its `with` always raise, on a free lock, too. Code of one's
#   own that looks only for 0 takes the NULL for success.
# Why it matters: it works on MySQL and in each test that passes a timeout. Pass a large timeout (one day), and take
#   only 1 as "you have it".
# Seen: MariaDB 10.11.19 (Debian 12), PyMySQL 1.2.4, SQLAlchemy 2.1.9, sqlalchemy-dlock 0.9.0, 2026-11-29.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
version=$(mariadbd --version 2>/dev/null || true)
case $version in
  *" 10.11."*) echo "$version" ;;
  *) echo "this finding needs MariaDB 10.11 (Debian 12: mariadb-server)" >&2; exit 69 ;;
esac
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install pymysql==1.2.4 sqlalchemy==2.1.9 sqlalchemy-dlock==0.9.0 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
options=(--no-defaults --datadir="$dir/data" --user="$(id -un)")
mariadb-install-db "${options[@]}" --skip-test-db >"$dir/install.log" 2>&1
mariadbd "${options[@]}" --skip-grant-tables --skip-networking=0 --bind-address=127.0.0.1 --port="$port" \
  --socket="$dir/socket" --pid-file="$dir/pid" --innodb-buffer-pool-size=16M >"$dir/server.log" 2>&1 &
server=$!
timeout 60 sh -c "until mariadb-admin --no-defaults --socket='$dir/socket' ping >/dev/null 2>&1; do sleep 0.2; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import sys
import time
from importlib.metadata import version

from sqlalchemy import create_engine, text
from sqlalchemy_dlock import create_sadlock

print(*(f"{name} {version(name)}" for name in ("PyMySQL", "SQLAlchemy", "sqlalchemy-dlock")))
engine = create_engine(f"mysql+pymysql://root@127.0.0.1:{sys.argv[1]}/mysql")
holder, waiter = engine.connect(), engine.connect()


def get_lock(connection, name, seconds):
    return connection.execute(text("SELECT GET_LOCK(:name, :seconds)"), {"name": name, "seconds": seconds}).scalar_one()


def library(timeout):
    """What the library's lock does with a free lock."""
    lock = create_sadlock(waiter, "library")
    try:
        got = lock.acquire(timeout=timeout)
        lock.release()
        return got
    except Exception as error:
        return type(error).__name__


taken = get_lock(holder, "held", 0)
began = time.monotonic()
negative = get_lock(waiter, "free", -1), get_lock(waiter, "held", -1)
at_once = time.monotonic() - began < 1
limited = get_lock(waiter, "free", 5), get_lock(waiter, "held", 1)
print("GET_LOCK(…, -1): a free lock, a held one:", negative, "at once:", at_once)
print("GET_LOCK(…, a time): a free lock, a held one:", limited)
default, bounded = library(None), library(5)
print("sqlalchemy-dlock, a free lock: acquire():", default, "acquire(timeout=5):", bounded)
seen = taken, negative, at_once, limited, default, bounded
expected = 1, (None, None), True, (1, 0), "SqlAlchemyDLockDatabaseError", True
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
