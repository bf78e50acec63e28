#!/usr/bin/env bash
# The guess: after `UPDATE fence SET token = 7 WHERE token <= 7` rowcount is 1 where the row matched.
# Instead: it depends on the driver. MySQL's protocol counts the rows that *changed* unless the client asks for the
#   rows found: PyMySQL, aiomysql and asyncmy say 0 the second time, mysql-connector-python too; through SQLAlchemy
#   the same PyMySQL says 1, since SQLAlchemy asks for the rows found.
# Why it matters: "rowcount 0 means a stale token" rejects the rightful holder's second write with the same values,
#   with one driver and not with another. Read the stored token under FOR UPDATE, or set CLIENT.FOUND_ROWS.
# Seen: MariaDB 10.11.19 (Debian 12), PyMySQL 1.2.4, aiomysql 0.3.2, asyncmy 0.2.18, mysql-connector-python 26.10.0,
#   SQLAlchemy 2.1.9, 2026-11-27.
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
"$python" -m pip -q --disable-pip-version-check install pymysql==1.2.4 aiomysql==0.3.2 \
  asyncmy==0.2.18 mysql-connector-python==26.10.0 sqlalchemy==2.1.9 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
options=(--no-defaults --datadir="$dir/data" --user="$(id -un)")
mariadb-install-db "${options[@]}" --skip-test-db >"$dir/install.log" 2>&1
mariadbd "${options[@]}" --skip-grant-tables --skip-networking=0 --bind-address=127.0.0.1 --port="$port" \
  --socket="$dir/socket" --pid-file="$dir/pid" --innodb-buffer-pool-size=16M >"$dir/server.log" 2>&1 &
server=$!
timeout 60 sh -c "until mariadb-admin --no-defaults --socket='$dir/socket' ping >/dev/null 2>&1; do sleep 0.2; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

import aiomysql
import asyncmy
import mysql.connector
import pymysql
import sqlalchemy

packages = "PyMySQL", "aiomysql", "asyncmy", "mysql-connector-python", "SQLAlchemy"
print(*(f"{package} {version(package)}" for package in packages), sep=", ")
where = {"host": "127.0.0.1", "port": int(sys.argv[1]), "user": "root"}
with pymysql.connect(**where, autocommit=True) as admin:
    admin.cursor().execute("CREATE DATABASE shop")
    admin.cursor().execute("CREATE TABLE shop.fence (token int)")
    admin.cursor().execute("INSERT INTO shop.fence VALUES (1)")
token = iter(range(2, 100))
statement = "UPDATE shop.fence SET token = {0} WHERE token <= {0}"
results = {}


def twice(connection):
    cursor, write = connection.cursor(), statement.format(next(token))
    counts = []
    for _ in range(2):
        cursor.execute(write)
        counts.append(cursor.rowcount)
    connection.commit()
    connection.close()
    return counts


async def twice_async(connection):
    write = statement.format(next(token))
    counts = []
    async with connection.cursor() as cursor:
        for _ in range(2):
            await cursor.execute(write)
            counts.append(cursor.rowcount)
    await connection.commit()
    connection.close()
    return counts


async def with_asyncio():
    results["aiomysql"] = await twice_async(await aiomysql.connect(**where))
    results["asyncmy"] = await twice_async(await asyncmy.connect(**where))


results["PyMySQL"] = twice(pymysql.connect(**where))
results["mysql-connector-python"] = twice(mysql.connector.connect(**where))
asyncio.run(with_asyncio())
engine = sqlalchemy.create_engine(f"mysql+pymysql://root@127.0.0.1:{where['port']}/shop")
with engine.begin() as connection:
    write = statement.format(next(token))
    results["SQLAlchemy with PyMySQL"] = [connection.exec_driver_sql(write).rowcount for _ in range(2)]
for driver, counts in results.items():
    print(f"{driver}: rowcount {counts[0]}, then, for the same write again, {counts[1]}")
expected = dict.fromkeys(results, [1, 0]) | {"SQLAlchemy with PyMySQL": [1, 1]}
sys.exit(None if results == expected else "the behaviour has changed")
PYTHON
