#!/usr/bin/env bash
# The guess: a task that waits for an aiozk Lock and is cancelled (`asyncio.timeout`, `wait_for`, a web request whose
#   client has gone) leaves the queue, as one does whose own `timeout=` is over.
# Instead: only aiozk's own time limit and its other errors remove the waiter's node. A cancelled waiter's node stays in
#   the queue for as long as the client's session, which other tasks keep alive. When the holder releases, the lock is
#   the cancelled one's, whose task is no more: nobody gets in, not even from the same client.
# Why it matters: one impatient request stops the lock for all until its process is restarted, and the queue shows a
#   living contender. Pass `timeout=` to acquire(), and don't cancel it; or take the lock with a client of its own that
#   you close.
# Seen: aiozk 0.32.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1), 2026-11-29. Needs Java.
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
timeout 120 "$python" - "$port" <<'PYTHON'
import asyncio
import logging
import sys
import time
from importlib.metadata import version

import aiozk

logging.disable()  # a server that is still starting
address = "127.0.0.1:" + sys.argv[1]
print("aiozk", version("aiozk"))


async def up():
    deadline = time.monotonic() + 60
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
            writer.close()
            return
        except OSError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)


async def play(path, wait):
    """Contenders while one holds and another has stopped waiting, after the release; and whether a third gets in."""
    clients = [aiozk.ZKClient(address, session_timeout=10) for _ in range(3)]
    for client in clients:
        await client.start()
    holder, waiter, third = (client.recipes.Lock(path) for client in clients)
    await holder.acquire()
    try:
        await wait(waiter)
    except (asyncio.TimeoutError, aiozk.exc.TimeoutError):
        pass
    contenders = [len(await clients[0].get_children(path))]
    await holder.release()
    contenders.append(len(await clients[0].get_children(path)))
    try:
        await third.acquire(timeout=12)  # longer than a session's timeout
        enters = True
    except aiozk.exc.TimeoutError:
        enters = False
    for client in clients:
        await client.close()
    return *contenders, enters


async def main():
    await up()
    return (
        await play("/limited", lambda lock: lock.acquire(timeout=2)),
        await play("/cancelled", lambda lock: asyncio.wait_for(lock.acquire(), 2)),
    )


limited, cancelled = asyncio.run(main())
print("contenders after one has stopped waiting, after the holder's release, a third gets in")
print("acquire(timeout=2):", limited, "- wait_for(acquire(), 2):", cancelled)
sys.exit(None if (limited, cancelled) == ((1, 0, True), (2, 1, False)) else "the behaviour has changed")
PYTHON
