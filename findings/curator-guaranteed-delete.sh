#!/usr/bin/env bash
# The guess: `delete().guaranteed()` of Curator deletes the node that was there when one called it, or raises.
# Instead: it raises, and the client keeps the path and deletes whatever is there when it is connected again: in another
#   session, with any version, minutes later. The next owner of that name loses its node.
# Why it matters: Curator's own locks delete like this, but their names never recur. A process that gives up a fixed
#   name, "/owner", during a break of the network, hears an error and goes on, ends somebody else's ownership when the
#   network is back. Both did what they should. Leave the node to the end of the session, delete with a version, or
#   close the client.
# Seen: Curator 5.7.1 and ZooKeeper 3.9.3 (out of pyspark 4.0.1), driven by JPype 1.7.1; kazoo 2.11.0, 2026-11-30.
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
  '*/jars/zookeeper-*' '*/jars/netty-*' '*/jars/slf4j-api-*' '*/jars/snappy-java-*' '*/jars/metrics-core-*' \
  '*/jars/curator-*' '*/jars/guava-*' '*/jars/failureaccess-*'

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf '%s\n' tickTime=500 "dataDir=$dir/data" "clientPort=$port" clientPortAddress=127.0.0.1 \
  admin.enableServer=false >"$dir/zoo.cfg"
java -Xmx128m -cp "$dir/jars/*" \
  org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/server.log" 2>&1 &
server=$!

basename -a "$dir"/jars/zookeeper-[0-9]* "$dir"/jars/curator-recipes-*
timeout 100 "$python" - "$port" "$dir/jars/*" <<'PYTHON'
import logging
import socket
import sys
import threading
import time

import jpype
from kazoo.client import KazooClient

TIMEOUT = 4
logging.disable()  # a server that is still starting
server = "127.0.0.1", int(sys.argv[1])
hosts = "{}:{}".format(*server)
kazoo = KazooClient(hosts, timeout=10)
kazoo.start(timeout=40)
jpype.startJVM("-Xmx64m", "-Dslf4j.internal.verbosity=ERROR", classpath=[sys.argv[2]])
factory = jpype.JClass("org.apache.curator.framework.CuratorFrameworkFactory")
retry = jpype.JClass("org.apache.curator.retry.RetryOneTime")
mode = jpype.JClass("org.apache.zookeeper.CreateMode").EPHEMERAL


class Network:
    """Carries bytes to the server and back; while it is down, it closes every connection."""

    def __init__(self):
        self.down = False
        self.sockets = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:{1}".format(*self.listener.getsockname())
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near = self.listener.accept()[0]
            if self.down:
                near.close()
                continue
            far = socket.create_connection(server)
            self.sockets += near, far
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=ends, daemon=True).start()

    def carry(self, source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        self.close(source, target)

    @staticmethod
    def close(*sockets):
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def stop(self):
        self.down = True
        self.close(*self.sockets)


def curator(address):
    client = factory.newClient(address, TIMEOUT * 1000, 2000, retry(100))
    client.start()
    client.blockUntilConnected()
    return client


def play(deletes):
    """What the old owner hears, and what happens to the next owner's node when the network is back."""
    network = Network()
    old = curator(network.address)
    old.create().withMode(mode).forPath("/owner", b"old")
    network.stop()
    try:
        deletes(old).forPath("/owner")
        told = None
    except jpype.JException as error:
        told = error.getClass().getSimpleName()
    while kazoo.exists("/owner"):  # the old owner's session ends
        time.sleep(0.05)
    kazoo.create("/owner", b"next", ephemeral=True)
    gone = threading.Event()
    kazoo.exists("/owner", watch=lambda event: gone.set())
    network.down = False
    old.blockUntilConnected()
    taken = gone.wait(8)
    if not taken:
        kazoo.delete("/owner")
    old.close()
    return str(told), taken


plain = play(lambda client: client.delete())
guaranteed = play(lambda client: client.delete().guaranteed())
for how, (told, taken) in (("delete()", plain), ("delete().guaranteed()", guaranteed)):
    print(f"{how}: the caller hears {told}; the next owner's node is deleted: {taken}")
kazoo.stop()
heard = all(told in ("ConnectionLossException", "SessionExpiredException") for told, _ in (plain, guaranteed))
sys.exit(None if heard and not plain[1] and guaranteed[1] else "the behaviour has changed")
PYTHON
