#!/usr/bin/env bash
# The guess: kazoo's `Barrier.wait()` and `LockingQueue.get()` survive a broken connection, as kazoo reconnects with
#   the same session, and watches belong to the session.
# Instead: kazoo forgets all watches when the connection breaks, and tells each watcher so by an event of type NONE.
#   These two ignore it, and place no watch again. They wait for ever, or until their timeout: with the barrier
#   gone, and with an entry in the queue.
# Why it matters: workers that wait so are idle after each failover, connected and without an error. Pass a timeout
#   and ask again in a loop.
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
  admin.enableServer=false "4lw.commands.whitelist=mntr" >"$dir/zoo.cfg"
java -Xmx128m -cp "$dir/jars/*" \
  org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/server.log" 2>&1 &
server=$!

basename "$dir"/jars/zookeeper-[0-9]*
timeout 200 "$python" - "$port" <<'PYTHON'
import logging
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import kazoo.version
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

logging.disable()
server = ("127.0.0.1", int(sys.argv[1]))


class Proxy:
    """Passes bytes on; ``cut()`` ends the connections that there are."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.open = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client = self.listener.accept()[0]
            upstream = socket.create_connection(server)
            self.open += client, upstream
            for ends in ((client, upstream), (upstream, client)):
                threading.Thread(target=self.pump, args=ends, daemon=True).start()

    def pump(self, source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        shut(source)
        shut(target)

    def cut(self):
        while self.open:
            shut(self.open.pop())


def shut(end):
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


other = KazooClient("%s:%d" % server, timeout=10)
other.start(timeout=40)
print("kazoo", kazoo.version.__version__)
proxy = Proxy()
client = KazooClient(proxy.hosts, timeout=10)
client.start(timeout=40)
states = []
client.add_listener(states.append)


def sure(call):
    """Return what it returns; call again if the connection broke: the machine may be busy."""
    while True:
        try:
            return call()
        except ConnectionLoss:
            time.sleep(0.1)


def watches():
    """How many watches the server has."""
    with socket.create_connection(server) as asks:
        asks.sendall(b"mntr")
        answer = b"".join(iter(lambda: asks.recv(4096), b"")).decode()
    return int(dict(line.split("\t") for line in answer.splitlines())["zk_watch_count"])


def waits(call, places, change, cut):
    """Let ``call`` wait, which places so many watches; break its connection, perhaps; make the
    change; return what it returns."""
    before = watches()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(call)
        while watches() < before + places:
            time.sleep(0.01)
        session = client.client_id
        del states[:]
        if cut:
            proxy.cut()
            while states[-1:] != ["CONNECTED"]:
                time.sleep(0.01)
            assert client.client_id == session
        change()
        return waiting.result()


barrier = other.Barrier("/barrier")
queue, entries = client.LockingQueue("/queue"), other.LockingQueue("/queue")
seen = {}
for cut in (False, True):
    sure(barrier.create)
    freed = waits(lambda: client.Barrier("/barrier").wait(10), 1, lambda: sure(barrier.remove), cut)
    got = waits(lambda: queue.get(10), 2, lambda: entries.put(b"job"), cut)
    seen[cut] = freed, sure(lambda: client.exists("/barrier")) is None, got, sure(lambda: len(entries))
    print("the connection", "broke:" if cut else "held: ", "wait()", freed, "get()", got,
          "- the barrier is gone:", seen[cut][1], "entries:", seen[cut][3])
    if not cut:
        queue.consume()
again = sure(lambda: queue.get(10))
print("asked once more:", again)
client.stop()
other.stop()

expected = {False: (True, True, b"job", 1), True: (False, True, None, 1)}
sys.exit(None if (seen, again) == (expected, b"job") else "the behaviour has changed")
PYTHON
