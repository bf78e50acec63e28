#!/usr/bin/env bash
# The guess: whoever watches the node of a leader, /leader, hears NodeDeleted when that leader goes, before anything of
#   the next one, and also when the change falls into a break of the watcher's own connection.
# Instead: at the reconnection the server compares the watch with what is at the path now. If the node was deleted and
#   made again meanwhile, by another session, there is one event: NodeDataChanged. No event says that the node of the
#   first leader went.
# Why it matters: a candidate that waits for NodeDeleted takes this for a new word of the same leader. It has used up
#   its watch, and if it sets none for this event, it never stands again; a client that keeps what it knows of a leader
#   until NodeDeleted goes on with the old one's. A failover of ZooKeeper is both: a break for all, and the end of
#   sessions. Compare the node's czxid or owner at each event, whatever its type, and set the watch again.
# Seen: ZooKeeper 3.9.3 and its Java client (out of pyspark 4.0.1), driven by JPype 1.7.1; kazoo 2.11.0, 2026-11-30.
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


def first_event_of(change):
    """Watch the node of one leader; return the first event when it goes and another leader has made its own."""
    leaders = [KazooClient("{}:{}".format(*there), timeout=10) for _ in range(2)]
    for leader in leaders:
        leader.start(timeout=40)
    leaders[0].create("/leader", b"one", ephemeral=True)
    events = queue.Queue()
    owner = java.exists("/leader", watcher(events)).getEphemeralOwner()

    def hand_over():
        leaders[0].stop()
        leaders[1].create("/leader", b"two", ephemeral=True)

    change(hand_over)
    while str((event := events.get(timeout=30)).getType()) == "None":
        pass  # of the connection
    another = java.exists("/leader", False).getEphemeralOwner() != owner
    leaders[1].stop()
    return str(event.getType()), another


def in_a_break(hand_over):
    line.down()
    while str(states.get(timeout=30).getState()) != "Disconnected":
        pass
    hand_over()
    line.cut = False
    while str(states.get(timeout=30).getState()) != "SyncConnected":
        pass
    assert java.getSessionId() == session


seen = {"while connected": first_event_of(lambda hand_over: hand_over()), "in a break": first_event_of(in_a_break)}
for when, (event, another) in seen.items():
    print(f"another leader {when}: the first event is {event}; the node is another session's now: {another}")
java.close()
kazoo.stop()
expected = {"while connected": ("NodeDeleted", True), "in a break": ("NodeDataChanged", True)}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
