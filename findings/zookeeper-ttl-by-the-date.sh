#!/usr/bin/env bash
# The guess: a node with a TTL of ten minutes lives for ten minutes after its last change, by a clock that ZooKeeper
#   keeps, as a session does. A server's date has no part in it.
# Instead: the leader compares its date with the date that the leader of that time has written into the node. A new
#   leader whose clock is 15 minutes ahead removes the node at once. One whose clock is behind keeps it for longer. The
#   same goes for a clock that is set. Sessions and their ephemeral nodes are not touched.
# Why it matters: a lease, a claim or a member that is a TTL node ends in the middle of its work, at a failover, with no
#   fault of its owner. The owner hears nothing unless it has a watch. Watch the clocks of the servers, take a TTL that
#   is long beside their differences, or an ephemeral node.
# Seen: Curator 5.7.1 and ZooKeeper 3.9.3 (out of pyspark 4.0.1), driven by JPype 1.7.1; kazoo 2.11.0, Debian 12's
#   faketime 0.9.10 for the other date, 2026-11-30. Needs Java and faketime.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
for program in java faketime; do
  command -v "$program" >/dev/null || { echo "this finding needs $program" >&2; exit 69; }
done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
pip() { "$python" -m pip -q --disable-pip-version-check "$@" 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }; }
pip install kazoo==2.11.0 jpype1==1.7.1
pip download --no-deps -d "$dir" pyspark==4.0.1
tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards \
  '*/jars/zookeeper-*' '*/jars/netty-*' '*/jars/slf4j-api-*' '*/jars/snappy-java-*' '*/jars/metrics-core-*' \
  '*/jars/curator-*' '*/jars/guava-*' '*/jars/failureaccess-*'

basename -a "$dir"/jars/zookeeper-[0-9]*
timeout 200 "$python" - "$dir" <<'PYTHON'
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jpype
from kazoo.client import KazooClient

logging.disable()  # servers that are still starting
directory = pathlib.Path(sys.argv[1])
taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(9)]
ports = [listener.getsockname()[1] for listener in taken]
for listener in taken:
    listener.close()
members = [f"server.{n + 1}=127.0.0.1:{ports[3 + n]}:{ports[6 + n]}" for n in range(3)]
servers = {}


def start(number, *date):
    home = directory / str(number)
    (home / "data").mkdir(parents=True)
    (home / "data" / "myid").write_text(str(number))
    lines = "tickTime=500", "initLimit=40", "syncLimit=20", "admin.enableServer=false"
    where = f"dataDir={home}/data", f"clientPort={ports[number - 1]}", "clientPortAddress=127.0.0.1"
    (home / "zoo.cfg").write_text("\n".join([*lines, *where, *members]) + "\n")
    options = "-Xmx128m", "-Dzookeeper.extendedTypesEnabled=true", "-Dznode.container.checkIntervalMs=500"
    program = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    with open(home / "log", "w") as log:
        command = [*date, "java", *options, "-cp", f"{directory}/jars/*", program, f"{home}/zoo.cfg"]
        servers[number] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def kill(server):  # faketime starts the server as a child of its own
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def mode(number):
    try:
        with socket.create_connection(("127.0.0.1", ports[number - 1]), 5) as asks:
            asks.sendall(b"srvr")
            answer = b"".join(iter(lambda: asks.recv(4096), b"")).decode()
    except OSError:
        return None
    return answer.partition("Mode: ")[2].partition("\n")[0]


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def stays(path, seconds=5):
    deadline = time.monotonic() + seconds
    while (there := client.exists(path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(there)


try:
    start(1)
    start(2)
    client = KazooClient(",".join(f"127.0.0.1:{port}" for port in ports[:3]), timeout=20)
    client.start(timeout=60)
    jpype.startJVM("-Xmx64m", "-Dslf4j.internal.verbosity=ERROR", classpath=[f"{directory}/jars/*"])
    factory = jpype.JClass("org.apache.curator.framework.CuratorFrameworkFactory")
    retry = jpype.JClass("org.apache.curator.retry.RetryNTimes")
    lasting = jpype.JClass("org.apache.zookeeper.CreateMode").PERSISTENT_WITH_TTL
    leader = next(number for number in (1, 2) if mode(number) == "leader")
    curator = factory.newClient(f"127.0.0.1:{ports[leader - 1]}", 10_000, 10_000, retry(5, 500))
    curator.start()
    curator.create().withTtl(600_000).withMode(lasting).forPath("/lease")
    curator.close()
    client.create("/ephemeral", ephemeral=True)
    before = stays("/lease")
    start(3, "faketime", "-f", "+15m")
    until(lambda: mode(3) == "follower")
    follows = stays("/lease")
    kill(servers.pop(leader))
    until(lambda: mode(3) == "leader")
    after = client.retry(stays, "/lease"), client.retry(stays, "/ephemeral", 1)
    print(f"a node with a TTL of ten minutes stays: {before}; while a follower's clock is ahead: {follows}")
    print(f"under a leader whose clock is 15 minutes ahead: {after[0]}; an ephemeral node: {after[1]}")
    client.stop()
finally:
    for server in servers.values():
        kill(server)
sys.exit(None if (before, follows, *after) == (True, True, False, True) else "the behaviour has changed")
PYTHON
