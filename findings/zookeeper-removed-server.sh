#!/usr/bin/env bash
# The guess: a server that `reconfig` removes from the ensemble sends its clients away, or at least proves nothing any
#   more: whoever still talks to it is cut off.
# Instead: it goes on as a follower without a vote. Its clients keep their connection, hear nothing, and write; new
#   clients get sessions and ephemeral nodes there. That ends with its process. And kazoo never asks who the servers
#   are: `hosts` stays the list that it began with.
# Why it matters: after all servers of a client's list were replaced one by one, everything still works, until the last
#   old process is stopped. Then the client is SUSPENDED, and hears no LOST, while its locks go to others.
# Seen: ZooKeeper 3.9.3 (out of pyspark 4.0.1), kazoo 2.11.0, 2026-11-27. Needs Java.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
command -v java >/dev/null || { echo "this finding needs java" >&2; exit 69; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
pip() { "$python" -m pip -q --disable-pip-version-check "$@" 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }; }
pip install kazoo==2.11.0
pip download --no-deps -d "$dir" pyspark==4.0.1
tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards \
  '*/jars/zookeeper-*' '*/jars/netty-*' '*/jars/slf4j-api-*' '*/jars/snappy-java-*' '*/jars/metrics-core-*'
basename "$dir"/jars/zookeeper-[0-9]*

timeout 150 "$python" - "$dir" <<'PYTHON'
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import kazoo.version
from kazoo.client import KazooClient

print("kazoo", kazoo.version.__version__)
logging.disable()
signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))
folder = Path(sys.argv[1])
with contextlib.ExitStack() as sockets:
    free = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(9)]
    ports = [each.getsockname()[1] for each in free]
client_port = {number: ports[3 * number - 3] for number in (1, 2, 3)}
lines = [
    f"server.{number}=127.0.0.1:{ports[3 * number - 2]}:{ports[3 * number - 1]}:participant;127.0.0.1:{port}"
    for number, port in client_port.items()
]
common = "tickTime=500", "initLimit=20", "syncLimit=10", "reconfigEnabled=true", "admin.enableServer=false"
words = "4lw.commands.whitelist=srvr"
main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
log = open(folder / "server.log", "ab")
servers, clients = {}, []


def serve(number):
    data = folder / str(number)
    data.mkdir()
    (data / "myid").write_text(f"{number}\n")
    (data / "zoo.cfg").write_text("\n".join([*common, words, f"dataDir={data}", *lines, ""]))
    command = "java", "-Xmx128m", "-Dzookeeper.skipACL=yes", "-cp", f"{folder}/jars/*", main, f"{data}/zoo.cfg"
    servers[number] = subprocess.Popen(command, stdout=log, stderr=log)


def mode(number):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", client_port[number]), 2) as asked:
        asked.sendall(b"srvr")
        answer = b"".join(iter(lambda: asked.recv(4096), b"")).decode()
        if "Mode: " in answer:
            return answer.partition("Mode: ")[2].split()[0]


def connect(number, states=None):
    retry = {"max_tries": -1, "delay": 0.1, "max_delay": 0.5}
    client = KazooClient(f"127.0.0.1:{client_port[number]}", timeout=6, connection_retry=retry)
    if states is not None:
        client.add_listener(states.append)
    client.start(timeout=40)
    clients.append(client)
    return client


try:
    for number in client_port:
        serve(number)
    while None in (modes := [mode(number) for number in client_port]):
        time.sleep(0.2)
    removed, stays = [number for number, is_ in zip(client_port, modes) if is_ == "follower"]
    states = []
    holder, operator = connect(removed, states), connect(stays)
    holder.create("/held", ephemeral=True)
    config = operator.reconfig(joining=None, leaving=str(removed), new_members=None)[0].decode()
    print(f"server {removed} removed, {config.count('server.')} are left")
    time.sleep(15)  # more than twice the session timeout
    holder.create("/written-there")
    connect(removed).create("/new-session-there", ephemeral=True)
    operator.sync("/")
    kept = all(operator.exists(path) for path in ("/held", "/written-there", "/new-session-there"))
    heard, listed = list(states), list(holder.hosts)
    print(f"15 s later it is a {mode(removed)}; lock kept and written: {kept}; the holder heard {heard}, lists {listed}")
    servers[removed].kill()
    servers[removed].wait()
    while operator.exists("/held"):
        time.sleep(0.1)
    time.sleep(5)
    at_last = list(states)
    print(f"after its end: the lock is free, and the holder has heard {at_last}")
finally:
    for client in clients:
        client.stop()
    for server in servers.values():
        server.kill()
        server.wait()
expected = kept and heard == ["CONNECTED"] and at_last == ["CONNECTED", "SUSPENDED"]
sys.exit(None if expected else "the behaviour has changed")
PYTHON
