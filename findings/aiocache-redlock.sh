#!/usr/bin/env bash
# The guess: aiocache's `RedLock` is a lock: one task is inside `async with RedLock(…)` at a time.
# Instead: only the first is alone. When it leaves, or when its lease is over, *all* that wait go in together: the
#   class keeps many from computing one cache entry, and expects the later ones to find it there.
# Why it matters: with anything but "fill the cache" inside the block it excludes nobody but the first, although the
#   name is that of a locking algorithm.
# Seen: aiocache 0.12.3, 2026-11-27.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install aiocache==0.12.3 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 60 "$python" - <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

from aiocache import SimpleMemoryCache
from aiocache.lock import RedLock

print("aiocache", version("aiocache"))


async def most_inside(tasks, work, lease):
    """The greatest number of tasks that were inside at once, while the first was in and after it."""
    cache, inside, most, first_done = SimpleMemoryCache(), 0, [0, 0], False

    async def task():
        nonlocal inside, first_done
        async with RedLock(cache, "job", lease=lease):
            inside += 1
            most[first_done] = max(most[first_done], inside)
            await asyncio.sleep(work)
            inside -= 1
            first_done = True

    await asyncio.gather(*(task() for _ in range(tasks)))
    return most


during, after = asyncio.run(most_inside(5, work=0.5, lease=30))
print(f"five tasks: inside at once while the first is in: {during}, after it has left: {after}")
lapsed, _ = asyncio.run(most_inside(5, work=1.5, lease=0.5))
print(f"five tasks, a lease shorter than the work: inside at once: {lapsed}")
sys.exit(None if (during, after, lapsed) == (1, 4, 5) else "the behaviour has changed")
PYTHON
