#!/usr/bin/env bash
# The guess: the block `with client.transaction() as t:` raises where a check in it fails, as a database's
#   transaction does.
# Instead: leaving the block sends the transaction and drops its results. Nothing is written, nothing is raised.
#   `commit()` does not raise either: it returns the errors as items of a list, and an exception is truthy.
# Why it matters: a fenced write (`check` of the lock's node or of a version, then `set_data`) that the server
#   refused looks like one that was done. Call `commit()` and look at every item.
# Seen: kazoo 2.11.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1), 2026-11-27. Needs Java.
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
import sys

import kazoo.version
from kazoo.client import KazooClient

logging.disable()  # a server that is still starting
client = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=10)
client.start(timeout=40)
print("kazoo", kazoo.version.__version__)

client.create("/fence", b"1")
client.create("/data", b"of the new holder")
stale = client.set("/fence", b"2").version - 1

raised = None
try:
    with client.transaction() as transaction:
        transaction.check("/fence", stale)
        transaction.set_data("/data", b"of the stale holder")
except Exception as error:
    raised = error
data = client.get("/data")[0]
print("the with block raised:", raised)
print("data after it:", data)

transaction = client.transaction()
transaction.check("/fence", stale)
transaction.set_data("/data", b"of the stale holder")
results = transaction.commit()
print("commit() returned:", results, "all() of it:", all(results))
client.stop()

expected = (
    raised is None
    and data == b"of the new holder"
    and [type(item).__name__ for item in results] == ["BadVersionError", "RuntimeInconsistency"]
)
sys.exit(None if expected else "the behaviour has changed")
PYTHON
