#!/usr/bin/env bash
# The guess: a read after `sync` sees all that was written before the `sync`, by whomever. That is what `sync` is for,
#   and it costs a way to the leader.
# Instead: a leader that has nothing under way answers `sync` by itself and asks nobody whether it is still the leader.
#   Cut off from the others, it goes on for `syncLimit * tickTime`, and answers `sync` and reads out of its old tree. If
#   the others were started anew meanwhile, they have a new leader at once; else both count the same time, and who is
#   first is chance.
# Why it matters: "sync, read that the lock's node is mine, then write" is taken for proof, in fenced writes and when a
#   configuration or an epoch is read. It proves nothing behind a broken network. Any write through the quorum does, a
#   `check` in a multi among them.
# Seen: ZooKeeper 3.9.3 (out of pyspark 4.0.1), kazoo 2.11.0, 2026-11-30. Needs Java, iproute2, and root, for a network
#   of its own, in which the partition is made.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
if [ $# = 0 ]; then
  for program in java ip; do
    command -v "$program" >/dev/null || { echo "this finding needs $program" >&2; exit 69; }
  done
  unshare --net true 2>/dev/null || { echo "this finding needs root" >&2; exit 69; }
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  python3 -m venv "$dir/venv"
  python=$dir/venv/bin/python
  pip() {
    "$python" -m pip -q --disable-pip-version-check "$@" 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
  }
  pip install kazoo==2.11.0
  pip download --no-deps -d "$dir" pyspark==4.0.1
  tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards \
    '*/jars/zookeeper-*' '*/jars/netty-*' '*/jars/slf4j-api-*' '*/jars/snappy-java-*' '*/jars/metrics-core-*'
  basename "$dir"/jars/zookeeper-[0-9]*
  unshare --net bash "$0" "$dir"
  exit
fi

dir=$1
there=
cleanup() {
  if [ -n "$there" ]; then kill "$there" 2>/dev/null || true; wait "$there" 2>/dev/null || true; fi
}
trap cleanup EXIT
# The third server and one client are in a network namespace of their own, all others in this one.
unshare --net sleep 300 &
there=$!
inside=(nsenter -t "$there" -n)
until [ "$("${inside[@]}" readlink /proc/self/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
ip link set lo up
ip link add outer type veth peer name inner
ip link set inner netns "$there"
for address in 10.9.0.1 10.9.0.2; do ip addr add "$address/24" dev outer; done
ip link set outer up
"${inside[@]}" ip addr add 10.9.0.3/24 dev inner
"${inside[@]}" ip link set inner up
"${inside[@]}" ip link set lo up
for number in 1 2 3; do
  mkdir "$dir/data$number"
  echo "$number" >"$dir/data$number/myid"
  printf '%s\n' tickTime=2000 initLimit=15 syncLimit=40 "dataDir=$dir/data$number" clientPort=2181 \
    "clientPortAddress=10.9.0.$number" admin.enableServer=false server.1=10.9.0.1:2888:3888 \
    server.2=10.9.0.2:2888:3888 server.3=10.9.0.3:2888:3888 >"$dir/zoo$number.cfg"
done

cat >"$dir/reader.py" <<'PYTHON'
import logging
import sys

from kazoo.client import KazooClient

logging.disable()
client = KazooClient("10.9.0.3:2181", timeout=30)
client.start(timeout=60)
for _ in sys.stdin:
    client.sync_async("/state").get(timeout=20)
    print(client.get_async("/state").get(timeout=20)[0].decode(), flush=True)
PYTHON
timeout 250 "$dir/venv/bin/python" - "$dir" "${inside[@]}" <<'PYTHON'
import logging
import socket
import subprocess
import sys
import time

import kazoo
from kazoo.client import KazooClient

folder, *inside = sys.argv[1:]
logging.disable()  # servers that are still starting
started = []


def start(*command, **options):
    started.append(subprocess.Popen(command, **options))
    return started[-1]


def server(number):
    program = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    command = ["java", "-Xmx128m", "-cp", f"{folder}/jars/*", program, f"{folder}/zoo{number}.cfg"]
    with open(f"{folder}/log{number}", "a") as log:
        return start(*(inside if number == 3 else []), *command, stdout=log, stderr=log)


def mode(number):
    try:
        with socket.create_connection((f"10.9.0.{number}", 2181), 2) as connection:
            connection.sendall(b"srvr")
            said = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return None
    return next((line.split()[1] for line in said.splitlines() if line.startswith("Mode:")), None)


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def connect(hosts):
    client = KazooClient(hosts, timeout=30)
    client.start(timeout=60)
    return client


def main():
    server(3), server(1)
    until(lambda: mode(3) == "leader")  # it has the highest number
    others = [server(2)]
    others.append(started[1])
    until(lambda: mode(2) == "follower")
    client = connect("10.9.0.1:2181,10.9.0.2:2181")
    client.create("/state", b"first")
    reader = start(
        *inside, sys.executable, f"{folder}/reader.py", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def read():
        print("read", file=reader.stdin, flush=True)
        return reader.stdout.readline().strip()

    before = read()
    subprocess.run(["ip", "route", "add", "blackhole", "10.9.0.3/32"], check=True)
    cut = time.monotonic()
    client.stop()
    for process in others:
        process.kill()
        process.wait()
    server(1), server(2)
    until(lambda: "leader" in (mode(1), mode(2)))
    client = connect("10.9.0.1:2181,10.9.0.2:2181")
    client.set("/state", b"second")
    print(f"written {time.monotonic() - cut:.1f} s after the cut, acknowledged by two of three servers")
    after = read()
    print(f"sync and read by the third one, {time.monotonic() - cut:.1f} s after it: {after!r}; before: {before!r}")
    client.stop()
    return before, after


print("kazoo", kazoo.__version__)
try:
    seen = main()
finally:
    for process in started:
        process.kill()
        process.wait()
sys.exit(None if seen == ("first", "first") else "the behaviour has changed")
PYTHON
