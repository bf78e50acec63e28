#!/usr/bin/env bash
# The guess: a signal handler that raises (Ctrl-C's KeyboardInterrupt, a SIGTERM turned into SystemExit, a soft time
#   limit) interrupts whatever the main thread does, a request of kazoo's, too.
# Instead: a request wakes the connection's thread through a socket, inside a bare `except:`. What strikes there is
#   dropped, and the request is failed with ConnectionClosedError, although the connection is there, and although the
#   request is in the queue: it is sent, and the server executes it.
# Why it matters: a worker that is told to stop in that moment goes on for ever, as it takes the error for a lost
#   connection and tries again: one run of some hundreds. The write that it tries again was done. Set a flag in the
#   handler, and look at it in the loop.
# Seen: kazoo 2.11.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1), 2026-11-29. Needs Java.
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
timeout 60 "$python" - "$port" <<'PYTHON'
import logging
import signal
import sys
import time

import kazoo.version
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

logging.disable()  # a server that is still starting
now = False


class Struck:
    """The socket that wakes the connection's thread; a signal arrives as the main thread writes to it."""

    def __init__(self, socket):
        self.socket = socket

    def send(self, data):
        sent = self.socket.send(data)
        if now:
            signal.raise_signal(signal.SIGINT)
        return sent

    def __getattr__(self, name):
        return getattr(self.socket, name)


class Handler(SequentialThreadingHandler):
    def create_socket_pair(self):
        reads, writes = super().create_socket_pair()
        return reads, Struck(writes)


client = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=10, handler=Handler())
client.start(timeout=40)
print("kazoo", kazoo.version.__version__)
client.create("/jobs")

raised = None
now = True
try:
    client.create("/jobs/one")
except BaseException as error:
    raised = type(error).__name__
now = False
deadline = time.monotonic() + 20
while not (done := client.exists("/jobs/one") is not None) and time.monotonic() < deadline:
    time.sleep(0.1)
print("Ctrl-C strikes as create() wakes the connection's thread; create() raises:", raised)
print("the client is connected:", client.connected, "the node is there:", done)
seen = raised, client.connected, done
client.stop()
sys.exit(None if seen == ("ConnectionClosedError", True, True) else "the behaviour has changed")
PYTHON
