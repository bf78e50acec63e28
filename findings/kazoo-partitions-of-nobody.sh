#!/usr/bin/env bash
# The guess: two kazoo SetPartitioners, one for each worker thread, share the set between them, as two processes do.
# Instead: a member is its host's name and its process id unless one passes `identifier`. Two of one name both take the
#   first half, where one waits for the other's locks for ever. The second half is nobody's. One says `acquired`, the
#   other `allocating`. Nothing is raised or logged.
# Why it matters: half of the queues or shards are not worked on, and each worker looks healthy. It is the same for
#   containers that share a host's name, as the process id is 1 in each. Pass an identifier that is unique.
# Seen: kazoo 2.11.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1), 2026-11-30. Needs Java.
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
import io
import logging
import sys
import time

import kazoo.version
from kazoo.client import KazooClient

ITEMS = ["a", "b", "c", "d"]
logging.disable()  # a server that is still starting
hosts = f"127.0.0.1:{sys.argv[1]}"
clients = [KazooClient(hosts, timeout=10) for _ in range(2)]
for client in clients:
    client.start(timeout=40)
print("kazoo", kazoo.version.__version__)
log = io.StringIO()
logging.basicConfig(stream=log, level=logging.WARNING)
logging.disable(logging.NOTSET)


def play(path, identifiers):
    """The states of two partitioners that began together, and what each has."""
    members = [
        client.SetPartitioner(path, ITEMS, identifier=identifier, time_boundary=2)
        for client, identifier in zip(clients, identifiers)
    ]
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not all(member.acquired for member in members):
        for member in members:
            if member.release:
                member.release_set()
        time.sleep(0.1)
    states = sorted((member.state, list(member)) for member in members)
    for member in members:
        member.finish()
    return states


named = play("/named", ("first", "second"))
unnamed = play("/unnamed", (None, None))
logged = log.getvalue()
print("with identifiers:", named)
print("without:", unnamed, "- nobody has:", sorted(set(ITEMS) - {item for _, has in unnamed for item in has}))
print("logged:", logged or "nothing")
for client in clients:
    client.stop()
expected = [("ACQUIRED", ["a", "c"]), ("ACQUIRED", ["b", "d"])], [("ACQUIRED", ["a", "c"]), ("ALLOCATING", [])]
sys.exit(None if (named, unnamed) == expected and not logged else "the behaviour has changed")
PYTHON
