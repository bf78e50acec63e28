#!/usr/bin/env bash
# The guess: a persistent watch (addWatch, ZooKeeper 3.6) is a one-time watch that need not be set again. When the
#   client reconnects within its session, it hears what changed meanwhile.
# Instead: only one-time watches are compared with the tree at the reconnection. Persistent ones, recursive or not,
#   are put back as they were, and say nothing: the node that was deleted during the break is gone, and no event tells
#   so.
# Why it matters: a waiter that watches its predecessor, or the whole lock, by a persistent watch is not woken by a
#   release that falls into a break of its connection: it waits for ever, first in line, and all others behind it.
#   Look at the nodes at each SyncConnected (as Curator's caches do).
# Seen: ZooKeeper 3.9.3 and its Java client (out of pyspark 4.0.1), driven by JPype 1.7.1; kazoo 2.11.0, 2026-11-28.
#   Needs Java.
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
pip install kazoo==2.11.0 jpype1==1.7.1
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
timeout 100 "$python" - "$port" "$dir/jars/*" <<'PYTHON'
import logging
import queue
import socket
import sys
import threading
from contextlib import suppress

import jpype
from kazoo.client import KazooClient

logging.disable()  # a server that is still starting
there = ("127.0.0.1", int(sys.argv[1]))
kazoo = KazooClient("{}:{}".format(*there), timeout=10)
kazoo.start(timeout=40)
jpype.startJVM("-Xmx64m", "-Dslf4j.internal.verbosity=ERROR", classpath=[sys.argv[2]])
Java = jpype.JClass("org.apache.zookeeper.ZooKeeper")
Mode = jpype.JClass("org.apache.zookeeper.AddWatchMode")


class Line:
    """Passes a client's connections on to the server; it can be cut."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.cut, self.sockets = False, []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.listener.accept()[0]
            if self.cut:
                client.close()
                continue
            pair = client, socket.create_connection(there)
            self.sockets += pair
            for ends in (pair, pair[::-1]):
                threading.Thread(target=self.copy, args=ends, daemon=True).start()

    def copy(self, source, target):
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def down(self):
        self.cut = True
        for end in self.sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def watcher(events):
    return jpype.JProxy("org.apache.zookeeper.Watcher", {"process": lambda event: events.put(event)})


line, states = Line(), queue.Queue()
java = Java("127.0.0.1:{}".format(line.listener.getsockname()[1]), 10_000, watcher(states))
assert str(states.get(timeout=30).getState()) == "SyncConnected"
session = java.getSessionId()
events = {path: queue.Queue() for path in ("/once", "/persistent", "/recursive", "/marker")}
for path in events:
    kazoo.create(path, ephemeral=True)
java.exists("/once", watcher(events["/once"]))
java.addWatch("/persistent", watcher(events["/persistent"]), Mode.PERSISTENT)
java.addWatch("/recursive", watcher(events["/recursive"]), Mode.PERSISTENT_RECURSIVE)

line.down()
assert str(states.get(timeout=30).getState()) == "Disconnected"
for path in ("/once", "/persistent", "/recursive"):
    kazoo.delete(path)
line.cut = False
assert str(states.get(timeout=30).getState()) == "SyncConnected"
assert java.getSessionId() == session


def told(path):
    """The events of nodes so far: events come in order, so those before the marker's are here when it is."""
    return [str(event.getType()) for event in list(events[path].queue) if str(event.getType()) != "None"]


java.exists("/marker", watcher(events["/marker"]))
kazoo.delete("/marker")
while str(events["/marker"].get(timeout=30).getType()) != "NodeDeleted":
    pass
seen = {path: told(path) for path in ("/once", "/persistent", "/recursive")}
there_now = [path for path in seen if java.exists(path, False)]
print("deleted during the break; heard after it:", seen, "nodes that are there:", there_now)
kazoo.create("/persistent", ephemeral=True)
later = events["/persistent"]
while str(later.get(timeout=30).getType()) != "NodeCreated":
    pass
print("the persistent watch is there: it hears of the next creation")
java.close()
kazoo.stop()
expected = {"/once": ["NodeDeleted"], "/persistent": [], "/recursive": []}
sys.exit(None if seen == expected and not there_now else "the behaviour has changed")
PYTHON
