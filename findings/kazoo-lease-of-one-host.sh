#!/usr/bin/env bash
# The guess: kazoo's `NonBlockingLease` gives the lease to one client at a time; a second one gets False until the time
#   is over. So for `MultiNonBlockingLease(1, …)`.
# Instead: the holder is told by its identifier, and that is the host's name unless one is passed. Every process of the
#   host, and every thread, is the same holder: each one gets True, and renews the others' time. A session plays no
#   part in it: the node is no ephemeral one.
# Why it matters: the recipe is for "run this once, wherever", and the copies that run at once are often on one host
#   (workers of one server, an old process beside a new one). Pass an identifier with the process's id and a random
#   part.
# Seen: kazoo 2.11.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1), 2026-11-29. Needs Java.
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
cat >"$dir/take.py" <<'PYTHON'
import sys
from datetime import timedelta

from kazoo.client import KazooClient

client = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=10)
client.start(timeout=60)
names = {"identifier": sys.argv[2]} if sys.argv[2:] else {}
path = "/named" if names else "/lease"
single = client.NonBlockingLease(path, timedelta(minutes=10), **names)
one_of_one = client.MultiNonBlockingLease(1, path + "s", timedelta(minutes=10), **names)
print(bool(single), bool(one_of_one))
client.stop()
PYTHON
take() { timeout 90 "$python" "$dir/take.py" "$port" "$@" 2>>"$dir/log"; }
usual="$(take), $(take)"
named="$(take one), $(take two)"
"$python" -c 'from kazoo.version import __version__; print("kazoo", __version__)'
echo "two processes of one host, one after the other: NonBlockingLease, MultiNonBlockingLease(1): $usual"
echo "the same with two identifiers: $named"
[ "$usual / $named" = "True True, True True / True True, False False" ] || { echo "the behaviour has changed"; exit 1; }
