#!/usr/bin/env bash
# The guess: `process.terminate()` ends a multiprocessing.Process that set no handler of its own.
# Instead: a child that an asyncio server forks inherits the handler of its signals, and not the loop that acts on it.
#   SIGTERM does nothing there: under aiohttp's run_app(), uvicorn, uvloop, and any `loop.add_signal_handler()`. Up to
#   Python 3.11 the signal is told to the parent instead: whoever ends a worker shuts its own server down.
# Why it matters: the worker goes on with its work, its file lock and its sessions, `join()` waits for ever, and a
#   supervisor that terminates the whole group waits for its time limit. In the child, set SIGTERM and SIGINT to SIG_DFL
#   first, or take the context "forkserver" or "spawn" ("forkserver" is the default from Python 3.14 on).
# Seen: Python 3.11.7, 3.12.1 and 3.13.0, aiohttp 3.14.5, uvicorn 0.54.0, uvloop 0.23.0, Linux 6.18, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install aiohttp==3.14.5 uvicorn==0.54.0 uvloop==0.23.0 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/server.py" <<'PYTHON'
"""Starts a worker, terminates it, and prints what became of both."""

import asyncio
import fcntl
import json
import multiprocessing
import os
import signal
import sys
import time

import uvicorn
import uvloop
from aiohttp import web

kind, method, path = sys.argv[1:]
told = []


def work(pipe, resets):
    if resets:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        pipe.send("ready")
        time.sleep(100)


def free():
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


async def play():
    context = multiprocessing.get_context(method.removesuffix("+reset"))
    reads, writes = context.Pipe(duplex=False)
    worker = context.Process(target=work, args=(writes, method.endswith("+reset")))
    worker.start()
    try:
        await asyncio.to_thread(reads.recv)
        worker.terminate()
        await asyncio.to_thread(worker.join, 3)
    except asyncio.CancelledError:  # aiohttp shuts down
        told.append("SIGTERM")
    print(json.dumps([worker.is_alive(), free(), bool(told)]), flush=True)
    worker.kill()
    os._exit(0)


async def plain():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.append, "SIGTERM")
    await play()


async def background(app):
    task = asyncio.create_task(play())
    yield
    task.cancel()
    await task


async def application(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await play()


if __name__ == "__main__":
    if kind == "asyncio":
        asyncio.run(plain())
    elif kind == "uvloop":
        uvloop.run(plain())
    elif kind == "aiohttp":
        app = web.Application()
        app.cleanup_ctx.append(background)
        web.run_app(app, host="127.0.0.1", port=0, print=None)
    else:
        uvicorn.run(application, host="127.0.0.1", port=0, lifespan="on", loop="asyncio", log_level="error")
PYTHON

timeout 240 "$python" - "$dir" <<'PYTHON'
import json
import platform
import subprocess
import sys

directory = sys.argv[1]
print("Python", platform.python_version())
old = sys.version_info < (3, 12)
changed = False
for kind, method, expected in (
    ("asyncio", "fork", (True, False, old)),
    ("uvloop", "fork", (True, False, old)),
    ("aiohttp", "fork", (True, False, old)),
    ("uvicorn", "fork", (True, False, False)),
    ("asyncio", "fork+reset", (False, True, False)),
    ("asyncio", "forkserver", (False, True, False)),
):
    path = f"{directory}/{kind}-{method}"
    open(path, "w").close()
    command = [sys.executable, f"{directory}/server.py", kind, method, path]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True).stdout)
    print("{}, {}: alive after terminate: {}, its lock is free: {}, the parent hears: {}".format(kind, method, *found))
    changed |= found != list(expected)
sys.exit("the behaviour has changed" if changed else None)
PYTHON
