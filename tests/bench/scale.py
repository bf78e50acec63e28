"""Many: tasks that wait on one client, clients at rest, locks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack, ExitStack
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

import zklock
from tests.bench.peers import connected
from tests.bench.results import Run
from tests.bench.together import LIMIT, Worker, java, new_path, resident, workers
from zklock import aio
from zklock._ground.clock import clock
from zklock._recipes import names
from zklock.testing import Ensemble, ZooKeeperServer, wait_for

TICK = 2000
"""Milliseconds, as is usual: followers bear with a leader that stalls for ten seconds."""
WHILE = 20.0
TASKS = 20
"""How many tasks of a client acquire, or release: its heartbeats wait behind their requests."""
T = TypeVar("T")


# Ten thousand waiters.


def waiters(run: Run, count: int = 10_000) -> None:
    """Thousands of tasks that wait on one client, for one lock and for a hundred.

    Seconds until all are in the queue, memory for each, seconds until all have had their turn, and
    by how much the event loop was late at most, in milliseconds.
    """
    with ZooKeeperServer() as server:
        for locks in (1, 100):
            run.note(
                f"{count} waiters on {locks} lock(s)",
                asyncio.run(queue(server.hosts, count, locks)),
            )


async def queue(hosts: str, count: int, locks: int) -> dict[str, float]:
    """Queue so many waiters on so many locks behind a holder of each, and let them through."""
    async with AsyncExitStack() as stack:
        client, other = [
            await stack.enter_async_context(aio.connect(hosts, timeout=30.0)) for _ in range(2)
        ]
        paths = [new_path() for _ in range(locks)]
        gates = [await aio.Lock(other, path).acquire() for path in paths]
        waiting = [aio.Lock(client, path) for path in paths]

        async def wait(lock: aio.Lock) -> None:
            async with lock:
                pass

        def queued() -> bool:
            there = sum(other.get(path)[1].numChildren for path in paths)
            return bool(there == count + locks)

        gc.collect()
        before, started = resident(), clock()
        async with lateness() as late:
            tasks = [asyncio.create_task(wait(waiting[at % locks])) for at in range(count)]
            await asyncio.to_thread(wait_for, queued, LIMIT)
            found = {"in the queue, s": clock() - started}
            found["memory of each, KiB"] = (resident() - before) / count
            found["threads"] = threading.active_count()
            started = clock()
            for gate in gates:
                assert gate is not None
                gate.abandon()
            async with asyncio.timeout(LIMIT):
                await asyncio.gather(*tasks)
        return {**found, "all had a turn, s": clock() - started, "loop late, ms": late[0]}


@contextlib.asynccontextmanager
async def lateness() -> Any:
    """Measure by how many milliseconds the event loop is late at most."""
    slowest = [0.0]

    async def tick() -> None:
        while True:
            before = clock()
            await asyncio.sleep(0.01)
            slowest[0] = max(slowest[0], 1000 * (clock() - before - 0.01))

    ticking = asyncio.create_task(tick())
    yield slowest
    ticking.cancel()


# Clients at rest.


def rest(run: Run, clients: int = 200) -> None:
    """What clients that wait or hold cost three servers: writes a second, and parts of a core.

    Clients of zklock or of kazoo, with a session timeout of 10 s, stand in the queue of one lock,
    or clients of zklock hold a lock each. The processor is known of servers in local Java alone.
    """
    with Ensemble(3, tick_time=TICK) as servers, ExitStack() as stack:
        watcher = connected("kazoo", servers.hosts, stack)
        for library, waits in (("zklock", True), ("kazoo", True), ("zklock", False)):
            path = new_path()
            watcher.ensure_path(path)
            name = "x" * 32 + "__lock__"
            if library == "zklock":
                name = names.prefix(names.Kind.EXCLUSIVE, "0" * 32)
            for _ in range(2):  # who holds, and who comes first in the queue
                watcher.create(f"{path}/{name}", ephemeral=True, sequence=True)
            given = (servers.hosts, library, path, clients, waits)
            with workers(stand, [given]) as (crowd,):

                def stood(path: str = path) -> bool:
                    return len(watcher.get_children(path)) == clients + 2

                if waits:
                    wait_for(stood, LIMIT)
                assert crowd.hear() == "stands"
                time.sleep(2.0)  # what was sent when they entered is not counted
                found = at_rest(watcher, WHILE)
                run.note(f"{clients} {'wait' if waits else 'hold'}, {library}", found)


def at_rest(watcher: KazooClient, seconds: float) -> dict[str, float]:
    """Return what the servers do for a while."""
    stone = watcher.create(new_path())
    first, (busy, _) = watcher.set(stone, b"").mzxid, java()
    time.sleep(seconds)
    last, (spent, _) = watcher.set(stone, b"").mzxid, java()
    return {
        "writes a second": (last - first - 1) / seconds,
        "servers, of a core": (spent - busy) / seconds,
    }


def stand(pipe: Connection, hosts: str, library: str, path: str, count: int, waits: bool) -> None:
    """Have so many clients wait for one lock, or hold one each, until the process is ended."""
    stack = ExitStack()
    for at in range(count):
        client = connected(library, hosts, stack)
        own = path if waits else f"{path}/{at}"
        lock = client.Lock(own) if library == "kazoo" else zklock.Lock(client, own)
        if waits:
            threading.Thread(target=lock.acquire, daemon=True).start()
        else:
            lock.acquire()
    pipe.send("stands")
    pipe.recv()


# Many locks.


def many_locks(run: Run, locks: int = 100_000, clients: int = 10, timeout: float = 20.0) -> None:
    """A hundred thousand locks, held by ten clients, on three servers.

    Each client has a process, whose tasks acquire free locks on paths of their own. Then all only
    hold. Then another client waits for each lock of one holder, whose process stands still until
    its lease has ended: when its first look finds nothing held, when the last ``on_lost`` is told,
    and when the others have the locks. At last all release.
    """
    count = locks // clients
    with Ensemble(3, tick_time=TICK) as ensemble:
        run.conditions["ZooKeeper"] = ensemble.servers[0].version()
        roots = [new_path() for _ in range(clients)]
        started, (busy, _) = clock(), java()
        with workers(holder, [(ensemble.hosts, timeout, root, count) for root in roots]) as there:
            took = [each.hear() for each in there]
            run.note(
                "acquire",
                {
                    "all, s": clock() - started,
                    "clients' processor, ms a lock": 1000 * sum(it for it, _ in took) / locks,
                    "servers' processor, ms a lock": 1000 * (java()[0] - busy) / locks,
                    "memory of a client, KiB a lock": sum(it for _, it in took) / locks,
                },
            )
            time.sleep(timeout)  # all watches are placed
            run.note("servers", {"memory, MiB": java()[1]})
            leader = ensemble.leader()
            before, (busy, _), spent = leader.status(), java(), spent_by(there)
            time.sleep(2 * timeout)
            run.note(
                "hold",
                {
                    "heartbeats a second": (leader.status().zxid - before.zxid) / (2 * timeout),
                    "clients, of a core": (spent_by(there) - spent) / (2 * timeout),
                    "servers, of a core": (java()[0] - busy) / (2 * timeout),
                },
            )
            run.note("a lease ends", lose(ensemble.hosts, timeout, roots[0], count, there[0]))
            started = clock()
            for each in there[1:]:
                each.pipe.send("release")
            for each in there[1:]:
                each.hear()
            run.note(f"release {locks - count}", {"s": clock() - started})


def spent_by(there: list[Worker]) -> float:
    """Return the seconds of processor time of all."""
    return float(sum(each.ask() for each in there))


def lose(hosts: str, timeout: float, root: str, count: int, loser: Worker) -> dict[str, float]:
    """Have a process stand still, while another waits for each of its locks."""
    with workers(heir, [(hosts, timeout, root, count)]) as (waiting,):
        assert waiting.hear() == "all wait"
        loser.pipe.send("watch")
        assert loser.process.pid is not None
        os.kill(loser.process.pid, signal.SIGSTOP)
        stopped = clock()
        time.sleep(0.8 * timeout)
        os.kill(loser.process.pid, signal.SIGCONT)
        went_on = clock()
        seen, told = loser.hear()
        last = waiting.hear()
        return {
            "to the first look, s": seen - went_on,
            "to the last on_lost, s": told - went_on,
            "from the stop until others have all, s": last - stopped,
        }


def holder(pipe: Connection, hosts: str, timeout: float, root: str, count: int) -> None:
    """Acquire all locks of a root, tell what it took, and obey."""
    asyncio.run(_hold(pipe, hosts, timeout, root, count))


async def _hold(pipe: Connection, hosts: str, timeout: float, root: str, count: int) -> None:
    losses: list[float] = []
    before, busy = resident(), time.process_time()
    async with aio.connect(hosts, timeout=timeout) as client:

        async def acquire(number: int) -> aio.Grant:
            lock = aio.Lock(client, f"{root}/{number}", on_lost=lambda _: losses.append(clock()))
            grant = await lock.acquire()
            assert grant is not None
            return grant

        grants = await shared(map(acquire, range(count)))
        pipe.send((time.process_time() - busy, resident() - before))
        while True:
            match await asyncio.to_thread(pipe.recv):
                case "watch":
                    while grants[0].held:
                        await asyncio.sleep(0.001)
                    seen = clock()
                    while len(losses) < count:
                        await asyncio.sleep(0.01)
                    pipe.send((seen, losses[-1]))
                case "release":
                    await shared(grant.release() for grant in grants)
                    pipe.send("released")
                case _:
                    pipe.send(time.process_time())


def heir(pipe: Connection, hosts: str, timeout: float, root: str, count: int) -> None:
    """Wait for all locks of a root; tell when all wait, and when the last one was granted."""
    asyncio.run(_inherit(pipe, hosts, timeout, root, count))


async def _inherit(pipe: Connection, hosts: str, timeout: float, root: str, count: int) -> None:
    async with aio.connect(hosts, timeout=timeout) as client:
        locks = [aio.Lock(client, f"{root}/{number}") for number in range(count)]
        waiting = asyncio.gather(*(lock.acquire() for lock in locks))
        there = 0
        while there < 2:  # those of the last one came last
            with contextlib.suppress(KazooException):
                path = f"{root}/{count - 1}"
                there = len(await asyncio.to_thread(client.get_children, path))
            await asyncio.sleep(0.1)
        pipe.send("all wait")
        await waiting
        pipe.send(clock())
        await asyncio.to_thread(pipe.recv)


async def shared(jobs: Iterator[Awaitable[T]]) -> list[T]:
    """Do all jobs, in a few tasks; return their results."""
    found: list[T] = []

    async def some() -> None:
        for job in jobs:
            found.append(await job)  # noqa: PERF401 - the tasks share what is left

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(some())
    return found
