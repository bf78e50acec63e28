#!/usr/bin/env bash
# The guess: after Curator has told LOST and RECONNECTED, a new `acquire()` of an InterProcessMutex asks ZooKeeper: it
#   waits for whoever has the lock by now.
# Instead: the mutex is re-entrant by a count in the process, and the loss of the session does not reset that count.
#   In the thread that held the lock, `acquire()` returns True at once, without a word to ZooKeeper, beside the new
#   holder; isAcquiredInThisProcess() and isOwnedByCurrentThread() say True, and release() raises nothing.
# Why it matters: "on LOST, stop; on RECONNECTED, acquire again" is what one writes, and it makes two holders. Release
#   first until isOwnedByCurrentThread() is False, or use a new InterProcessMutex, or one that is not re-entrant
#   (InterProcessSemaphoreMutex).
# Seen: Curator 5.7.1 and ZooKeeper 3.9.3 (out of pyspark 4.0.1), driven by JPype 1.7.1; kazoo 2.11.0, 2026-11-28.
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
timeout 100 "$python" - "127.0.0.1:$port" "$dir/jars/*" <<'PYTHON'
import logging
import queue
import sys
import time

import jpype
from kazoo.client import KazooClient

logging.disable()  # a server that is still starting
hosts = sys.argv[1]
kazoo = KazooClient(hosts, timeout=10)
kazoo.start(timeout=40)
jpype.startJVM("-Xmx64m", "-Dslf4j.internal.verbosity=ERROR", classpath=[sys.argv[2]])
locks = jpype.JPackage("org.apache.curator.framework.recipes.locks")
factory = jpype.JClass("org.apache.curator.framework.CuratorFrameworkFactory")
retry = jpype.JClass("org.apache.curator.retry.RetryOneTime")
seconds = jpype.JClass("java.util.concurrent.TimeUnit").SECONDS


def curator():
    client = factory.newClient(hosts, 10_000, 10_000, retry(100))
    client.start()
    client.blockUntilConnected()
    return client


first, second = curator(), curator()
states = queue.Queue()
first.getConnectionStateListenable().addListener(
    jpype.JProxy(
        "org.apache.curator.framework.state.ConnectionStateListener",
        {"stateChanged": lambda client, state: states.put(str(state))},
    )
)


def session(client):
    zookeeper = client.getZookeeperClient().getZooKeeper()
    return int(zookeeper.getSessionId()), bytes(zookeeper.getSessionPasswd())


def lose_session(client):
    """End the client's session at the server: from another connection, as its time-out would."""
    lost = session(client)
    other = KazooClient(hosts, client_id=lost, timeout=10)
    other.start(timeout=20)
    other.stop()
    told = []
    while "RECONNECTED" not in told:
        told.append(states.get(timeout=30))
    assert session(client)[0] != lost[0]
    return told


def after_loss(kind):
    mutex, others = (getattr(locks, kind)(client, f"/{kind}") for client in (first, second))
    assert mutex.acquire(5, seconds)
    assert not others.acquire(0, seconds)
    told = lose_session(first)
    assert others.acquire(5, seconds)
    claims = bool(mutex.isAcquiredInThisProcess())
    start = time.monotonic()
    again = bool(mutex.acquire(1, seconds))
    waited = time.monotonic() - start > 0.9
    nodes = kazoo.get_children(f"/{kind}/leases" if "Semaphore" in kind else f"/{kind}")
    print(f"{kind}: told {told}; the other has it, and this one says so, too: {claims}")
    print(f"  acquire() again: {again}, {'after waiting' if waited else 'at once'}; holders in ZooKeeper: {len(nodes)}")
    return claims, again, waited, len(nodes)


mutex = after_loss("InterProcessMutex")
semaphore = after_loss("InterProcessSemaphoreMutex")
for client in (first, second):
    client.close()
kazoo.stop()
expected = (True, True, False, 1)
sys.exit(None if mutex == expected and not semaphore[1] else "the behaviour has changed")
PYTHON
