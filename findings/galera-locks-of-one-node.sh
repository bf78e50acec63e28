#!/usr/bin/env bash
# The guess: Galera is "synchronous multi-master": `SELECT … FOR UPDATE` and GET_LOCK() exclude the other nodes, or at
#   least one of two transactions that hold the same row for update fails at its COMMIT.
# Instead: both are local. Two nodes grant the same row and the same user lock at once, and both COMMITs succeed unless
#   both transactions have *written* the row: certification compares what is written, not what is locked.
# Why it matters: "lock the row that guards the data, check it, write elsewhere" is a mutex on one MariaDB and none on
#   Galera. Each transaction must write the row that guards (a stamp will do); then the second COMMIT fails (1213).
# Seen: MariaDB 10.11.19 with Galera 26.4.23 (Debian 12: mariadb-server, galera-4, rsync), PyMySQL 1.2.4, 2026-11-27.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
library=/usr/lib/galera/libgalera_smm.so
version=$(mariadbd --version 2>/dev/null || true)
case $version in
  *" 10.11."*) echo "$version" ;;
  *) echo "this finding needs MariaDB 10.11 (Debian 12: mariadb-server)" >&2; exit 69 ;;
esac
[ -e "$library" ] || { echo "this finding needs Galera (Debian 12: galera-4)" >&2; exit 69; }
command -v rsync >/dev/null || { echo "this finding needs rsync" >&2; exit 69; }
dir=$(mktemp -d)
nodes=()
cleanup() {
  for node in "${nodes[@]}"; do
    kill -KILL "$node" 2>/dev/null || true
    wait "$node" 2>/dev/null || true
  done
  rm -rf "$dir"
}
trap cleanup EXIT
user=()
if [ "$(id -u)" = 0 ]; then  # rsync, which copies the first node's state, would drop root's rights
  chown nobody "$dir"
  user=(setpriv --reuid=nobody --clear-groups)
fi
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install pymysql==1.2.4 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

mapfile -t ports < <("$python" - <<'PYTHON'
import socket

taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(8)]
print(*(listener.getsockname()[1] for listener in taken), sep="\n")
PYTHON
)
start() {  # number, address of the group
  local data=$dir/node$1 own=("${ports[@]:$1*4:4}")
  "${user[@]}" mariadb-install-db --no-defaults --datadir="$data" --skip-test-db >"$dir/install.log" 2>&1
  "${user[@]}" mariadbd --no-defaults --datadir="$data" --tmpdir="$dir" --skip-grant-tables --bind-address=127.0.0.1 \
    --port="${own[0]}" --socket="$data/socket" --pid-file="$data/pid" --binlog-format=ROW \
    --innodb-autoinc-lock-mode=2 --innodb-buffer-pool-size=16M --innodb-flush-log-at-trx-commit=0 \
    --wsrep-on=ON --wsrep-provider="$library" --wsrep-cluster-address="gcomm://$2" \
    --wsrep-node-address="127.0.0.1:${own[1]}" --wsrep-sst-receive-address="127.0.0.1:${own[3]}" \
    --wsrep-provider-options="gmcast.listen_addr=tcp://127.0.0.1:${own[1]};ist.recv_addr=127.0.0.1:${own[2]}" \
    >"$data.log" 2>&1 &
  nodes+=($!)
  # shellcheck disable=SC2016 # what the inner shell expands
  timeout 60 sh -c 'until mariadb --no-defaults --socket="$1" -Ne "SHOW STATUS LIKE \"wsrep_local_state_comment\"" \
    2>/dev/null | grep -q Synced; do sleep 0.3; done' wait "$data/socket" || { tail -20 "$data.log" >&2; exit 69; }
}
start 0 ''
start 1 "127.0.0.1:${ports[1]}"

timeout 60 "$python" - "${ports[0]}" "${ports[4]}" <<'PYTHON'
import sys

import pymysql


def connect(port, **options):
    return pymysql.connect(host="127.0.0.1", port=int(port), user="root", **options)


def ask(connection, statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()


def commit(connection):
    try:
        connection.commit()
        return "committed"
    except pymysql.MySQLError as error:
        return error.args[0]


admin = connect(sys.argv[1], autocommit=True)
for statement in (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.fence (id int PRIMARY KEY, token int, stamp int)",
    "CREATE TABLE shop.work (who int PRIMARY KEY)",
    "INSERT INTO shop.fence VALUES (1, 33, 0)",
):
    ask(admin, statement)


def together(first_work, writes):
    """Two transactions, one on each node, which lock the same row before either commits."""
    outcomes = []
    pair = [connect(port, database="shop") for port in sys.argv[1:3]]
    for who, connection in enumerate(pair, first_work):
        ask(connection, "SET wsrep_sync_wait = 1")
        row = ask(connection, "SELECT token FROM fence WHERE id = 1 FOR UPDATE")
        assert row == (33,)
        if writes:
            ask(connection, f"UPDATE fence SET stamp = {who} WHERE id = 1")
        ask(connection, f"INSERT INTO work VALUES ({who})")
    for connection in pair:
        outcomes.append(commit(connection))
        connection.close()
    return outcomes


locked, written = together(1, False), together(3, True)
nodes = [connect(port) for port in sys.argv[1:3]]
granted = [ask(node, "SELECT GET_LOCK('report', 1)")[0] for node in nodes]
print("Galera", ask(admin, "SHOW STATUS LIKE 'wsrep_provider_version'")[1])
print("the same row FOR UPDATE on two nodes, other rows written:", locked)
print("the same row FOR UPDATE on two nodes, and it is written:", written)
print("GET_LOCK of one name on two nodes:", granted)
expected = locked == ["committed"] * 2 and sorted(map(str, written)) == ["1213", "committed"] and granted == [1, 1]
sys.exit(None if expected else "the behaviour has changed")
PYTHON
