#!/usr/bin/env bash
# The guess: a function that one gives to kazoo's `add_listener` hears of each change of the connection, whatever it
#   returns, until one removes it.
# Instead: once it has returned True, it is removed, and nothing tells. The method's documentation does not say so. A
#   listener that notes and returns "connected or not" hears the first CONNECTED and nothing after it; one that ends by
#   `return task.cancel()` hears of the first loss only.
# Why it matters: this listener is the one that stops the work at SUSPENDED and LOST. A worker whose listener is gone
#   goes on beside the next owner. Return None.
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
java -Xmx128m -cp "$dir/jars/*" \
  org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/server.log" 2>&1 &
server=$!

basename "$dir"/jars/zookeeper-[0-9]*
timeout 100 "$python" - "$port" <<'PYTHON'
import io
import logging
import sys
from concurrent.futures import Future

import kazoo.version
from kazoo.client import KazooClient, KazooState

logging.disable()  # a server that is still starting
client = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=10)
client.start(timeout=40)
client.stop()
print("kazoo", kazoo.version.__version__)
log = io.StringIO()
logging.basicConfig(stream=log, level=logging.WARNING)
logging.disable(logging.NOTSET)
heard = {"returns None": [], "returns whether it is connected": [], "returns task.cancel()": []}


def silent(state):
    heard["returns None"].append(state)


def notes(state):
    heard["returns whether it is connected"].append(state)
    return state == KazooState.CONNECTED


def cancels(state):
    heard["returns task.cancel()"].append(state)
    if state == KazooState.LOST:
        return Future().cancel()


for listener in silent, notes, cancels:
    client.add_listener(listener)
for _ in range(2):
    client.start(timeout=20)
    client.stop()
for what, states in heard.items():
    print(f"{what}: {states}")
logged = log.getvalue()
print("logged:", logged or "nothing")
expected = [["CONNECTED", "LOST"] * 2, ["CONNECTED"], ["CONNECTED", "LOST"]]
sys.exit(None if list(heard.values()) == expected and not logged else "the behaviour has changed")
PYTHON
