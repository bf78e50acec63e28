#!/usr/bin/env bash
# The guess: a lost connection to MySQL is an OperationalError or an InterfaceError (PEP 249), and SQLAlchemy tells it
#   by `connection_invalidated`.
# Instead: in pure Python, MySQL Connector says ProgrammingError, number -1, if the statement has parameters; the cause
#   alone tells. Without parameters it says InterfaceError 2013. In SQLAlchemy `connection_invalidated` is false.
# Why it matters: code that repeats a transaction after a lost connection takes this for a fault of the statement, and
#   gives up; with PyMySQL it goes on.
# Seen: MariaDB 10.11.19 (Debian 12), mysql-connector-python 26.10.0 (use_pure=True), SQLAlchemy 2.1.9, PyMySQL 1.2.4,
#   2026-11-28.
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
"$python" -m pip -q --disable-pip-version-check install sqlalchemy==2.1.9 mysql-connector-python==26.10.0 \
  pymysql==1.2.4 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
options=(--no-defaults --datadir="$dir/data" --user="$(id -un)")
mariadb-install-db "${options[@]}" --skip-test-db >"$dir/install.log" 2>&1
mariadbd "${options[@]}" --skip-grant-tables --skip-networking=0 --bind-address=127.0.0.1 --port="$port" \
  --socket="$dir/socket" --pid-file="$dir/pid" --innodb-buffer-pool-size=16M >"$dir/server.log" 2>&1 &
server=$!
timeout 60 sh -c "until mariadb-admin --no-defaults --socket='$dir/socket' ping >/dev/null 2>&1; do sleep 0.2; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import sys
from importlib.metadata import version

import mysql.connector
import pymysql
import sqlalchemy

packages = "mysql-connector-python", "PyMySQL", "SQLAlchemy"
print(*(f"{package} {version(package)}" for package in packages), sep=", ")
where = {"host": "127.0.0.1", "port": int(sys.argv[1]), "user": "root"}
admin = pymysql.connect(**where, autocommit=True)
connector = {"use_pure": True}
seen = {}


def lose(number):
    admin.cursor().execute(f"KILL {number}")


def driver(connect, statement, *parameters):
    connection = connect()
    cursor = connection.cursor()
    cursor.execute("SELECT CONNECTION_ID()")
    lose(cursor.fetchone()[0])
    try:
        cursor.execute(statement, parameters)
        return "no error"
    except Exception as error:
        number = getattr(error, "errno", None) or error.args[0]
        cause = f", cause {type(error.__cause__).__name__}" if error.__cause__ else ""
        return f"{type(error).__name__} {number}{cause}"


def pool(dialect, **options):
    engine = sqlalchemy.create_engine(
        f"mysql+{dialect}://root@127.0.0.1:{where['port']}", connect_args=options, pool_size=1, max_overflow=0
    )
    with engine.connect() as connection:
        number = connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar()
    lose(number)
    try:
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("SELECT :a"), {"a": "a"})
        return "no error"
    except sqlalchemy.exc.DBAPIError as error:
        return f"{type(error).__name__}, invalidated: {error.connection_invalidated}"


for name, connect in (
    ("MySQL Connector", lambda: mysql.connector.connect(**where, **connector)),
    ("PyMySQL", lambda: pymysql.connect(**where)),
):
    seen[name] = [driver(connect, "SELECT 1"), driver(connect, "SELECT %s", "a")]
    print(f"{name}: without parameters {seen[name][0]}; with {seen[name][1]}")
for name, dialect, options in (
    ("SQLAlchemy, MySQL Connector", "mysqlconnector", connector),
    ("SQLAlchemy, PyMySQL", "pymysql", {}),
):
    seen[name] = pool(dialect, **options)
    print(f"{name}: {seen[name]}")
lost = "OperationalError 2013"
expected = {
    "MySQL Connector": ["InterfaceError 2013", "ProgrammingError -1, cause OperationalError"],
    "PyMySQL": [lost, lost],
    "SQLAlchemy, MySQL Connector": "OperationalError, invalidated: False",
    "SQLAlchemy, PyMySQL": "OperationalError, invalidated: True",
}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
