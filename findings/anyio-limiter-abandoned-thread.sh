#!/usr/bin/env bash
# The guess: anyio.CapacityLimiter(1) lets one thread at a time do what to_thread.run_sync(limiter=limiter) runs, on
#   asyncio as on trio: anyio is there so that one need not care.
# Instead: with abandon_on_cancel=True they differ. When the call is cancelled, by a timeout for instance, the thread
#   runs on. On trio it keeps its token until it ends, and the next call waits. On asyncio the token is given back at
#   once, and the next call begins beside the thread that still runs.
# Why it matters: a limiter of 1 around a serial port, a connection that is not for several threads, or a job that must
#   not overlap is a lock, and tests under trio show that it is one. Under asyncio each timeout adds a thread that is
#   inside, and where the limit protects a database, nothing limits its load while it is slow. Without
#   abandon_on_cancel, the timeout waits for the thread, and one at a time holds on both. A threading.Lock in the
#   function itself is kept by the thread.
# Seen: anyio 4.16.0, trio 0.35.0, Python 3.11.7, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install anyio==4.16.0 trio==0.35.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }
cat >"$dir/main.py" <<'PYTHON'
import importlib.metadata
import platform
import sys
import threading

import anyio


class Job:
    """Works in a thread until it is told to end."""

    def __init__(self):
        self.began, self.end = threading.Event(), threading.Event()

    def work(self):
        self.began.set()
        self.end.wait(60)


async def begins_beside(abandon):
    """Whether a second job begins while the first one, whose call has timed out, still works."""
    limiter = anyio.CapacityLimiter(1)
    first, second = Job(), Job()

    async def call(job, seconds):
        with anyio.move_on_after(seconds):
            await anyio.to_thread.run_sync(job.work, limiter=limiter, abandon_on_cancel=abandon)

    async def end_soon():
        """Without abandon_on_cancel the call outlasts its time."""
        await anyio.sleep(1)
        if not abandon:
            first.end.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_soon)
        await call(first, 0.5)
    working = not first.end.is_set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, second, 1)
        await anyio.sleep(0.5)
        beside = second.began.is_set() and working
        first.end.set()
        second.end.set()
    return beside


def main():
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("anyio", "trio")]
    print("Python", platform.python_version(), "-", ", ".join(versions))
    seen = {}
    for backend in ("asyncio", "trio"):
        for abandon in (True, False):
            beside = seen[backend, abandon] = anyio.run(begins_beside, abandon, backend=backend)
            print(f"{backend}, abandon_on_cancel={abandon}: a second job begins beside the first: {beside}")
    two = [case for case, beside in seen.items() if beside]
    sys.exit(None if two == [("asyncio", True)] else "the behaviour has changed")


main()
PYTHON
timeout 120 "$python" "$dir/main.py"
