#!/usr/bin/env bash
# The guess: `wchp` and `wchc` list all watches of a server, and `wchs` counts them.
# Instead: they know those on data and existence alone. No watch on children is in them; `zk_watch_count` of `mntr`
#   counts both kinds.
# Why it matters: who looks for the waiters of a path, or for what leaks watches, does not see `getChildren` watches:
#   those of caches, of queues, and of libraries that watch a whole directory. The two counts differ, and both are
#   right.
# Seen: ZooKeeper 3.9.3 (out of pyspark 4.0.1), kazoo 2.11.0, 2026-11-28. Needs Java.
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
  admin.enableServer=false "4lw.commands.whitelist=*" >"$dir/zoo.cfg"
java -Xmx128m -cp "$dir/jars/*" \
  org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/server.log" 2>&1 &
server=$!

basename "$dir"/jars/zookeeper-[0-9]*
timeout 100 "$python" - "$port" <<'PYTHON'
import logging
import socket
import sys

import kazoo.version
from kazoo.client import KazooClient

logging.disable()
port = int(sys.argv[1])


def command(word):
    with socket.create_connection(("127.0.0.1", port)) as asks:
        asks.sendall(word)
        return b"".join(iter(lambda: asks.recv(4096), b"")).decode()


client = KazooClient(f"127.0.0.1:{port}", timeout=10)
client.start(timeout=40)
print("kazoo", kazoo.version.__version__)
client.create("/job", b"")
client.create("/jobs", b"")
client.get("/job", watch=print)
client.exists("/next", watch=print)
client.get_children("/jobs", watch=print)

by_path = command(b"wchp")
summary = command(b"wchs")
counted = dict(line.split("\t") for line in command(b"mntr").splitlines())["zk_watch_count"]
print("wchp:", by_path.split())
print("wchs:", summary.split("\n")[1])
print("mntr: zk_watch_count", counted)
client.stop()

expected = (
    "/jobs" not in by_path.split()
    and {"/job", "/next"} <= set(by_path.split())
    and "Total watches:2" in summary
    and counted == "3"
)
sys.exit(None if expected else "the behaviour has changed")
PYTHON
