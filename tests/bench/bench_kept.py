"""Locks that stay with their client: ``python -m tests.bench.bench_kept``, on a server of its own.

With ``keep=``, beside the same without it, kazoo's Lock and Curator's mutex, in turn:

- *alone*: acquire and release, on the main thread, and in a task;
- *many*: grants a second of 16 threads, and of 1,000 tasks, of one client on one lock;
- *asked*: for how long another client waits for an idle kept lock, beside a free lock and one
  notification; and from the release on for one in use, beside a lock that is not kept;
- *rest*: writes a second while four processes keep 1,000 locks each, beside four processes that
  hold one lock each: their heartbeats;
- *turns*: grants a second of two processes that want one lock all the time, with bodies of nothing
  and of 2 ms. The longer body has the other one stand in the queue at each release: the worst case.

Ratios are of medians, or of grants a second.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

import zklock
from tests.bench.bench_lock import ROOT, alternated, begin_together, line, told
from tests.bench.peers import (
    Jvm,
    Maker,
    connected,
    cycle_of,
    warm_jvm,
    with_asyncio,
    with_kazoo,
    with_zklock,
)
from tests.bench.results import measured_with, quantiles, write
from zklock import aio
from zklock.testing import ZooKeeperServer, wait_for

KEEP = 600.0
THREADS, TASKS = 16, 1000
BODY = 0.002
"""Seconds."""
PROCESSES = 4
SOON = 120.0

Figures = dict[str, Any]


def new_path() -> str:
    return f"/bench-{uuid.uuid4().hex}"


# Alone.


def alone(hosts: str, blocks: int, size: int, jvm: Jvm | None) -> Figures:
    """Print and return what acquire and release take."""
    makers: dict[str, Maker] = {
        "kept": partial(with_zklock, keep=KEEP),
        "kept, asyncio": partial(with_asyncio, keep=KEEP),
        "zklock": with_zklock,
        "kazoo": with_kazoo,
    }
    if jvm is not None:
        makers["curator"] = jvm.make
    with ExitStack() as stack:
        made = {name: make(hosts, new_path(), stack) for name, make in makers.items()}
        took = alternated(made, blocks, size)
    found = {name: each.figures for name, each in took.items()}
    peers = {name: found[name]["p50"] for name in ("kazoo", "curator") if name in found}
    print(f"acquire + release, {blocks} blocks of {size}:")
    for name, figures in found.items():
        print(line(name, figures, {}), end="")
        print("".join(f"{figures['p50'] / each:8.4f} × {peer}" for peer, each in peers.items()))
    return found


# Many.


def by_threads(lock: Callable[[], Any], count: int, seconds: float) -> float:
    """Return the grants a second of so many threads, each with a lock object of its own."""
    grants = [0] * count
    over = threading.Event()

    def take(number: int) -> None:
        cycle = cycle_of(lock())
        while not over.is_set():
            cycle()
            grants[number] += 1

    threads = [threading.Thread(target=take, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    return sum(grants) / seconds


async def by_tasks(hosts: str, count: int, seconds: float, keep: float | None) -> float:
    """Return the grants a second of so many tasks of one client on one lock."""
    path, grants = new_path(), 0
    async with aio.connect(hosts, timeout=10.0) as client:
        until = time.monotonic() + seconds

        async def take() -> None:
            nonlocal grants
            lock = aio.Lock(client, path, keep=keep)
            while time.monotonic() < until:
                async with lock:
                    grants += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(take())
    return grants / seconds


def many(hosts: str, rounds: int, seconds: float, tasks: int) -> Figures:
    """Print and return the grants a second of one client's threads and tasks on one lock."""
    with ExitStack() as stack:
        ours, theirs = connected("zklock", hosts, stack), connected("kazoo", hosts, stack)

        def threads_of(keep: float | None) -> float:
            path = new_path()
            return by_threads(lambda: zklock.Lock(ours, path, keep=keep), THREADS, seconds)

        def kazoos() -> float:
            path = new_path()
            return by_threads(lambda: theirs.Lock(path), THREADS, seconds)

        def tasks_of(keep: float | None) -> float:
            return asyncio.run(by_tasks(hosts, tasks, seconds, keep))

        return rates(
            f"grants a second of one client on one lock, {rounds} × {seconds:g} s:",
            {
                f"kept, {THREADS} threads": partial(threads_of, KEEP),
                f"kept, {tasks} tasks": partial(tasks_of, KEEP),
                f"zklock, {THREADS} threads": partial(threads_of, None),
                f"zklock, {tasks} tasks": partial(tasks_of, None),
                f"kazoo, {THREADS} threads": kazoos,
            },
            rounds,
        )


