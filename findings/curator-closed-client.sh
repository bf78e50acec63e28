#!/usr/bin/env bash
# The guess: who closes a CuratorFramework gives up what it held and learns of it: LeaderLatch.hasLeadership() is False,
#   notLeader() is called, a LeaderSelector's takeLeadership() is interrupted, as after LOST.
# Instead: close() ends the session at once, so that the next one leads; but it empties the list of listeners and sends
#   no LOST. The closed client's latch stays leader for ever and its takeLeadership() runs on beside the other one's;
#   a mutex says isAcquiredInThisProcess(). notLeader() is never called: the latch's own close() now raises an error.
# Why it matters: frameworks close their parts in an order of their own while work is still ending. Close latches and
#   selectors first, wait for their work, and close the client last. (kazoo's `stop()` does tell LOST.)
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
import threading
import time

import jpype
from kazoo.client import KazooClient

logging.disable()  # a server that is still starting
hosts = sys.argv[1]
kazoo = KazooClient(hosts, timeout=10)
kazoo.start(timeout=40)
jpype.startJVM("-Xmx64m", "-Dslf4j.internal.verbosity=ERROR", classpath=[sys.argv[2]])
recipes = jpype.JPackage("org.apache.curator.framework.recipes")
factory = jpype.JClass("org.apache.curator.framework.CuratorFrameworkFactory")
retry = jpype.JClass("org.apache.curator.retry.RetryOneTime")
told = {"first": [], "second": []}


def eventually(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


class Leader:
    """A LeaderSelectorListener that leads until it is interrupted, or told to end."""

    def __init__(self):
        self.end = threading.Event()
        self.leads = self.interrupted = False

    def takeLeadership(self, client):
        self.leads = True
        try:
            while not self.end.is_set():
                jpype.java.lang.Thread.sleep(50)
        except jpype.java.lang.InterruptedException:
            self.interrupted = True
        self.leads = False

    def stateChanged(self, client, state):
        pass


def candidate(name):
    client = factory.newClient(hosts, 10_000, 10_000, retry(100))
    client.start()
    client.blockUntilConnected()
    client.getConnectionStateListenable().addListener(
        jpype.JProxy(
            "org.apache.curator.framework.state.ConnectionStateListener",
            {"stateChanged": lambda client, state: told[name].append(str(state))},
        )
    )
    latch = recipes.leader.LeaderLatch(client, "/latch")
    calls = {call: (lambda call=call: told[name].append(call)) for call in ("isLeader", "notLeader")}
    latch.addListener(jpype.JProxy("org.apache.curator.framework.recipes.leader.LeaderLatchListener", calls))
    latch.start()
    leader = Leader()
    listener = jpype.JProxy("org.apache.curator.framework.recipes.leader.LeaderSelectorListener", inst=leader)
    selector = recipes.leader.LeaderSelector(client, "/selector", listener)
    selector.start()
    return client, latch, leader


client, latch, leader = candidate("first")
assert eventually(lambda: latch.hasLeadership() and leader.leads)
mutex = recipes.locks.InterProcessMutex(client, "/mutex")
mutex.acquire()
second_client, second_latch, second_leader = candidate("second")
time.sleep(1)
assert not second_latch.hasLeadership() and not second_leader.leads

client.close()
assert eventually(lambda: second_latch.hasLeadership() and second_leader.leads)
time.sleep(2)
both = bool(latch.hasLeadership()) and bool(second_latch.hasLeadership())
run = leader.leads and second_leader.leads and not leader.interrupted
claims, nodes = bool(mutex.isAcquiredInThisProcess()), len(kazoo.get_children("/mutex"))
print("the first client is closed; both latches lead:", both, "- both takeLeadership() run:", run)
print(f"the mutex says that it is acquired: {claims}; its nodes in ZooKeeper: {nodes}")
try:
    latch.close()
    closing = "no error"
except jpype.java.io.IOException:
    closing = "an error"
time.sleep(1)
heard = list(told["first"])
print("then the latch is closed:", closing, "- all that the first was told:", heard)

states = []
kazoo.add_listener(lambda state: states.append(str(state)))
kazoo.stop()
print("kazoo's stop() tells:", states)
leader.end.set()
second_leader.end.set()
second_client.close()
seen = both, run, claims, nodes, heard, closing, states
expected = True, True, True, 0, ["isLeader"], "an error", ["LOST"]
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
