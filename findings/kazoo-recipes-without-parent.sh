#!/usr/bin/env bash
# The guess: a kazoo `Lock` makes the nodes above its own when it needs them: it does so at its first `acquire()`, and
#   `ensure_path` is what it calls.
# Instead: each recipe object does that once, and notes that it is done. If the path is deleted later, the object raises
#   NoNodeError at each call, for as long as it lives; a new object of the same path works. ZooKeeper itself deletes the
#   path if it is a container, as Curator's recipes make it, soon after the last node below it has gone.
# Why it matters: Java and Python share a path, or somebody tidies up empty ones. After a quiet minute each worker that
#   keeps its lock, semaphore, queue or party object raises at every job until it is started anew. Make the object for
#   each use, or make it again after a NoNodeError.
# Seen: kazoo 2.11.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1) with a check of containers each second, 2026-11-30. Needs
#   Java. kazoo has no container nodes; the script sends the request.
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
java -Xmx128m -Dznode.container.checkIntervalMs=1000 -cp "$dir/jars/*" \
  org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/server.log" 2>&1 &
server=$!

basename "$dir"/jars/zookeeper-[0-9]*
timeout 150 "$python" - "$port" <<'PYTHON'
import logging
import sys
import time

import kazoo.version
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Create
from kazoo.security import OPEN_ACL_UNSAFE

logging.disable()  # a server that is still starting
print("kazoo", kazoo.version.__version__)
client = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=20)
client.start(timeout=60)


class CreateContainer(Create):
    """ZooKeeper's request 19, which Curator sends for the parents of its recipes."""

    type = 19
    flags = 4


def lock(kind):
    def use(recipe):
        assert recipe.acquire(timeout=20)
        recipe.release()

    return getattr(client, kind), use


def queue(recipe):
    recipe.put(b"a job")
    assert recipe.get() == b"a job"


def party(recipe):
    recipe.join()
    assert len(recipe) == 1
    recipe.leave()


kinds = {kind: lock(kind) for kind in ("Lock", "ReadLock", "Semaphore")}
kinds |= {"Queue": (client.Queue, queue), "Party": (client.Party, party)}
answers = {}
for kind, (make, use) in kinds.items():
    path = f"/{kind}"
    made = client.handler.async_result()
    client._call(CreateContainer(path, b"", OPEN_ACL_UNSAFE, CreateContainer.flags), made)
    made.get(20)
    recipe = make(path)
    use(recipe)
    deadline = time.monotonic() + 15
    while client.exists(path) and time.monotonic() < deadline:
        time.sleep(0.1)
    answers[kind] = []
    for again in (recipe, recipe, make(path)):
        try:
            answers[kind].append(use(again))
        except NoNodeError as error:
            answers[kind].append(type(error).__name__)
client.stop()
for kind, answer in answers.items():
    print(f"{kind} after its path was deleted: {answer[0]}, again: {answer[1]}, a new object: {answer[2] or 'works'}")
expected = ["NoNodeError", "NoNodeError", None]
sys.exit(None if all(answer == expected for answer in answers.values()) else "the behaviour has changed")
PYTHON
