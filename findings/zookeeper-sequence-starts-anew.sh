#!/usr/bin/env bash
# The guess: the number at the end of a sequential node (lock-0000000007) grows for ever, so it is a fencing token.
# Instead: it is the count of children that the *parent* has had, and parents come and go. Curator's recipes make them
#   as containers, and a TTL node is the usual choice of others who want no litter: the server deletes both when they
#   have been empty for a while (a minute, with the defaults), and the next lock is lock-0000000000 again. Whoever
#   deletes empty parents by hand does the same. The node's czxid goes on growing.
# Why it matters: a resource that has seen token 7 refuses all new holders after the first idle minute; or it lets a
#   late holder with 7 write after the new one with 0. Use the czxid, and one node for it.
# Seen: ZooKeeper 3.9.3 (out of pyspark 4.0.1), kazoo 2.11.0 (it has no container nodes; the script sends the request),
#   2026-11-29. Needs Java.
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
java -Xmx128m -Dznode.container.checkIntervalMs=1000 -Dzookeeper.extendedTypesEnabled=true -cp "$dir/jars/*" \
  org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/server.log" 2>&1 &
server=$!

basename "$dir"/jars/zookeeper-[0-9]*
timeout 150 "$python" - "$port" <<'PYTHON'
import logging
import struct
import sys
import time

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError
from kazoo.protocol.serialization import Create
from kazoo.security import OPEN_ACL_UNSAFE
from kazoo.version import __version__

logging.disable()  # a server that is still starting
print("kazoo", __version__)
client = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=20)
client.start(timeout=60)


class CreateContainer(Create):
    """ZooKeeper's request 19, which Curator sends for the parents of its recipes."""

    type = 19
    flags = 4


class CreateTTL(Create):
    """Request 21: deleted when it has had no children and no write for so long."""

    type = 21
    flags = 5

    def serialize(self):
        return super().serialize() + struct.pack("!q", 1000)


def plain(path):
    client.create(path)


def special(kind):
    def create(path):
        result = client.handler.async_result()
        client._call(kind(path, b"", OPEN_ACL_UNSAFE, kind.flags), result)
        result.get(20)

    return create


def lock(create, parent):
    """Takes and releases a lock; the number in its name, and its czxid."""
    try:
        create(parent)
    except NodeExistsError:
        pass
    path, stat = client.create(f"{parent}/lock-", ephemeral=True, sequence=True, include_data=True)
    client.delete(path)
    return int(path[-10:]), stat.czxid


def tokens(name, create):
    """The numbers of three locks in a row and of one after a pause; and whether all czxids grew."""
    row = [lock(create, name) for _ in range(3)]
    deadline = time.monotonic() + (20 if create is not plain else 6)
    while client.exists(name) and time.monotonic() < deadline:
        time.sleep(0.2)
    row.append(lock(create, name))
    czxids = [czxid for _, czxid in row]
    return [number for number, _ in row], czxids == sorted(czxids)


kinds = {"plain": plain, "container": special(CreateContainer), "TTL": special(CreateTTL)}
seen = {name: tokens(f"/{name}", create) for name, create in kinds.items()}
client.stop()
for name, (numbers, grow) in seen.items():
    print(f"{name} parent: numbers of three locks and of one after a pause: {numbers}, czxids grow: {grow}")
expected = {"plain": ([0, 1, 2, 3], True), "container": ([0, 1, 2, 0], True), "TTL": ([0, 1, 2, 0], True)}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
