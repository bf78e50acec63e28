#!/usr/bin/env bash
# The guess: kazoo's `Counter` writes with the version that it has read, so that `counter += 1` counts one, and what
#   `Queue.get()` takes out of the queue is what it returns.
# Instead: both repeat the whole step when the connection ends before the reply. The write that was done has changed
#   the version, so the counter reads anew and counts once more. The entry that was deleted is gone, so the queue
#   goes on to the next one. Nothing is raised or logged: the counter says 2, and one job is done by nobody.
# Why it matters: every failover of a ZooKeeper cluster loses replies. Where a number or a job must not be lost, use
#   a transaction with a node that tells what was done, or `LockingQueue`, whose entries stay until `consume()`.
# Seen: kazoo 2.11.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1), 2026-11-28. Needs Java.
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
pip install kazoo==2.11.0
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
timeout 100 "$python" - "$port" <<'PYTHON'
import logging
import socket
import struct
import sys
import threading

import kazoo.version
from kazoo.client import KazooClient

logging.disable()
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


proxy = Proxy()
client = KazooClient(proxy.hosts, timeout=10)
client.start(timeout=40)
print("kazoo", kazoo.version.__version__)

counter = client.Counter("/counter")
proxy.drops = SET_DATA
counter += 1
counted = counter.value
print("one `+= 1`, its reply lost:", counted)

queue = client.Queue("/queue")
queue.put(b"first job")
queue.put(b"second job")
proxy.drops = DELETE
got = queue.get()
left = len(queue)
print("get(), a reply lost:", got, "- entries left:", left)
print("replies lost:", len(lost))
client.stop()

expected = (counted, got, left, len(lost)) == (2, b"second job", 0, 2)
sys.exit(None if expected else "the behaviour has changed")
PYTHON
