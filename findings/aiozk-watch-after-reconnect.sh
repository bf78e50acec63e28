#!/usr/bin/env bash
# The guess: a client that reconnects within its session sets its watches again, so a waiter of a lock is woken when
#   its turn comes, whatever its connection went through.
# Instead: aiozk sets data, existence and child watches again, but not what waits for a DELETED event. If the connection
#   of a waiting Lock breaks once, the holder's release wakes nobody: the waiter's node is first, and it waits for ever.
# Why it matters: its session lives on, so its node blocks all who queue behind it, whatever their library. Give
#   `acquire()` a timeout, and try again.
# Seen: aiozk 0.32.0, kazoo 2.11.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1), 2026-11-27. Needs Java.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
command -v java >/dev/null || { echo "this finding needs java" >&2; exit 69; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
pip() { "$python" -m pip -q --disable-pip-version-check "$@" 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }; }
pip install aiozk==0.32.0 kazoo==2.11.0
pip download --no-deps -d "$dir" pyspark==4.0.1
tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards \
  '*/jars/zookeeper-*' '*/jars/netty-*' '*/jars/slf4j-api-*' '*/jars/snappy-java-*' '*/jars/metrics-core-*'
basename "$dir"/jars/zookeeper-[0-9]*

timeout 150 "$python" - "$dir" <<'PYTHON'
import asyncio
import logging
import signal
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import aiozk
from aiozk.states import States
from kazoo.client import KazooClient

print("aiozk", version("aiozk"), "kazoo", version("kazoo"))
logging.disable()
signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))
folder = Path(sys.argv[1])
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
settings = "tickTime=500", f"dataDir={folder}/data", f"clientPort={port}", "clientPortAddress=127.0.0.1"
(folder / "zoo.cfg").write_text("\n".join([*settings, "admin.enableServer=false", ""]))
main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
log = open(folder / "server.log", "ab")
hosts = f"127.0.0.1:{port}"


def serve():
    command = "java", "-Xmx128m", "-cp", f"{folder}/jars/*", main, f"{folder}/zoo.cfg"
    return subprocess.Popen(command, stdout=log, stderr=log)


async def until(condition, seconds=40):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


async def meet(client, holder, restart):
    """A waiter behind a node that is deleted; the server restarts in between, or not."""
    path = "/locks/restarted" if restart else "/locks/undisturbed"
    holder.ensure_path(path)
    held = holder.create(f"{path}/lock-", ephemeral=True, sequence=True)
    waiting = asyncio.ensure_future(client.recipes.Lock(path).acquire())
    await until(lambda: len(holder.get_children(path)) == 2)
    await asyncio.sleep(1)  # until its watch stands
    session = client.session.session_id
    if restart:
        global server
        server.kill()
        server.wait()
        await client.session.state.wait_for(States.SUSPENDED)
        server = serve()
        await client.session.state.wait_for(States.CONNECTED)
        await until(lambda: holder.connected)
    holder.delete(held)
    done, _ = await asyncio.wait([waiting], timeout=15)
    nodes = holder.get_children(path)
    print(f"{path}: same session {client.session.session_id == session}, granted {bool(done)}, nodes {nodes}")
    return bool(done), len(nodes), client.session.session_id == session


async def run():
    client = aiozk.ZKClient(hosts, session_timeout=30)
    await asyncio.wait_for(client.start(), 60)
    holder = KazooClient(hosts, timeout=30, connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 0.5})
    holder.start(timeout=40)
    found = await meet(client, holder, False), await meet(client, holder, True)
    holder.stop()
    return found


server = serve()
try:
    found = asyncio.run(run())
finally:
    server.kill()
    server.wait()
sys.exit(None if found == ((True, 1, True), (False, 1, True)) else "the behaviour has changed")
PYTHON