def rates(title: str, measures: Mapping[str, Callable[[], float]], rounds: int) -> Figures:
    """Print and return the medians of what is measured in turn, as multiples of the last one."""
    each: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            each[name].append(measure())
    found = {name: statistics.median(rounds) for name, rounds in each.items()}
    *_, last = measures
    print(title)
    for name, rate in found.items():
        print(f"  {name:23}{rate:10.0f} /s{rate / found[last]:9.2f} × {last}", flush=True)
    return found


# Asked for.


def kept_idle(lock: Any) -> None:
    """Have the lock kept, watched, and idle."""
    with lock:
        pass
    with lock as grant:
        assert grant.kept


def notification(watching: KazooClient, client: KazooClient) -> float:
    """Return the seconds from a create by one client until another one hears of it."""
    path, heard = new_path(), threading.Event()
    watching.exists(path, watch=lambda _: heard.set())
    started = time.perf_counter()
    client.create_async(path)
    assert heard.wait(SOON)
    return time.perf_counter() - started


def handed(holder: Any, lock: Any, other: KazooClient) -> float:
    """Return the seconds from the release of a held lock until another one has it."""
    got: list[float] = []

    def wait() -> None:
        with lock:
            got.append(time.perf_counter())

    with holder:
        thread = threading.Thread(target=wait)
        thread.start()
        wait_for(lambda: len(other.get_children(lock.path)) == 2, SOON)
        time.sleep(0.01)  # what the other one does when it has come is over
        started = time.perf_counter()
    thread.join()
    return got[0] - started


def asked(hosts: str, times: int) -> Figures:
    """Print and return for how long another client waits."""
    took: dict[str, list[float]] = {
        "a free lock": [],
        "a notification": [],
        "an idle kept lock": [],
        "one in use": [],
        "one in use, kept": [],
    }
    with ExitStack() as stack:
        keeper, other, third = (connected("zklock", hosts, stack) for _ in range(3))

        def acquired(path: str) -> float:
            started = time.perf_counter()
            with zklock.Lock(other, path):
                return time.perf_counter() - started

        for _ in range(times):
            free, kept = new_path(), new_path()
            with zklock.Lock(third, free):
                pass  # the path is there
            kept_idle(zklock.Lock(keeper, kept, keep=KEEP))
            took["a free lock"].append(acquired(free))
            took["a notification"].append(notification(keeper, other))
            took["an idle kept lock"].append(acquired(kept))
            for name, keep in (("one in use", None), ("one in use, kept", KEEP)):
                path = new_path()
                holder = zklock.Lock(keeper, path, keep=keep)
                if keep:
                    kept_idle(holder)
                took[name].append(handed(holder, zklock.Lock(other, path), third))
    found = {name: quantiles(each) for name, each in took.items()}
    print(f"another client asks, {times} times:")
    for name, figures in found.items():
        print(f"  {name:23}{figures['p50'] * 1e6:7.0f} µs median{figures['p90'] * 1e6:7.0f} µs p90")
    allowed = 2 * found["a free lock"]["p50"] + found["a notification"]["p50"]
    idle = found["an idle kept lock"]["p50"] / allowed
    used = found["one in use, kept"]["p50"] / found["one in use"]["p50"]
    print(
        f"  idle {idle:.2f} × (2 × free + a notification); in use {used:.2f} × not kept", flush=True
    )
    return found


# At rest.


