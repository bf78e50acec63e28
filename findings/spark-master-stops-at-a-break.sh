#!/usr/bin/env bash
# The guess: a Spark master with `recoveryMode=ZOOKEEPER` that loses its connection for a moment, as at a restart of the
#   ZooKeeper server that it is connected to, steps back or goes on. If it has to end, it ends with an error.
# Instead: Curator's latch says "not leader" at SUSPENDED, seconds before the session is in danger, and the leading
#   master then ends its process at once, with status 0. It does not close its session, so that no master leads until
#   ZooKeeper has expired it. The standby lives through breaks, until it leads.
# Why it matters: systemd's Restart=on-failure, and whatever else takes 0 for "done", starts it no more. Each restart of
#   a ZooKeeper server takes one master away: after a rolling restart none is left, and nothing has failed. Start a
#   master anew whatever its status.
# Seen: Spark 4.0.1 with Curator 5.7.1 and ZooKeeper 3.9.3 (all out of pyspark 4.0.1), 2026-11-30. Needs Java 17.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
command -v java >/dev/null || { echo "this finding needs java" >&2; exit 69; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

python3 -m pip -q --disable-pip-version-check download --no-deps -d "$dir" pyspark==4.0.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }
tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards '*/jars/*'
rm "$dir/pyspark-4.0.1.tar.gz"
basename -a "$dir"/jars/spark-core_* "$dir"/jars/curator-recipes-* "$dir"/jars/zookeeper-[0-9]*

timeout 300 python3 - "$dir" <<'PYTHON'
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))
folder = Path(sys.argv[1])
processes = []
taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
zookeeper, *ports = (listener.getsockname()[1] for listener in taken)
for listener in taken:
    listener.close()
settings = ["tickTime=500", f"dataDir={folder}/data", f"clientPort={zookeeper}", "clientPortAddress=127.0.0.1"]
(folder / "zoo.cfg").write_text("\n".join([*settings, "admin.enableServer=false", ""]))


def java(*arguments):
    log = open(folder / f"{len(processes)}.log", "wb")
    process = subprocess.Popen(["java", "-Xmx256m", "-cp", f"{folder}/jars/*", *arguments], stdout=log, stderr=log)
    processes.append(process)
    return process


def serve():
    return java("org.apache.zookeeper.server.quorum.QuorumPeerMain", f"{folder}/zoo.cfg")


def master(port, web):
    options = {"recoveryMode": "ZOOKEEPER", "zookeeper.url": f"127.0.0.1:{zookeeper}", "zookeeper.dir": "/spark"}
    flags = [f"-Dspark.deploy.{name}={value}" for name, value in options.items()]
    flags += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio", "sun.nio.ch")]
    address = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web)]
    return java(*flags, "org.apache.spark.deploy.master.Master", *address)


def status(web):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=5) as page:
            return json.load(page)["status"]
    except OSError:
        return None


def wait_for(web, wanted):
    deadline = time.monotonic() + 80
    while status(web) != wanted:
        assert time.monotonic() < deadline, (status(web), wanted)
        time.sleep(0.2)


def restart(server):
    server.terminate()
    server.wait()
    return serve()


try:
    server = serve()
    first = master(*ports[:2])
    wait_for(ports[1], "ALIVE")
    second = master(*ports[2:])
    wait_for(ports[3], "STANDBY")
    server = restart(server)
    ends = [first.wait(30), second.poll()]
    print("after a restart of ZooKeeper: the leading master's status:", ends[0], "the standby's:", ends[1] or "it runs")
    wait_for(ports[3], "ALIVE")
    restart(server)
    ends.append(second.wait(30))
    print("after one more: the second master's, which led by then:", ends[2])
finally:
    for process in processes:
        process.kill()
        process.wait()
sys.exit(None if ends == [0, None, 0] else "the behaviour has changed")
PYTHON
