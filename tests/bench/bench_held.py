"""One client that holds many locks: ``python -m tests.bench.bench_held [COUNT]``.

Tasks of one process acquire so many free locks, each on a path of its own, on one server that is
run for it. Then the client only holds them, for some session timeouts, and at last releases them.
For each part: seconds, and the processor time of this process, which a busy machine changes less.
While it holds: the requests that the server has counted, and the transactions among them, which
are the heartbeats. This begins one session timeout after the last grant, when all watches are
placed. Memory for each held lock is what this process has grown by until then, the lock and its
grant included. ``tracemalloc`` counts what Python's objects take of it, once more, with fewer
locks.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
import tracemalloc
import uuid
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kazoo.client import KazooClient

from tests.bench.bench_waiters import resident
from tests.bench.results import measured_with, write
from zklock import aio
from zklock.testing import ServerStatus, ZooKeeperServer

TASKS = 200
"""How many tasks share the work of acquiring, and of releasing."""
TRACED = 2000
"""How many locks are held at most while tracemalloc counts."""

T = TypeVar("T")


@dataclass
class Took:
    """The seconds of a part, and the seconds of processor time in it."""

    seconds: float
    processor: float


async def timed(work: Awaitable[T]) -> tuple[T, Took]:
    """Return a result, and what it took."""
    started, busy = time.perf_counter(), time.process_time()
    found = await work
    return found, Took(time.perf_counter() - started, time.process_time() - busy)


async def shared(jobs: Iterator[Awaitable[T]], tasks: int = TASKS) -> list[T]:
    """Do all jobs, in a few tasks; return their results."""
    found: list[T] = []

    async def some() -> None:
        found.extend([await job for job in jobs])

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(some())
    return found


async def acquired(client: KazooClient, root: str, count: int) -> list[tuple[aio.Lock, aio.Grant]]:
    """Acquire so many locks below a path."""

    async def acquire(path: str) -> tuple[aio.Lock, aio.Grant]:
        lock = aio.Lock(client, path)
        grant = await lock.acquire()
        assert grant is not None
        return lock, grant

    return await shared(acquire(f"{root}/{number}") for number in range(count))


async def released(held: list[tuple[aio.Lock, aio.Grant]], tasks: int = TASKS) -> None:
    """Release them all."""
    await shared((grant.release() for _, grant in held), tasks)


def new_root() -> str:
    return f"/bench-{uuid.uuid4().hex[:8]}"


def beats(before: ServerStatus, after: ServerStatus, timeouts: float) -> dict[str, float]:
    """Return the requests, and the transactions, in a session timeout between two answers.

    The server counts the second question, too, as a request.
    """
    return {
        "requests": (after.received - before.received - 1) / timeouts,
        "transactions": (after.zxid - before.zxid) / timeouts,
    }


async def hold(server: ZooKeeperServer, timeout: float, timeouts: float, count: int) -> object:
    """Print and return what one client takes that acquires, holds and releases so many locks."""
    async with aio.connect(server.hosts, timeout=timeout) as client:
        await released(await acquired(client, new_root(), TASKS))  # what is made once
        gc.collect()
        memory = resident()
        held, acquiring = await timed(acquired(client, new_root(), count))
        report("acquire", count, acquiring)
        await asyncio.sleep(timeout)
        gc.collect()
        memory = resident() - memory
        before = await asyncio.to_thread(server.status)
        _, holding = await timed(asyncio.sleep(timeouts * timeout))
        after = await asyncio.to_thread(server.status)
        assert all(grant.held for _, grant in held)
        asked = beats(before, after, timeouts)
        core = holding.processor / holding.seconds
        print(
            f"hold     {count} locks for {holding.seconds:.1f} s: {memory / count / 1024:.2f} KiB "
            f"each; {core:.2%} of a core; in a session timeout {asked['requests']:.1f} requests, "
            f"of these {asked['transactions']:.1f} transactions"
        )
        _, releasing = await timed(released(held))
        report("release", count, releasing)
        del held
        few = min(count, TRACED)
        traced = await traced_size(client, few)
        print(f"tracemalloc, {few} locks: {traced / 1024:.2f} KiB each")
        return {
            "acquire": vars(acquiring),
            "hold": {**vars(holding), **asked, "core": core},
            "release": vars(releasing),
            "resident": memory / count,
            "traced": traced,
        }


def report(what: str, count: int, took: Took) -> None:
    print(
        f"{what:8} {count} locks in {took.seconds:.1f} s ({count / took.seconds:.0f}/s), "
        f"{took.processor:.1f} s of processor time",
        flush=True,
    )


async def traced_size(client: KazooClient, count: int) -> float:
    """Return the bytes of Python's objects for each of so many held locks."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        held = await acquired(client, new_root(), count)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await released(held)
    return (after - before) / count


def main(arguments: list[str] | None = None) -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=50_000)
    parser.add_argument("--timeout", type=float, default=10.0, help="of the session, in seconds")
    parser.add_argument("--hold", type=float, default=3.0, help="for so many session timeouts")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(arguments)
    print(measured_with())
    with ZooKeeperServer(tick_time=2000) as server:
        found = asyncio.run(hold(server, options.timeout, options.hold, options.count))
        conditions: dict[str, object] = {
            "count": options.count,
            "timeout": options.timeout,
            "ZooKeeper": server.version(),
            "backend": server.backend,
        }
    if options.json:
        write(options.json, conditions, found)


if __name__ == "__main__":
    main()
