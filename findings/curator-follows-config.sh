#!/usr/bin/env bash
# The guess: a Curator client goes on connecting to the addresses that it was given: a load balancer, a tunnel, a mapped
#   port.
# Instead: once connected, it reads `/zookeeper/config` and takes the servers' own client addresses from there. Its
#   first connection stays where it is. From the next break on, the client connects past the address that it was given.
# Why it matters: where clients cannot reach the inner addresses (containers, a tunnel), or where these are the ports
#   without TLS, all works until the first break of the network. That client then never comes back, and its locks and
#   ephemeral nodes are gone until the process is started anew. Build the client with `ensembleTracker(false)`.
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

read -r port peers election < <("$python" -c 'import socket
taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(listener.getsockname()[1] for listener in taken))')
mkdir "$dir/data"
echo 1 >"$dir/data/myid"
echo "server.1=127.0.0.1:$peers:$election:participant;127.0.0.1:$port" >"$dir/members"
printf '%s\n' tickTime=500 initLimit=20 syncLimit=10 "dataDir=$dir/data" "dynamicConfigFile=$dir/members" \
  standaloneEnabled=false reconfigEnabled=true admin.enableServer=false >"$dir/zoo.cfg"
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

logging.disable()  # a server that is still starting
port = int(sys.argv[1])
kazoo = KazooClient(f"127.0.0.1:{port}", timeout=10)
kazoo.start(timeout=40)
kazoo.stop()
jpype.startJVM("-Xmx64m", "-Dslf4j.internal.verbosity=ERROR", classpath=[sys.argv[2]])
factory = jpype.JClass("org.apache.curator.framework.CuratorFrameworkFactory")
retry = jpype.JClass("org.apache.curator.retry.RetryOneTime")
seconds = jpype.JClass("java.util.concurrent.TimeUnit").SECONDS


@jpype.JImplements("org.apache.curator.framework.state.ConnectionStateListener")
class Listener:
    def __init__(self):
        self.suspended = threading.Event()

    @jpype.JOverride
    def stateChanged(self, client, state):
        if str(state) == "SUSPENDED":
            self.suspended.set()


class Balancer:
    """Carries connections to the server."""

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
            far = socket.create_connection(("127.0.0.1", port))
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


def play(tracks):
    """Whether the client uses the address that it was given, is connected while that is away, and when it is back."""
    balancer = Balancer()
    builder = factory.builder().connectString(balancer.address).sessionTimeoutMs(20_000).connectionTimeoutMs(3000)
    client = builder.retryPolicy(retry(100)).ensembleTracker(tracks).build()
    listener = Listener()
    client.getConnectionStateListenable().addListener(listener)
    client.start()
    client.blockUntilConnected()
    deadline = time.monotonic() + 8
    while (uses := str(client.getZookeeperClient().getCurrentConnectionString())) == balancer.address:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    balancer.stop()
    assert listener.suspended.wait(20)
    away = bool(client.blockUntilConnected(8, seconds))
    balancer.down = False
    back = bool(client.blockUntilConnected(20, seconds))
    print(f"ensembleTracker({tracks}): given {balancer.address}, uses {uses}")
    print(f"  connected while the given address is away: {away}, when it is back: {back}")
    client.close()
    return uses == balancer.address, away, back


followed = play(True) == (False, True, True) and play(False) == (True, False, True)
sys.exit(None if followed else "the behaviour has changed")
PYTHON
