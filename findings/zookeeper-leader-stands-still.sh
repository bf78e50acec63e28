#!/usr/bin/env bash
# The guess: a leader that hangs is replaced as fast as one that dies, and a client that is connected to a follower, and
#   pings it all the time, keeps its session meanwhile.
# Instead: a leader that stands still (a long garbage collection, SIGSTOP, a hypervisor) is followed for
#   syncLimit * tickTime, 10 s with the sample configuration: reads and pings are answered, and no write is. Killed, it
#   is replaced within a second or two. If it goes on before that, but after a session timeout, it first looks at its
#   clock, and expires the sessions of clients that were connected and answered without a break.
# Why it matters: "connected, and pings come back" says nothing about the lock for those ten seconds, and then it is
#   gone. A holder must count what a quorum has confirmed; and syncLimit * tickTime should be well below the session
#   timeout.
# Seen: ZooKeeper 3.9.3 (out of pyspark 4.0.1), kazoo 2.11.0, 2026-11-28. Needs Java.
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

timeout 200 "$python" - "$dir" <<'PYTHON'
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
TICK, SYNC_LIMIT, SESSION = 0.5, 40, 6.0
taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(9)]
ports = [listener.getsockname()[1] for listener in taken]
for listener in taken:
    listener.close()
members = [f"server.{n + 1}=127.0.0.1:{ports[3 * n + 1]}:{ports[3 * n + 2]}" for n in range(3)]
log = open(folder / "servers.log", "ab")
servers = {}


def serve(number):
    data = folder / f"data{number}"
    data.mkdir(exist_ok=True)
    (data / "myid").write_text(str(number + 1))
    port = ports[3 * number]
    settings = [f"tickTime={int(1000 * TICK)}", "initLimit=20", f"syncLimit={SYNC_LIMIT}", f"dataDir={data}"]
    settings += [f"clientPort={port}", "clientPortAddress=127.0.0.1", "admin.enableServer=false", *members, ""]
    (data / "zoo.cfg").write_text("\n".join(settings))
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    java = ["java", "-Xmx128m", "-cp", f"{folder}/jars/*", main, f"{data}/zoo.cfg"]
    servers[number] = subprocess.Popen(java, stdout=log, stderr=log)


def leads(number):
    try:
        with socket.create_connection(("127.0.0.1", ports[3 * number]), 5) as sock:
            sock.sendall(b"srvr")
            return b"Mode: leader" in sock.makefile("rb").read()
    except OSError:
        return False


def leader():
    while True:
        for number in servers:
            if leads(number):
                return number
        time.sleep(0.1)


def client_of(number):
    retry = {"max_tries": -1, "delay": 0.1, "max_delay": 0.5}
    client = KazooClient(f"127.0.0.1:{ports[3 * number]}", timeout=SESSION, connection_retry=retry)
    client.start(timeout=60)
    return client


def written(client):
    """How long it takes until a write is answered; it is asked again if the connection is lost."""
    began = time.monotonic()
    while True:
        try:
            client.set("/", b"")
            return time.monotonic() - began
        except Exception:
            time.sleep(0.05)


try:
    for number in range(3):
        serve(number)
    first = leader()
    client = client_of(next(number for number in servers if number != first))
    servers[first].kill()
    servers[first].wait()
    killed = written(client)
    print(f"the leader is killed: the next write is answered after {killed:.1f} s")
    client.stop()
    serve(first)

    second = leader()
    follower = next(number for number in servers if number != second)
    client = client_of(follower)
    written(client)
    session, states = client.client_id[0], []
    client.add_listener(states.append)
    client.create("/lock", ephemeral=True)
    stopped = time.monotonic()
    servers[second].send_signal(signal.SIGSTOP)
    reads = 0
    while time.monotonic() < stopped + 1.5 * SESSION:
        assert client.exists("/lock") is not None
        reads += 1
        time.sleep(0.1)
    heard = list(states)
    servers[second].send_signal(signal.SIGCONT)
    stood = time.monotonic() - stopped
    while client.client_id[0] == session or not client.connected:
        written(client)
        if time.monotonic() > stopped + 40:
            break
    same = client.client_id[0] == session
    kept = client.exists("/lock") is not None
finally:
    for server in servers.values():
        server.kill()
        server.wait()

print(f"the leader stands still for {stood:.1f} s: {reads} reads are answered, the client hears {heard}")
print(f"when it goes on: same session: {same}, lock kept: {kept}")
expected = killed < 10 and not heard and not same and not kept
sys.exit(None if expected else "the behaviour has changed")
PYTHON
