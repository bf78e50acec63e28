#!/usr/bin/env bash
# The guess: the error 1020 ("Record has changed since last read") of MariaDB's snapshot isolation undoes the
#   statement, as a duplicate key does; or it ends the transaction so that COMMIT fails, as in PostgreSQL.
# Instead: it rolls the *whole* transaction back and says so nowhere. The next statement begins a new transaction
#   (under the session's autocommit=0), and COMMIT keeps what came after the error and has lost what came before.
# Why it matters: a guard that catches the error inside the transaction (to read the stored token for its message,
#   say) and goes on commits half of the work. innodb_snapshot_isolation is ON by default from MariaDB 11.6.
# Seen: MariaDB 10.11.19 (Debian 12) with innodb_snapshot_isolation=ON, PyMySQL 1.2.4, 2026-11-27.
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
"$python" -m pip -q --disable-pip-version-check install pymysql==1.2.4 \
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
from importlib.metadata import version

import pymysql

connect = lambda **options: pymysql.connect(
    host="127.0.0.1", port=int(sys.argv[1]), user="root", database="shop", **options
)
with pymysql.connect(host="127.0.0.1", port=int(sys.argv[1]), user="root", autocommit=True) as admin:
    admin.cursor().execute("CREATE DATABASE shop")
other = connect(autocommit=True).cursor()
other.execute("CREATE TABLE fence (token int) ENGINE=InnoDB")
other.execute("CREATE TABLE work (step text, resource int UNIQUE) ENGINE=InnoDB")
other.execute("INSERT INTO fence VALUES (1)")
print("PyMySQL", version("PyMySQL"))


def transaction(fails):
    """Two steps with an error between them that is caught; what is kept, and the error's number."""
    other.execute("DELETE FROM work")
    connection = connect(init_command="SET innodb_snapshot_isolation = ON")
    cursor = connection.cursor()
    cursor.execute("INSERT INTO work VALUES ('before', 1)")
    cursor.execute("SELECT token FROM fence")
    other.execute("UPDATE fence SET token = token + 1")
    code = None
    try:
        cursor.execute(fails)
    except pymysql.MySQLError as error:
        code = error.args[0]
    cursor.execute("SELECT @@in_transaction")
    within = cursor.fetchone()[0]
    cursor.execute("INSERT INTO work VALUES ('after', 2)")
    connection.commit()
    connection.close()
    other.execute("SELECT step FROM work ORDER BY resource")
    return code, within, [step for (step,) in other.fetchall()]


duplicate = transaction("INSERT INTO work VALUES ('again', 1)")
changed = transaction("UPDATE fence SET token = token + 10")
for name, (code, within, steps) in (("duplicate key", duplicate), ("changed since last read", changed)):
    print(f"{name}: error {code}, in a transaction afterwards: {within}, COMMIT raised nothing, kept: {steps}")
expected = duplicate == (1062, 1, ["before", "after"]) and changed == (1020, 0, ["after"])
sys.exit(None if expected else "the behaviour has changed")
PYTHON
