#!/usr/bin/env bash
# The guess: Curator's DistributedAtomicLong, SharedCount and SimpleDistributedQueue write with a version or delete by
#   name, so that a retry after a lost connection cannot do it twice, and their answers say what was done.
# Instead: the client's retry sends the write again, and what it meets is its own first one. increment() takes the
#   changed version for a rival's, counts two and says `succeeded`. compareAndSet() and trySetCount() say that they
#   failed, and the value is set. poll() passes over the entry that it has deleted itself: nobody has that job.
# Why it matters: every failover of a ZooKeeper cluster loses replies. "false" from compareAndSet(free, me) means that
#   somebody else has it, or oneself: read the value, with one's own id in it. Curator's setData().idempotent() does
#   that, but its recipes don't use it.
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
timeout 100 "$python" - "$port" "$dir/jars/*" <<'PYTHON'
import logging
import socket
import struct
import sys
import threading

import jpype
from kazoo.client import KazooClient

logging.disable()  # a server that is still starting
DELETE, SET_DATA = 2, 5
server = ("127.0.0.1", int(sys.argv[1]))
lost = []


class Proxy:
    """Passes frames on. Ends the connection in the place of one reply, to a request of ``drops``."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.drops = None
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client = self.listener.accept()[0]
            try:
                upstream = socket.create_connection(server)
            except OSError:  # it is still starting
                client.close()
                continue
            dropped = set()
            for ends in ((client, upstream, True), (upstream, client, False)):
                threading.Thread(target=self.pump, args=(*ends, dropped), daemon=True).start()

    def pump(self, source, target, asks, dropped):
        try:
            with source.makefile("rb") as stream:
                while len(head := stream.read(4)) == 4:
                    frame = stream.read(struct.unpack(">i", head)[0])
                    xid, opcode = struct.unpack(">ii", frame[:8])
                    if asks and xid > 0 and opcode == self.drops:
                        self.drops = None
                        dropped.add(xid)
                    elif not asks and xid in dropped:
                        lost.append(xid)
                        break
                    target.sendall(head + frame)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


kazoo = KazooClient("%s:%d" % server, timeout=10)
kazoo.start(timeout=40)
proxy = Proxy()
jpype.startJVM("-Xmx64m", "-Dslf4j.internal.verbosity=ERROR", classpath=[sys.argv[2]])
recipes = jpype.JPackage("org.apache.curator.framework.recipes")
retry = jpype.JClass("org.apache.curator.retry.RetryNTimes")
factory = jpype.JClass("org.apache.curator.framework.CuratorFrameworkFactory")
client = factory.newClient(proxy.hosts, 10_000, 10_000, retry(5, 200))
client.start()
client.blockUntilConnected()


def run(loses):
    """What the recipes answer, and what is true then, with the first reply to each write lost or not."""
    home = "/lost" if loses else "/kept"
    number = recipes.atomic.DistributedAtomicLong(client, f"{home}/number", retry(3, 10))
    number.initialize(0)
    proxy.drops = SET_DATA if loses else None
    added = number.increment()
    counted = bool(added.succeeded()), int(added.postValue())
    value = int(number.get().postValue())
    proxy.drops = SET_DATA if loses else None
    claimed = bool(number.compareAndSet(value, 100).succeeded()), int(number.get().postValue())

    count = recipes.shared.SharedCount(client, f"{home}/count", 0)
    count.start()
    proxy.drops = SET_DATA if loses else None
    tried = bool(count.trySetCount(count.getVersionedValue(), 7)), int(kazoo.get(f"{home}/count")[0][-1])
    count.close()

    queue = recipes.queue.SimpleDistributedQueue(client, f"{home}/queue")
    for job in (b"first job", b"second job"):
        queue.offer(job)
    proxy.drops = DELETE if loses else None
    got = bytes(queue.poll()), len(kazoo.get_children(f"{home}/queue"))
    print("replies lost:", len(lost))
    print("  increment() of 0, succeeded and value:", counted)
    print(f"  compareAndSet({value}, 100), succeeded and value:", claimed)
    print("  trySetCount(7), succeeded and value:", tried)
    print("  poll(), entries left:", got)
    return counted, claimed, tried, got


kept = run(False)
seen = run(True)
client.close()
kazoo.stop()
usual = (True, 1), (True, 100), (True, 7), (b"first job", 1)
expected = (True, 2), (False, 100), (False, 7), (b"second job", 0)
sys.exit(None if (kept, seen, len(lost)) == (usual, expected, 4) else "the behaviour has changed")
PYTHON