@contextmanager
def at_rest(hosts: str, count: int, keep: float | None) -> Iterator[None]:
    """Have processes hold, or keep, so many locks each."""
    words = [sys.executable, "-m", "tests.bench.bench_kept", "--rest", hosts, new_path()]
    with ExitStack() as stack:
        processes = []
        for number in range(PROCESSES):
            command = [*words, str(number), str(count), str(keep or 0.0)]
            process = stack.enter_context(
                subprocess.Popen(
                    command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield
        for process in processes:
            process.communicate("\n", timeout=SOON)


async def rest(hosts: str, path: str, number: str, count: str, keep: str) -> None:
    """Keep locks until the other process says so; without ``keep``, hold them."""
    held: list[aio.Grant] = []
    async with aio.connect(hosts, timeout=10.0) as client:

        async def take(lock: aio.Lock) -> None:
            grant = await lock.acquire()
            assert grant is not None
            if not float(keep):
                held.append(grant)
            else:
                await lock.release()
                again = None
                while again is None or not again.kept:  # it is kept when the queue is watched
                    async with lock as again:
                        pass

        each = [
            aio.Lock(client, f"{path}/{number}-{one}", keep=float(keep) or None)
            for one in range(int(count))
        ]
        jobs: Iterator[Awaitable[None]] = map(take, each)

        async def some() -> None:
            for job in jobs:
                await job

        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(some())
        await asyncio.to_thread(begin_together)
        for grant in held:
            await grant.release()


def resting(server: ZooKeeperServer, count: int, seconds: float) -> Figures:
    """Print and return the writes a second while processes keep locks, and while they hold one."""

    def writes(count: int, keep: float | None) -> float:
        with at_rest(server.hosts, count, keep):
            time.sleep(2.0)  # what was sent when they came to rest is not counted
            before, started = server.status().zxid, time.monotonic()
            time.sleep(seconds)
            return (server.status().zxid - before) / (time.monotonic() - started)

    found = {
        f"{PROCESSES} processes keep {count} locks each": writes(count, KEEP),
        f"{PROCESSES} processes hold one lock each": writes(1, None),
    }
    print(f"writes a second, for {seconds:g} s:")
    for name, rate in found.items():
        print(f"  {name:40}{rate:8.2f} /s", flush=True)
    return found


# In turns.


def taking_turns(hosts: str, rounds: int, seconds: float) -> Figures:
    """Print and return the grants a second of two processes on one lock."""

    def turns(keep: float, body: float) -> float:
        words = ["-m", "tests.bench.bench_kept", "--turns", hosts, new_path(), str(keep), str(body)]
        command = [sys.executable, *words, str(seconds)]
        return float(sum(told(command, 2, seconds + SOON))) / seconds

    return {
        f"{body * 1e3:g} ms": rates(
            f"grants a second of two processes, bodies of {body * 1e3:g} ms, "
            f"{rounds} × {seconds:g} s:",
            {"kept": partial(turns, KEEP, body), "zklock": partial(turns, 0.0, body)},
            rounds,
        )
        for body in (0.0, BODY)
    }


def take_turns(hosts: str, path: str, keep: str, body: str, seconds: str) -> None:
    """Take the lock in turns with another process for so long, and tell how often."""
    with ExitStack() as stack:
        lock = zklock.Lock(connected("zklock", hosts, stack), path, keep=float(keep))
        with lock:
            pass
        begin_together()
        count = 0
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            with lock:
                if float(body):
                    time.sleep(float(body))
            count += 1
        print(count, flush=True)


def measure(options: argparse.Namespace, server: ZooKeeperServer) -> tuple[Figures, Figures]:
    """Measure the chosen parts; return the conditions and the figures."""
    conditions: Figures = {"ZooKeeper": server.version(), "backend": server.backend}
    figures: Figures = {}
    hosts, rounds, seconds = server.hosts, options.rounds, options.seconds
    with ExitStack() as stack:
        jvm = warm_jvm(hosts, stack) if "alone" in options.parts else "not asked for"
        if isinstance(jvm, Jvm):
            conditions["Curator"] = jvm.version
        elif "alone" in options.parts:
            print(f"Curator is missing: {jvm}")
        curator = jvm if isinstance(jvm, Jvm) else None
        parts: dict[str, Callable[[], Figures]] = {
            "alone": lambda: alone(hosts, options.blocks, options.size, curator),
            "many": lambda: many(hosts, rounds, seconds, options.tasks),
            "asked": lambda: asked(hosts, options.size),
            "rest": lambda: resting(server, options.locks, 10 * seconds),
            "turns": lambda: taking_turns(hosts, rounds, seconds),
        }
        for part in options.parts:
            figures[part] = parts[part]()
    return conditions, figures


def main(arguments: list[str] | None = None) -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = ("alone", "many", "asked", "rest", "turns")
    parser.add_argument("parts", nargs="*", default=every, metavar="PART", help=", ".join(every))
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--size", type=int, default=100, help="cycles in a block; times asked")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--locks", type=int, default=1000, help="that each process keeps")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--rest", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--turns", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rest:
        asyncio.run(rest(*options.rest))
        return
    if options.turns:
        take_turns(*options.turns)
        return
    print(measured_with())
    with ZooKeeperServer(tick_time=2000) as server:
        conditions, figures = measure(options, server)
    told = ("blocks", "size", "rounds", "seconds", "tasks", "locks")
    if options.json:
        write(options.json, {each: getattr(options, each) for each in told} | conditions, figures)


if __name__ == "__main__":
    main()
