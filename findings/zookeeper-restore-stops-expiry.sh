#!/usr/bin/env bash
# The guess: a ZooKeeper server that was restored by its admin server's `restore` command, with all clients kept away as
#   the guide says, is a server as any other from then on.
# Instead: no session expires on it any more. The command makes a new tracker of sessions and never starts it. Ephemeral
#   nodes of the backup stay, and so do those of clients that come and die later, until the server is started anew.
#   Nothing is logged, and all else works. An ensemble whose members are all restored does the same (run by hand).
# Why it matters: the lock of each process that dies is held for ever, and nobody finds a cause. The guide ends with the
#   restore. Go on: call `snapshot`, without which a restart brings the old data back, and restart each server.
# Seen: ZooKeeper 3.9.3 (out of pyspark 4.0.1), kazoo 2.11.0, Debian 12's Jetty 9.4 for the admin server, 2026-11-30.
#   Needs Java and Debian 12.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
command -v java >/dev/null || { echo "this finding needs java" >&2; exit 69; }
dir=$(mktemp -d)
server=
stop() { if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi; }
trap 'stop; rm -rf "$dir"' EXIT

mkdir "$dir/debian"
(cd "$dir/debian" && apt-get -q download libjetty9-java >apt.log 2>&1 && dpkg -x libjetty9-java_9.4.*.deb .) ||
  { echo "this finding needs Debian 12" >&2; exit 69; }
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
pip() { "$python" -m pip -q --disable-pip-version-check "$@" 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }; }
pip install kazoo==2.11.0
pip download --no-deps -d "$dir" pyspark==4.0.1
tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards \
  '*/jars/zookeeper-*' '*/jars/netty-*' '*/jars/slf4j-api-*' '*/jars/snappy-java-*' '*/jars/metrics-core-*' \
  '*/jars/javax.servlet-api-*' '*/jars/jackson-core-2*' '*/jars/jackson-databind-*' '*/jars/jackson-annotations-*' \
  '*/jars/commons-io-*'
for part in http io security server servlet util util-ajax; do
  cp -L "$dir/debian/usr/share/java/jetty9-$part.jar" "$dir/jars"
done

read -r port admin < <("$python" -c 'import socket
taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(listener.getsockname()[1] for listener in taken))')
printf '%s\n' tickTime=500 "dataDir=$dir/data" "clientPort=$port" clientPortAddress=127.0.0.1 \
  admin.serverAddress=127.0.0.1 "admin.serverPort=$admin" \
  admin.snapshot.intervalInMS=0 admin.restore.intervalInMS=0 >"$dir/zoo.cfg"
start() {
  java -Xmx128m -cp "$dir/jars/*" \
    org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/server.log" 2>&1 &
  server=$!
}

cat >"$dir/play.py" <<'PYTHON'
import logging
import pathlib
import subprocess
import sys
import time
import urllib.request

from kazoo.client import KazooClient

TIMEOUT = 4
logging.disable()  # a server that is still starting
step, hosts, admin, backup = sys.argv[1:]
backup = pathlib.Path(backup)
HOLDER = f"""
import sys, time
from kazoo.client import KazooClient
client = KazooClient({hosts!r}, timeout={TIMEOUT})
client.start(timeout=20)
client.create(sys.argv[1], ephemeral=True)
print("holds", flush=True)
time.sleep(100)
"""


def command(name, body=None):
    headers = {"Authorization": "digest root:secret", "Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"http://{admin}/commands/{name}", body, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read()


def holder(path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "holds\n"
    return process


def stays(path):
    """Whether the node of a process that is dead is there after four timeouts."""
    deadline = time.monotonic() + 4 * TIMEOUT
    while (there := client.exists(path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(there)


client = KazooClient(hosts, timeout=10)
client.start(timeout=40)
if step == "restore":
    dead, alive = holder("/before"), holder("/backup")
    dead.kill()
    before = stays("/before")
    snapshot = command("snapshot?streaming=true")
    alive.kill()
    assert not stays("/backup")
    client.stop()  # no client is left
    command("restore", snapshot)
    client.start(timeout=20)
    holder("/after").kill()
    after = stays("/backup"), stays("/after")
    print("the node of a dead process stays: before the restore", before, "- of the backup", after[0])
    print("of a client that came after the restore:", after[1])
    command("snapshot?streaming=false")
    expected = not before and all(after)
else:
    after = stays("/backup"), stays("/after")
    print("after a restart:", *after)
    expected = not any(after)
client.stop()
sys.exit(None if expected else "the behaviour has changed")
PYTHON

basename "$dir"/jars/zookeeper-[0-9]*
for step in restore restart; do
  stop
  start
  timeout 150 "$python" "$dir/play.py" "$step" "127.0.0.1:$port" "127.0.0.1:$admin" "$dir/backup"
done
