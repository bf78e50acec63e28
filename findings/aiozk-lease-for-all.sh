#!/usr/bin/env bash
# The guess: of several clients that call `obtain()` of an aiozk `Lease` with limit=1 at once, one gets True; and a
#   lease ends when its own time is over.
# Instead: `obtain()` counts the leases and then writes its own, as two requests. All who come together count none, and
#   all get True. And the timer of a lease that was given back goes on: it ends the same object's next lease.
# Why it matters: hosts that run a job by the clock ask at the same moment, and each of them runs it. A worker that
#   takes its lease again soon loses it to the old timer, without a word, and the next one comes in beside it. Take a
#   lock around `obtain()`, and a new Lease object for each lease.
# Seen: aiozk 0.32.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1), 2026-11-30. Needs Java.
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
pip install aiozk==0.32.0
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
timeout 30 bash -c "until 2>/dev/null >/dev/tcp/127.0.0.1/$port; do sleep 0.1; done"
timeout 100 "$python" -W ignore - "127.0.0.1:$port" <<'PYTHON'
import asyncio
import logging
import sys
from datetime import timedelta
from importlib.metadata import version

import aiozk

logging.disable()  # a server that is still starting
LONG, SHORT = timedelta(seconds=60), timedelta(seconds=2)


async def main():
    clients = [aiozk.ZKClient(sys.argv[1], session_timeout=20) for _ in range(3)]
    for client in clients:
        await client.start()
    print("aiozk", version("aiozk"))
    for number in range(20):  # almost always, the first one is enough
        path = f"/job-{number}"
        await clients[0].ensure_path(path)
        leases = [client.recipes.Lease(path, limit=1) for client in clients]
        together = await asyncio.gather(*(lease.obtain(LONG) for lease in leases))
        if sum(together) > 1:
            break
    late = await clients[0].recipes.Lease(path, limit=1).obtain(LONG)

    await clients[0].ensure_path("/again")
    one, two = (client.recipes.Lease("/again", limit=1) for client in clients[:2])
    took = [await one.obtain(SHORT)]
    await one.release()
    took.append(await one.obtain(LONG))
    refused = await two.obtain(LONG)
    deadline = asyncio.get_running_loop().time() + 10
    while not (second := await two.obtain(LONG)) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.1)
    for client in clients:
        await client.close()
    return together, late, took, refused, second


together, late, took, refused, second = asyncio.run(main())
print("three that ask together get:", together, "and one that asks later:", late)
print("one takes it for 2 s, gives it back, and takes it for 60 s:", took, "another one at once:", refused)
print("another one, ten seconds later at most:", second)
followed = sum(together) > 1 and (late, took, refused, second) == (False, [True] * 2, False, True)
sys.exit(None if followed else "the behaviour has changed")
PYTHON
