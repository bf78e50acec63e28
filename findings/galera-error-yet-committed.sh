#!/usr/bin/env bash
# The guess: when COMMIT is answered by an error (not by a lost connection), the transaction is not committed.
# Instead: a node of Galera that is cut off from the others during a COMMIT answers 1180 ("Error while appending
#   streaming replication fragment"), and the others may have committed the transaction: it is there, and stays.
# Why it matters: code that repeats the work after this error does it twice; a guard that tells its caller "refused"
#   has let the write in. The error means "unknown": read on another node, then decide.
# Seen: MariaDB 10.11.19 with Galera 26.4.23 (Debian 12: mariadb-server, galera-4, rsync, iproute2), PyMySQL 1.2.4,
#   2026-11-28. It needs root, for a network of its own, in which the partition is made.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
library=/usr/lib/galera/libgalera_smm.so
if [ $# = 0 ]; then
  version=$(mariadbd --version 2>/dev/null || true)
  case $version in
    *" 10.11."*) echo "$version" ;;
    *) echo "this finding needs MariaDB 10.11 (Debian 12: mariadb-server)" >&2; exit 69 ;;
  esac
  [ -e "$library" ] || { echo "this finding needs Galera (Debian 12: galera-4)" >&2; exit 69; }
  for program in rsync ip; do
    command -v "$program" >/dev/null || { echo "this finding needs $program" >&2; exit 69; }
  done
  unshare --net true 2>/dev/null || { echo "this finding needs root" >&2; exit 69; }
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  python3 -m venv "$dir/venv"
  "$dir/venv/bin/python" -m pip -q --disable-pip-version-check install pymysql==1.2.4 \
    2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
  unshare --net bash "$0" "$dir"
  exit
fi

dir=$1
processes=()
cleanup() {
  for process in "${processes[@]}"; do
    kill -KILL "$process" 2>/dev/null || true
    wait "$process" 2>/dev/null || true
  done
}
trap cleanup EXIT
chown nobody "$dir"  # rsync, which copies the first node's state, would drop root's rights
# The first node is in one network namespace, the others in another; ports are theirs alone.
unshare --net sleep 300 &
processes+=($!)
first=(nsenter -t "${processes[0]}" -n)
until [ "$("${first[@]}" readlink /proc/self/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
ip link set lo up
"${first[@]}" ip link set lo up
ip link add outer type veth peer name inner
ip link set inner netns "${processes[0]}"
ip addr add 10.9.0.1/24 dev outer
ip link set outer up
"${first[@]}" ip addr add 10.9.0.2/24 dev inner
"${first[@]}" ip link set inner up
start() {  # number, address, address of the group, what runs it
  local data=$dir/node$1 own=$2 group=$3 port=$((4000 + 10 * $1)) user=(setpriv --reuid=nobody --clear-groups)
  local options="gmcast.listen_addr=tcp://$own:$((port + 1));ist.recv_addr=$own:$((port + 3))"
  options+=";evs.keepalive_period=PT0.3S;evs.suspect_timeout=PT1S;evs.inactive_timeout=PT2S;evs.install_timeout=PT2S"
  shift 3
  "${user[@]}" mariadb-install-db --no-defaults --datadir="$data" --skip-test-db >"$dir/install.log" 2>&1
  "$@" "${user[@]}" mariadbd --no-defaults --datadir="$data" --tmpdir="$dir" --skip-grant-tables --port="$port" \
    --socket="$data/socket" --pid-file="$data/pid" --binlog-format=ROW --innodb-autoinc-lock-mode=2 \
    --innodb-buffer-pool-size=16M --innodb-flush-log-at-trx-commit=0 --wsrep-on=ON --wsrep-provider="$library" \
    --wsrep-cluster-address="gcomm://$group" --wsrep-node-address="$own:$((port + 1))" \
    --wsrep-sst-receive-address="$own:$((port + 2))" --wsrep-provider-options="$options" \
    >"$data.log" 2>&1 &
  processes+=($!)
  # shellcheck disable=SC2016 # what the inner shell expands
  timeout 60 sh -c 'until mariadb --no-defaults --socket="$1" -Ne "SHOW STATUS LIKE \"wsrep_local_state_comment\"" \
    2>/dev/null | grep -q Synced; do sleep 0.3; done' wait "$data/socket" || { tail -20 "$data.log" >&2; exit 69; }
}
start 0 10.9.0.2 '' "${first[@]}"
start 1 10.9.0.1 10.9.0.2:4001 env
start 2 10.9.0.1 10.9.0.2:4001 env

timeout 110 "$dir/venv/bin/python" - "$dir" <<'PYTHON'
import collections
import subprocess
import sys
import threading
import time

import pymysql

here, elsewhere = (f"{sys.argv[1]}/{node}/socket" for node in ("node0", "node1"))
cut = "ip route {} blackhole 10.9.0.2/32"  # what the others send does not arrive; what the node sends does
WRITERS = 8


def connect(socket, **options):
    return pymysql.connect(unix_socket=socket, user="root", **options)


def ask(connection, statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()


other = connect(elsewhere, autocommit=True)
ask(other, "CREATE DATABASE shop")
ask(other, "CREATE TABLE shop.work (writer int, n int, PRIMARY KEY (writer, n))")
print("Galera", ask(other, "SHOW STATUS LIKE 'wsrep_provider_version'")[1])


def write(writer, connection, ends):
    """Commit until it fails; note the last one, how it ended, and whether it was the COMMIT that failed."""
    n, committing = 0, False
    try:
        while True:
            committing, n = False, n + 1
            ask(connection, f"INSERT INTO shop.work VALUES ({writer}, {n})")
            committing = True
            connection.commit()
    except pymysql.MySQLError as error:
        if committing:
            ends[writer, n] = error.args[0]


def until(condition):
    while True:
        try:
            if condition():
                return
        except pymysql.MySQLError:
            pass
        time.sleep(0.2)


seen = collections.Counter()
for turn in range(6):
    ends = {}
    connections = [connect(here) for _ in range(WRITERS)]
    writers = [
        threading.Thread(target=write, args=(turn * WRITERS + number, connection, ends))
        for number, connection in enumerate(connections)
    ]
    for writer in writers:
        writer.start()
    until(lambda: ask(other, "SELECT count(*) FROM shop.work")[0] > 100 * (turn + 1))
    subprocess.run(cut.format("add").split(), check=True)
    for writer in writers:
        writer.join()
    subprocess.run(cut.format("del").split(), check=True)
    for (writer, n), code in ends.items():
        row = f"SELECT 1 FROM shop.work WHERE writer = {writer} AND n = {n}"
        found = []
        until(lambda: found.append(ask(other, row)) is None)
        seen[code, "committed" if found[0] else "not committed"] += 1
    if any(outcome == "committed" for _, outcome in seen):
        break
    until(lambda: ask(connect(here), "SHOW STATUS LIKE 'wsrep_local_state_comment'")[1] == "Synced")
for (code, outcome), count in sorted(seen.items()):
    print(f"COMMIT answered by error {code}: {outcome} on the other node, {count} times")
kept = {code for code, outcome in seen if outcome == "committed"}
sys.exit(None if kept and kept <= {1047, 1180} else "the behaviour has changed")
PYTHON
