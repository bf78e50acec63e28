#!/usr/bin/env bash
# The guess: a ZooKeeper client that hears nothing, not even the answers to its pings, for two thirds of the session
#   timeout says that it is disconnected and tries another server, as the clients in Java, C and Python do.
# Instead: node-zookeeper-client sends pings and never looks for the answers. A server or a network that goes silent
#   leaves it SYNC_CONNECTED: no event, no try at another server, and its requests have no time limit. Its session
#   expires meanwhile, and its nodes are gone. Only TCP ends this, after about 15 minutes on Linux.
# Why it matters: an owner of an ephemeral node that stops its work at 'disconnected' is the owner beside the next one.
#   Count the seconds since the last answer oneself: ask `exists()` with a time limit more often than once a timeout.
# Seen: node-zookeeper-client 1.1.3, Node.js 20.20.2, kazoo 2.11.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1), 2026-11-30.
#   Needs Java, Node.js and npm.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
for program in java node npm; do
  command -v "$program" >/dev/null || { echo "this finding needs $program" >&2; exit 69; }
done
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
npm install --silent --no-fund --no-audit --prefix "$dir" node-zookeeper-client@1.1.3 >"$dir/npm.log" 2>&1 ||
  { cat "$dir/npm.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf '%s\n' tickTime=500 "dataDir=$dir/data" "clientPort=$port" clientPortAddress=127.0.0.1 \
  admin.enableServer=false >"$dir/zoo.cfg"
java -Xmx128m -cp "$dir/jars/*" \
  org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/server.log" 2>&1 &
server=$!

cat >"$dir/owner.js" <<'JAVASCRIPT'
const zookeeper = require("node-zookeeper-client");
const client = zookeeper.createClient(process.argv[2], { sessionTimeout: 4000 });
const say = (what) => console.log(JSON.stringify(what));
client.on("state", (state) => say({ event: state.name }));
client.once("connected", () => {
  client.create("/owner", zookeeper.CreateMode.EPHEMERAL, (error) => say({ created: !error }));
});
process.stdin.on("data", () => say({ state: client.getState().name }));
client.connect();
JAVASCRIPT

basename "$dir"/jars/zookeeper-[0-9]*
echo "Node.js $(node --version)"
timeout 90 "$python" - "$port" "$dir/owner.js" <<'PYTHON'
import json
import logging
import queue
import socket
import subprocess
import sys
import threading
import time

import kazoo.version
from kazoo.client import KazooClient

TIMEOUT = 4
logging.disable()  # a server that is still starting
server = "127.0.0.1", int(sys.argv[1])


class Network:
    """Carries bytes to the server and back, until it is cut."""

    def __init__(self):
        self.cut = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:{1}".format(*self.listener.getsockname())
        self.start(self.accept)

    def start(self, function, *arguments):
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def accept(self):
        while True:
            near, far = self.listener.accept()[0], socket.create_connection(server)
            self.start(self.carry, near, far)
            self.start(self.carry, far, near)

    def carry(self, source, target):
        while data := source.recv(65536):
            if not self.cut.is_set():  # else it is lost, and no end of the connection is told
                target.sendall(data)


other = KazooClient("{}:{}".format(*server), timeout=10)
other.start(timeout=40)
print("kazoo", kazoo.version.__version__)
network = Network()
control = KazooClient(network.address, timeout=TIMEOUT)
control_heard = queue.Queue()
control.start(timeout=20)
control.add_listener(lambda state: control_heard.put(state))
owner = subprocess.Popen(
    ["node", sys.argv[2], network.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
try:
    told = [json.loads(owner.stdout.readline()) for _ in range(2)]
    assert told[1] == {"created": True} and other.exists("/owner")
    gone = threading.Event()
    other.exists("/owner", lambda event: gone.set())
    network.cut.set()
    begun = time.monotonic()
    gone.wait(30)
    other.create("/owner", b"the next one", ephemeral=True)
    print(f"the owner's node is gone, and another has it, after {time.monotonic() - begun:.0f} s")
    suspended = control_heard.get(timeout=20)
    time.sleep(max(0, begun + 5 * TIMEOUT - time.monotonic()))
    print("ask", file=owner.stdin, flush=True)
    says = json.loads(owner.stdout.readline())
finally:
    owner.kill()
    owner.wait()
print("kazoo, by the same network:", suspended)
print(f"node-zookeeper-client, {5 * TIMEOUT} s after the cut, with a session timeout of {TIMEOUT} s:", says)
other.stop()
sys.exit(None if suspended == "SUSPENDED" and says == {"state": "SYNC_CONNECTED"} else "the behaviour has changed")
PYTHON
