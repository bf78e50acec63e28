#!/usr/bin/env bash
# The guess: when ZooKeeper was down for longer than the session timeout, the sessions of before are over: the
#   living clients hear LOST, and what a dead one held is free at once.
# Instead: time stands still for sessions while no leader runs, and each gets its full timeout anew afterwards. A
#   living holder that is quickly back has its old session and lock and hears no LOST; a client that died during the
#   outage holds its lock for up to a whole timeout after it, however long the outage was.
# Why it matters: "down for longer than the timeout, so nobody holds anything" is wrong, and so is work begun on that
#   ground. And no LOST tells a holder that it was alone for so long: it has to end its lease by its own clock.
# Seen: ZooKeeper 3.9.3 (out of pyspark 4.0.1), kazoo 2.11.0, 2026-11-27. Needs Java.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
command -v java >/dev/null || { echo "this finding needs java" >&2; exit 69; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
pip() { "$python" -m pip -q --disable-pip-version-check "$@" 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }; }
pip install kazoo==2.11.0
pip download --no-deps -d "$dir" pyspark==4.0.1
tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards \
  '*/jars/zookeeper-*' '*/jars/netty-*' '*/jars/slf4j-api-*' '*/jars/snappy-java-*' '*/jars/metrics-core-*'
basename "$dir"/jars/zookeeper-[0-9]*

cat >"$dir/holder.py" <<'PYTHON'
import logging
import sys
import time

from kazoo.client import KazooClient

logging.disable()
states = []
retry = {"max_tries": -1, "delay": 0.1, "max_delay": 0.5}  # so that it is back within its timeout
client = KazooClient(f"127.0.0.1:{sys.argv[1]}", timeout=10, connection_retry=retry)
client.add_listener(states.append)
client.start(timeout=40)
client.ensure_path("/locks")
client.create(sys.argv[2], ephemeral=True)
print(client.client_id[0], flush=True)
while states[-1] == "CONNECTED" and "SUSPENDED" not in states:
    time.sleep(0.1)
print("cut off", flush=True)
while states[-1] != "CONNECTED":
    time.sleep(0.1)
print(client.client_id[0], *states, flush=True)
time.sleep(600)
PYTHON
timeout 100 "$python" - "$dir" <<'PYTHON'
import logging
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import kazoo.version
from kazoo.client import KazooClient

print("kazoo", kazoo.version.__version__)
logging.disable()
signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))
folder = Path(sys.argv[1])
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
settings = "tickTime=500", f"dataDir={folder}/data", f"clientPort={port}", "clientPortAddress=127.0.0.1"
(folder / "zoo.cfg").write_text("\n".join([*settings, "admin.enableServer=false", ""]))
main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
log = open(folder / "server.log", "ab")
children = []


def start(*command):
    output = log if command[0] == "java" else subprocess.PIPE
    children.append(subprocess.Popen(command, stdout=output, stderr=log, text=True))
    return children[-1]


def hold(path):
    return start(sys.executable, f"{folder}/holder.py", str(port), path)


def serve():
    return start("java", "-Xmx128m", "-cp", f"{folder}/jars/*", main, f"{folder}/zoo.cfg")


try:
    server = serve()
    living, dying = hold("/locks/living"), hold("/locks/dying")
    session = living.stdout.readline().strip()
    dying.stdout.readline()
    server.kill()
    server.wait()
    assert living.stdout.readline() == dying.stdout.readline() == "cut off\n"
    dying.kill()
    time.sleep(15)
    server = serve()
    retry = {"max_tries": -1, "delay": 0.1, "max_delay": 0.5}
    observer = KazooClient(f"127.0.0.1:{port}", timeout=10, connection_retry=retry)
    observer.start(timeout=40)
    began = time.monotonic()
    held = observer.exists("/locks/dying") is not None
    while observer.exists("/locks/dying"):
        time.sleep(0.05)
    freed = time.monotonic() - began
    back, *states = living.stdout.readline().split()
    kept = observer.exists("/locks/living") is not None
finally:
    for child in children:
        child.kill()
        child.wait()

print("after an outage of one and a half timeouts")
print(f"the living holder: same session: {back == session}, lock kept: {kept}, heard {states}")
print(f"the dead holder's lock: there: {held}, free {freed:.1f} s later")
expected = back == session and kept and states == ["CONNECTED", "SUSPENDED", "CONNECTED"] and held
sys.exit(None if expected else "the behaviour has changed")
PYTHON
