#!/usr/bin/env bash
# The guess: after ZooKeeper was restored from a backup, clients that were connected before hear LOST, as their sessions
#   are not in the backup, and go on with a new session.
# Instead: a server refuses each client that has seen a later transaction than itself, and says so only in its own log.
#   kazoo keeps that number for as long as it hears no LOST, and never counts the time itself. So it knocks at the door
#   for ever: SUSPENDED, no LOST, and requests get no answer. It comes back only when others have written as much as
#   was lost.
# Why it matters: ZooKeeper answers, new clients work, and every process of before the restore stands still until it
#   is started anew. `client.restart()` is enough: call it after a time limit of your own on SUSPENDED.
# Seen: kazoo 2.11.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1), 2026-11-30. Needs Java.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
command -v java >/dev/null || { echo "this finding needs java" >&2; exit 69; }
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
pip() { "$python" -m pip -q --disable-pip-version-check "$@" 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }; }
pip install kazoo==2.11.0
pip download --no-deps -d "$dir" pyspark==4.0.1
tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards \
  '*/jars/zookeeper-*' '*/jars/netty-*' '*/jars/slf4j-api-*' '*/jars/snappy-java-*' '*/jars/metrics-core-*'

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf '%s\n' tickTime=500 "dataDir=$dir/data" "clientPort=$port" clientPortAddress=127.0.0.1 \
  admin.enableServer=false >"$dir/zoo.cfg"
basename "$dir"/jars/zookeeper-[0-9]*

timeout 150 "$python" - "$port" "$dir" <<'PYTHON'
import logging
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kazoo.version
from kazoo.client import KazooClient

SESSION = 4.0
print("kazoo", kazoo.version.__version__)
logging.disable()  # a server that is still starting
signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))
folder = Path(sys.argv[2])
data, backup = folder / "data", folder / "backup"
java = ["java", "-Xmx128m", "-cp", f"{folder}/jars/*", "org.apache.zookeeper.server.quorum.QuorumPeerMain"]
server = None


def serve():
    global server
    with open(folder / "server.log", "ab") as log:
        server = subprocess.Popen([*java, f"{folder}/zoo.cfg"], stdout=log, stderr=log)


def end():
    server.kill()
    server.wait()


def connect():
    retry = {"max_tries": -1, "delay": 0.1, "max_delay": 0.5}
    client = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=SESSION, connection_retry=retry)
    client.start(timeout=40)
    return client


def last(client):
    """The number of a transaction of this moment."""
    return client.set("/", b"").mzxid


def wait(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


try:
    serve()
    old, other = connect(), connect()
    old.create("/before")
    end()
    shutil.copytree(data, backup)
    serve()
    assert wait(lambda: old.connected and other.connected, 30)
    for _ in range(30):
        seen = last(old)
        last(other)
    session, states = old.client_id[0], []
    old.add_listener(states.append)
    end()
    shutil.rmtree(data)
    backup.rename(data)
    serve()
    new = connect()
    behind = last(new)
    asked = old.exists_async("/before")
    time.sleep(5 * SESSION)
    refused = list(states), old.connected, asked.ready(), new.exists("/before") is not None
    other.restart()
    restarted = other.connected
    ahead = seen - last(new)
    print(f"the old client has seen {seen}, the server is at {behind}; after {5 * SESSION:.0f} s the old client has")
    print(f"  heard {refused[0]}, is connected: {refused[1]}, has an answer: {refused[2]}; a new one has: {refused[3]}")
    print(f"a client of the same age after restart() is connected: {restarted}")
    while last(new) <= seen:
        pass
    back = wait(lambda: old.connected, 20), "LOST" in states, old.client_id[0] != session
    print(f"after {ahead} writes of others: connected {back[0]}, LOST heard {back[1]}, a new session {back[2]}")
    for client in (old, other, new):
        client.stop()
finally:
    if server:
        end()
followed = refused == (["SUSPENDED"], False, False, True) and restarted and all(back)
sys.exit(None if followed else "the behaviour has changed")
PYTHON
