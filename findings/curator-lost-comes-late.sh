#!/usr/bin/env bash
# The guess: with Curator's SessionConnectionStateErrorPolicy ("tolerate SUSPENDED, stop at LOST") a LeaderLatch stops
#   leading no later than its session ends, as LOST means that the session is over.
# Instead: the client says SUSPENDED after two thirds of the timeout without an answer, and counts a whole timeout from
#   there until it says LOST. The server ended the session after one timeout. Whenever the network goes silent,
#   hasLeadership() is true in two processes for two thirds of a timeout.
# Why it matters: the policy is what one sets so that a short break costs no leadership, and frameworks have a switch
#   for it. Set simulatedSessionExpirationPercent() to 20, and LOST comes in time; or keep to the default policy, which
#   stops at SUSPENDED.
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
timeout 120 "$python" - "$port" "$dir/jars/*" <<'PYTHON'
import logging
import socket
import sys
import threading
import time

import jpype
from kazoo.client import KazooClient

TIMEOUT = 8
logging.disable()  # a server that is still starting
server = "127.0.0.1", int(sys.argv[1])
kazoo = KazooClient("{}:{}".format(*server), timeout=10)
kazoo.start(timeout=40)
kazoo.stop()
jpype.startJVM("-Xmx64m", "-Dslf4j.internal.verbosity=ERROR", classpath=[sys.argv[2]])
factory = jpype.JClass("org.apache.curator.framework.CuratorFrameworkFactory")
retry = jpype.JClass("org.apache.curator.retry.RetryOneTime")
policy = jpype.JClass("org.apache.curator.framework.state.SessionConnectionStateErrorPolicy")
latch = jpype.JClass("org.apache.curator.framework.recipes.leader.LeaderLatch")


class Network:
    """Carries bytes to the server and back, until it is cut."""

    def __init__(self):
        self.cut = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:{1}".format(*self.listener.getsockname())
        self.start(self.accept)

    def start(self, function, *arguments):
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def accept(self):
        while True:
            near, far = self.listener.accept()[0], socket.create_connection(server)
            self.start(self.carry, near, far)
            self.start(self.carry, far, near)

    def carry(self, source, target):
        while data := source.recv(65536):
            if not self.cut.is_set():  # else it is lost, and no end of the connection is told
                target.sendall(data)


def curator(address, percent):
    client = (
        factory.builder()
        .connectString(address)
        .sessionTimeoutMs(TIMEOUT * 1000)
        .connectionTimeoutMs(TIMEOUT * 1000)
        .retryPolicy(retry(100))
        .connectionStateErrorPolicy(policy())
        .simulatedSessionExpirationPercent(percent)
        .build()
    )
    client.start()
    client.blockUntilConnected()
    return client


def until(condition, begun):
    while not condition():
        assert time.monotonic() < begun + 4 * TIMEOUT
        time.sleep(0.02)
    return time.monotonic() - begun


def play(percent):
    """Seconds from the cut until the next one leads, and until the old one no longer does."""
    network = Network()
    clients = curator(network.address, percent), curator("{}:{}".format(*server), percent)
    old, new = (latch(client, f"/leader-{percent}") for client in clients)
    old.start()
    until(old.hasLeadership, time.monotonic())
    new.start()
    until(lambda: old.getParticipants().size() == 2, time.monotonic())
    network.cut.set()
    begun = time.monotonic()
    ends = []
    watcher = threading.Thread(target=lambda: ends.append(until(lambda: not old.hasLeadership(), begun)), daemon=True)
    watcher.start()
    begins = until(new.hasLeadership, begun)
    watcher.join()
    print(f"{percent} %: the next one leads after {begins:.1f} s, the old one until {ends[0]:.1f} s after the cut")
    new.close()
    for client in clients:
        client.close()
    return begins, ends[0]


begins, ends = play(100)  # the default
two = ends - begins
begins, ends = play(20)
print(f"timeout {TIMEOUT} s; both led for {two:.1f} s by default")
sys.exit(None if two > 1 and ends < begins else "the behaviour has changed")
PYTHON
