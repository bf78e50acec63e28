#!/usr/bin/env bash
# The guess: a node's czxid is its own; after a DELETED event the node is gone, after CREATED it is there.
# Instead: all nodes that one multi creates have the same czxid, and so has every change of it the same mzxid.
#   A multi that deletes a node and creates it anew fires DELETED alone (a one-time watch), and the node is there;
#   one that creates and deletes fires CREATED alone, and it is not there.
# Why it matters: a czxid alone is no unique fencing token, nor does it order two contenders; and an event says
#   "look again", not what one will see: whoever takes DELETED for "my turn" has to know that names never recur.
# Seen: ZooKeeper 3.9.3 (out of pyspark 4.0.1), kazoo 2.11.0, 2026-11-27. Needs Java.
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
import logging
import queue
import sys

import kazoo.version
from kazoo.client import KazooClient

logging.disable()  # a server that is still starting
client = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=10)
client.start(timeout=40)
print("kazoo", kazoo.version.__version__)


def events(path):
    """The data watch's and the existence watch's next events, until a marker's event, which comes after them."""
    seen = queue.Queue()
    client.exists(path, watch=lambda event: seen.put(event.type))
    client.create("/marker")
    client.exists("/marker", watch=lambda event: seen.put("end"))
    yield
    client.delete("/marker")
    yield list(iter(lambda: seen.get(timeout=20), "end"))


def multi(*operations):
    transaction = client.transaction()
    for method, arguments in operations:
        getattr(transaction, method)(**arguments)
    return transaction.commit()


client.ensure_path("/lock")
contender = ("create", {"path": "/lock/c-", "ephemeral": True, "sequence": True})
paths = multi(contender, contender)
czxids = [client.exists(path).czxid for path in paths]
print("two contenders of one multi:", paths, "czxids", czxids)

client.create("/again")
watch = events("/again")
next(watch)
multi(("delete", {"path": "/again"}), ("create", {"path": "/again"}))
again = next(watch), client.exists("/again") is not None
print("delete + create: events", again[0], "and the node exists:", again[1])

watch = events("/brief")
next(watch)
multi(("create", {"path": "/brief"}), ("delete", {"path": "/brief"}))
brief = next(watch), client.exists("/brief") is not None
print("create + delete: events", brief[0], "and the node exists:", brief[1])
client.stop()

expected = czxids[0] == czxids[1] and again == (["DELETED"], True) and brief == (["CREATED"], False)
sys.exit(None if expected else "the behaviour has changed")
PYTHON
