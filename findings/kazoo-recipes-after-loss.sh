#!/usr/bin/env bash
# The guess: a worker that loops over kazoo's `LockingQueue` (get, work, consume) loses its entry with its session: the
#   next get() takes another one. `Party.participating` is False after LOST, or the client joins again.
# Instead: the queue object keeps its entry until consume() or release() succeeds, and they cannot any more: they return
#   False while another worker has the entry, and raise NoNodeError when nobody has it, or it is done. get() asks no
#   server and returns that entry for ever. The party's member has gone, says that it takes part, and does not come
#   back.
# Why it matters: after one expired session a worker does one job again and again, beside the others and after them,
#   and no other job. consume()'s answer is easily left unread. Make a new LockingQueue, and join() again, after LOST.
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
timeout 100 "$python" - "127.0.0.1:$port" <<'PYTHON'
import logging
import sys
import threading

import kazoo.version
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

logging.disable()  # a server that is still starting
hosts = sys.argv[1]
print("kazoo", kazoo.version.__version__)
first, second = (KazooClient(hosts, timeout=10) for _ in range(2))
for client in (first, second):
    client.start(timeout=40)
again = threading.Event()


@first.add_listener
def listen(state):
    if state == "CONNECTED":
        again.set()


def lose_session():
    """End the first client's session at the server: from another connection, as its time-out would."""
    again.clear()
    lost = first.client_id
    other = KazooClient(hosts, client_id=lost, timeout=10)
    other.start(timeout=20)
    other.stop()
    assert again.wait(30)
    assert first.client_id != lost


def consume():
    try:
        return queue.consume()
    except NoNodeError:
        return "NoNodeError"


def rounds():
    """What the first worker gets in two rounds of its loop, and what consume() says."""
    return [(queue.get(timeout=5), consume()) for _ in range(2)]


queue, others = (client.LockingQueue("/queue") for client in (first, second))
party = first.Party("/party", "first")
party.join()
queue.put_all([b"one", b"two"])
assert queue.get(timeout=5) == b"one"
lose_session()
alone = rounds()
taken = others.get(timeout=5)
beside = rounds()
assert others.consume()
after = rounds()
rest = others.get(timeout=5), others.consume(), len(others)
empty = rounds()
print("after the loss, nobody has the entry:", alone)
print(f"the other worker has {taken}:", beside)
print("the other one has done it:", after)
print(f"the other one has done {rest[0]}, entries left: {rest[2]}:", empty)
claims, members = party.participating, list(second.Party("/party"))
print("takes part in the party:", claims, "- members:", members)
for client in (first, second):
    client.stop()
raised = [(b"one", "NoNodeError")] * 2
seen = alone, taken, beside, after, rest, empty, claims, members
expected = raised, b"one", [(b"one", False)] * 2, raised, (b"two", True, 0), raised, True, []
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
