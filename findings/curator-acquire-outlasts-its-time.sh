#!/usr/bin/env bash
# The guess: `mutex.acquire(1, SECONDS)` of a Curator InterProcessMutex answers False, or raises, within little more
#   than a second.
# Instead: the time counts for the waiting in the queue alone. While no server can be reached, the request waits for the
#   connection timeout, and again for each retry of the policy: with the default timeouts and the retry policy of the
#   first examples, more than half a minute.
# Why it matters: a web server that tries the lock "for a second at most" has all its threads in acquire() soon after
#   ZooKeeper is away, and pages that need no lock stop, too. Choose connectionTimeoutMs() and the retry policy by the
#   time that a caller has, or ask isConnected() first.
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
timeout 150 "$python" - "$port" "$dir/jars/*" <<'PYTHON'
import logging
import socket
import sys
import threading
import time

import jpype
from kazoo.client import KazooClient

logging.disable()  # a server that is still starting
server = "127.0.0.1", int(sys.argv[1])
hosts = "{}:{}".format(*server)
kazoo = KazooClient(hosts, timeout=10)
kazoo.start(timeout=40)
jpype.startJVM("-Xmx64m", "-Dslf4j.internal.verbosity=ERROR", classpath=[sys.argv[2]])
factory = jpype.JClass("org.apache.curator.framework.CuratorFrameworkFactory")
retries = jpype.JPackage("org.apache.curator").retry
mutex = jpype.JClass("org.apache.curator.framework.recipes.locks.InterProcessMutex")
seconds = jpype.JClass("java.util.concurrent.TimeUnit").SECONDS


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


def play(build):
    """How long an attempt of one second takes while the server is there, and how long and with what while it is not."""
    network = Network()
    client = build(network.address)
    client.start()
    client.blockUntilConnected()
    lock = mutex(client, "/lock")
    begun = time.monotonic()
    assert lock.acquire(1, seconds)
    there = time.monotonic() - begun
    lock.release()
    network.stop()
    while client.getZookeeperClient().isConnected():
        time.sleep(0.05)
    begun = time.monotonic()
    try:
        told = str(lock.acquire(1, seconds))
    except jpype.JException as error:
        told = str(error.getClass().getSimpleName())
    away = time.monotonic() - begun
    client.close()
    return there, away, told


there, away, told = play(lambda address: factory.newClient(address, retries.ExponentialBackoffRetry(1000, 3)))
print(f"acquire(1 s): {there:.1f} s with a server; without: {away:.0f} s, then {told}")
_, short, _ = play(lambda address: factory.newClient(address, 10_000, 500, retries.RetryOneTime(100)))
print(f"with a connection timeout of half a second and one retry: {short:.1f} s")
kazoo.stop()
expected = there < 5 and away > 20 and short < 10 and told == "ConnectionLossException"
sys.exit(None if expected else "the behaviour has changed")
PYTHON
