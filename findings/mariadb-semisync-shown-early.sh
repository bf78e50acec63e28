#!/usr/bin/env bash
# The guess: with semi-synchronous replication nobody sees a transaction before a replica has it, as in MySQL since 5.7
#   (`AFTER_SYNC`); and without an answer of the replica the COMMIT fails at the time limit.
# Instead: MariaDB's default is `AFTER_COMMIT`: while the COMMIT waits for the replica, all other sessions read the new
#   data already. At the time limit the COMMIT succeeds, and from then on nobody waits for the replica at all.
# Why it matters: a fencing token's high-water mark that others have read, and acted on, is gone when the replica is
#   promoted. Set rpl_semi_sync_master_wait_point=AFTER_SYNC, and a time limit that outlasts the failure detector.
# Seen: MariaDB 10.11.19 (Debian 12), PyMySQL 1.2.4, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
version=$(mariadbd --version 2>/dev/null || true)
case $version in
  *" 10.11."*) echo "$version" ;;
  *) echo "this finding needs MariaDB 10.11 (Debian 12: mariadb-server)" >&2; exit 69 ;;
esac
dir=$(mktemp -d)
servers=()
cleanup() {
  for server in "${servers[@]}"; do
    kill -KILL "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  done
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install pymysql==1.2.4 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
ports=()
for number in 1 2; do
  data=$dir/server$number
  ports+=("$(free_port)")
  mariadb-install-db --no-defaults --datadir="$data" --user="$(id -un)" --skip-test-db \
    --auth-root-authentication-method=normal >"$dir/install.log" 2>&1
  mariadbd --no-defaults --datadir="$data" --user="$(id -un)" --bind-address=127.0.0.1 --port="${ports[-1]}" \
    --socket="$data/socket" --pid-file="$data/pid" --innodb-buffer-pool-size=16M --innodb-flush-log-at-trx-commit=2 \
    --skip-name-resolve --server-id="$number" --log-bin="$data/binlog" >"$data.log" 2>&1 &
  servers+=($!)
  timeout 60 sh -c "until mariadb-admin --no-defaults --socket='$data/socket' ping >/dev/null 2>&1; do sleep 0.2; done"
  mariadb --no-defaults --socket="$data/socket" -u root -e \
    "CREATE USER all_rights@'127.0.0.1'; GRANT ALL ON *.* TO all_rights@'127.0.0.1'; RESET MASTER"
done

timeout 60 "$python" - "${ports[@]}" "${servers[1]}" <<'PYTHON'
import os
import signal
import sys
import threading
import time

import pymysql

first, second, process = map(int, sys.argv[1:])


def connect(port):
    return pymysql.connect(host="127.0.0.1", port=port, user="all_rights", autocommit=True)


def ask(connection, statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()


def until(condition):
    while not condition():
        time.sleep(0.1)


def status(name):
    return ask(admin, f"SHOW STATUS LIKE 'Rpl_semi_sync_master_{name}'")[1]


admin, replica = connect(first), connect(second)
print("by default:", ask(admin, "SHOW VARIABLES LIKE 'rpl_semi_sync_master_wait_point'"))
ask(admin, "SET GLOBAL rpl_semi_sync_master_enabled = ON")
ask(admin, "SET GLOBAL rpl_semi_sync_master_timeout = 5000")
ask(replica, "SET GLOBAL rpl_semi_sync_slave_enabled = ON")
ask(replica, f"CHANGE MASTER TO master_host='127.0.0.1', master_port={first}, master_user='all_rights'")
ask(replica, "START SLAVE")
until(lambda: status("clients") == "1")
ask(admin, "CREATE DATABASE shop")
ask(admin, "CREATE TABLE shop.fence (token int)")
ask(admin, "INSERT INTO shop.fence VALUES (33)")
begun = status("status"), status("no_tx")


def advance():
    writer = connect(first)
    try:
        ask(writer, "UPDATE shop.fence SET token = 34")
        ends.append("succeeded")
    except pymysql.MySQLError as error:
        ends.append(error)


ends = []
os.kill(process, signal.SIGSTOP)  # the replica answers nothing more
waiting = threading.Thread(target=advance)
waiting.start()
until(lambda: status("wait_sessions") == "1" or ends)
shown = ask(admin, "SELECT token FROM shop.fence")[0], bool(ends)
waiting.join()
print("while the COMMIT waits, another session reads", shown[0], "- the COMMIT has ended:", shown[1])
print("at the time limit the COMMIT", ends[0], "- semi-synchronous before and after:", begun[0], status("status"))
expected = begun == ("ON", "0") and shown == (34, False) and ends == ["succeeded"] and status("status") == "OFF"
sys.exit(None if expected else "the behaviour has changed")
PYTHON
