#!/usr/bin/env bash
# The guess: kazoo's ChildrenWatch calls the function whenever the children change, for as long as the client lives,
#   as DataWatch does: also if the node is deleted and created anew, or is created later.
# Instead: the first time the node is not there, the watch ends for good and in silence: no call, no exception, no
#   line in the log. Begun before the node exists (its docstring says that it must exist), it never calls. DataWatch
#   goes on in both cases.
# Why it matters: parents come and go: Curator makes them containers, which ZooKeeper removes when the last child has
#   gone. A list of members, or of who waits for a lock, is then frozen at "nobody" until the client is started anew.
#   Keep a child in the node, or have a DataWatch of the node that begins a new ChildrenWatch.
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
timeout 60 "$python" - "$port" <<'PYTHON'
import io
import logging
import sys
import time

import kazoo.version
from kazoo.client import KazooClient

logging.disable()  # a server that is still starting
hosts = f"127.0.0.1:{sys.argv[1]}"
watching, other = KazooClient(hosts, timeout=10), KazooClient(hosts, timeout=10)
for client in (watching, other):
    client.start(timeout=40)
print("kazoo", kazoo.version.__version__)
log = io.StringIO()
logging.basicConfig(stream=log, level=logging.INFO)
logging.disable(logging.NOTSET)

other.create("/members")
other.create("/members/one")
heard = {way: [] for way in ("children", "children, begun early", "data", "data, begun early")}
watching.ChildrenWatch("/members", heard["children"].append)
watching.ChildrenWatch("/later", heard["children, begun early"].append)
watching.DataWatch("/members", lambda data, stat: heard["data"].append(data))
watching.DataWatch("/later", lambda data, stat: heard["data, begun early"].append(data))


def wait_for(way, count):
    deadline = time.monotonic() + 20
    while len(heard[way]) < count and time.monotonic() < deadline:
        time.sleep(0.02)


other.delete("/members/one")
wait_for("children", 2)
other.delete("/members")  # ZooKeeper does this itself with an empty container
wait_for("data", 2)
for path in ("/members", "/later"):
    other.create(path, b"again")
    other.create(f"{path}/two")
wait_for("data", 3)
wait_for("data, begun early", 2)
time.sleep(1)
other.create("/members/three")
time.sleep(1)
print("the children now:", other.get_children("/members"), other.get_children("/later"))
for way, calls in heard.items():
    print(f"{way}: {calls}")
logged = log.getvalue()
print("logged:", logged or "nothing")
for client in (watching, other):
    client.stop()
expected = {
    "children": [["one"], []],
    "children, begun early": [],
    "data": [b"", None, b"again"],
    "data, begun early": [None, b"again"],
}
sys.exit(None if heard == expected and not logged else "the behaviour has changed")
PYTHON
