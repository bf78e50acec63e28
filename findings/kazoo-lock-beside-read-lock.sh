#!/usr/bin/env bash
# The guess: on one path a plain `Lock` and a `ReadLock` of kazoo exclude each other, as a plain `Lock` and a
#   `WriteLock` do, and as a `ReadLock` waits for a plain `Lock`.
# Instead: a plain `Lock` does not see readers. It is granted at once while they are inside. A reader that comes then
#   waits for it, so whoever tries it in that order sees it work.
# Why it matters: one part of a system, or last month's version during a rolling update, uses `Lock` where another one
#   uses `ReadLock` and `WriteLock`. It writes while others read, and nothing is raised. Use `WriteLock` in place of
#   `Lock` on such a path, everywhere, before the first reader comes.
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
import itertools
import logging
import sys

import kazoo.version
from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

logging.disable()  # a server that is still starting
clients = [KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=20) for _ in range(2)]
for client in clients:
    client.start(timeout=40)
print("kazoo", kazoo.version.__version__)


def both(first, second):
    """Whether two locks of one path are held at once, if they are taken in this order."""
    path = f"/{first}-{second}"
    one, two = (getattr(client, kind)(path) for client, kind in zip(clients, (first, second)))
    assert one.acquire(timeout=10)
    try:
        return two.acquire(timeout=2)
    except LockTimeout:
        return False
    finally:
        for lock in (one, two):
            lock.release()


kinds = ("Lock", "ReadLock", "WriteLock")
beside = [pair for pair in itertools.product(kinds, kinds) if both(*pair)]
print("held at once:", *(f"{second} after {first}" for first, second in beside), sep="\n  ")
for client in clients:
    client.stop()
sys.exit(None if beside == [("ReadLock", "Lock"), ("ReadLock", "ReadLock")] else "the behaviour has changed")
PYTHON
