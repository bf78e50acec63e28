#!/usr/bin/env bash
# The guess: two Curator clients that make a PersistentNode (or GroupMember) of one path: the second waits until the
#   first one's ephemeral node is gone, or is refused.
# Instead: "the node exists" is taken for "my node". The second writes its data over the first one's, and
#   waitForInitialCreate() says True to it. Nothing tells the first, whose getData() still has its own data. When the
#   second closes, it deletes the first one's node; and a node that outlived its process by a session's time-out is
#   taken over, vanishes with its session and is made again, so that watchers see the living process go.
# Why it matters: the node looks like a claim of a name ("there is one worker-1"), and each of two processes is told
#   that it has it. Compare ephemeralOwner with the own session, or hold a lock of that name.
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
import sys
import time

import jpype
from kazoo.client import KazooClient

logging.disable()  # a server that is still starting
hosts, name = sys.argv[1], "/members/worker-1"
kazoo = KazooClient(hosts, timeout=10)
kazoo.start(timeout=40)
jpype.startJVM("-Xmx64m", "-Dslf4j.internal.verbosity=ERROR", classpath=[sys.argv[2]])
nodes = jpype.JPackage("org.apache.curator.framework.recipes").nodes
factory = jpype.JClass("org.apache.curator.framework.CuratorFrameworkFactory")
retry = jpype.JClass("org.apache.curator.retry.RetryOneTime")
mode = jpype.JClass("org.apache.zookeeper.CreateMode").EPHEMERAL
seconds = jpype.JClass("java.util.concurrent.TimeUnit").SECONDS
gone = []


def curator():
    client = factory.newClient(hosts, 10_000, 10_000, retry(100))
    client.start()
    client.blockUntilConnected()
    return client


def session(client):
    return int(client.getZookeeperClient().getZooKeeper().getSessionId())


def watch(event):
    gone.append(event.type)
    kazoo.exists(name, watch)


def there():
    deadline = time.monotonic() + 20
    while not kazoo.exists(name) and time.monotonic() < deadline:
        time.sleep(0.05)
    data, stat = kazoo.get(name)
    return data, stat.ephemeralOwner


def start(client, data):
    node = nodes.PersistentNode(client, mode, False, name, data)
    node.start()
    return node, bool(node.waitForInitialCreate(10, seconds))


first, second = curator(), curator()
owners = {session(first): "first", session(second): "second"}
node, told = start(first, b"host-a")
kazoo.exists(name, watch)
other, other_told = start(second, b"host-b")
data, owner = there()
kept = bytes(node.getData())
print("both told that it is theirs:", told and other_told)
print(f"the node: {data}, of the {owners[owner]} one's session; the first one's getData(): {kept}")
other.close()
time.sleep(1)
again, _ = there()
print("the second closes:", gone, "- then:", again)
shared = told, other_told, data, owners[owner], kept, again

gone.clear()
ghost = KazooClient(hosts, timeout=10)  # of a process that has ended without a word
ghost.start(timeout=20)
node.close()
while kazoo.exists(name):
    time.sleep(0.05)
ghost.create(name, b"old", ephemeral=True)
gone.clear()
node, told = start(second, b"new")
data, owner = there()
before = told, data, owner == ghost.client_id[0]
ghost.stop()  # its session ends
time.sleep(1)
after, owner = there()
print("after a restart: told, data, of the old session:", before)
print("the old session ends:", gone, "- then:", after, "of the", owners[owner])
restarted = before, "DELETED" in gone, after, owners[owner]
for client in (first, second):
    client.close()
kazoo.stop()
expected = (True, True, b"host-b", "first", b"host-a", b"host-a"), ((True, b"new", True), True, b"new", "second")
sys.exit(None if (shared, restarted) == expected else "the behaviour has changed")
PYTHON
