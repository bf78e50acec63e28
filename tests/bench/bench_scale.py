"""Many locks, and many sessions, on three servers: ``python -m tests.bench.bench_scale``.

**Locks** (``--locks``, 100,000) are held by ten clients. Each has a process, whose tasks acquire
free locks on paths of their own. Then all only hold. Then another client waits for each lock of one
holder, and the holder's process stands still: once for 0.8 session timeouts, so that its lease ends
and its session lives, and once until its session has ended. Of both: when its first look finds
nothing held, when the last ``on_lost`` is told, and when the others have the locks. At last all
release.

**Sessions** (``--sessions``, 10,000) are sockets without a client, with an ephemeral node each, in
one process. They ping, as clients that hold nothing; and then send heartbeats, as clients that hold
a lock. Beside them a client of zklock holds a lock; its least lease is looked at while a server is
killed, and its clients go to the others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

import zklock
from tests.bench.bench_rest import LIMIT, TICK, WHILE, ancestors, processor
from tests.bench.bench_waiters import resident
from tests.bench.results import measured_with, write
from zklock import aio
from zklock._ground.clock import clock
from zklock.testing import Ensemble
from zklock.testing.zookeeper import codec

TASKS = 20
"""How many tasks of a client acquire, or release: its heartbeats wait behind their requests."""

LONGEST = 20 * TICK / 1000
"""The longest session timeout that the servers grant, in seconds."""

HOLDS = 2
"""For so many session timeouts they only hold."""


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


async def shared(jobs: Iterator[Awaitable[T]]) -> list[T]:
    """Do all jobs, in a few tasks; return their results."""
    found: list[T] = []

    async def some() -> None:
        found.extend([await job for job in jobs])

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(some())
    return found


async def released(grants: list[aio.Grant]) -> None:
    """Release them all."""
    await shared(grant.release() for grant in grants)


def new_root() -> str:
    return f"/bench-{uuid.uuid4().hex[:8]}"


class Bare(asyncio.Protocol):
    """A session without a client: a socket that asks, and counts the answers.

    It has an ephemeral node. When its connection ends, it goes to another server.
    """

    def __init__(self, crowd: Crowd, number: int) -> None:
        self.alive = asyncio.Event()
        self._crowd = crowd
        self._number = number
        self._session, self._password = 0, bytes(16)
        self._splitter = codec.Splitter()
        self._transport: asyncio.WriteTransport | None = None

    async def connect(self) -> None:
        """Connect to the next server, until one accepts."""
        while not self._crowd.over:
            host, _, port = self._crowd.next_host().rpartition(":")
            try:
                await asyncio.get_running_loop().create_connection(lambda: self, host, int(port))
                return
            except OSError:
                await asyncio.sleep(random.uniform(0, 1))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport, self._splitter = transport, codec.Splitter()
        asked = (0, 0, int(self._crowd.timeout * 1000), self._session, self._password, False)
        transport.write(codec.framed(codec.CONNECT.pack(asked)))

    def data_received(self, data: bytes) -> None:
        bodies, _ = self._splitter.feed(data)
        for body in bodies:
            if self.alive.is_set():
                self._crowd.answered += 1
                continue
            (_, _, session, password, _), _ = codec.CONNECTED.unpack(body)
            if not session:
                self._crowd.expired += 1
                self._session, self._password = 0, bytes(16)
            else:
                if not self._session:
                    acl = [(31, "world", "anyone")]
                    self.ask(codec.Op.CREATE, (f"{self._crowd.root}/{self._number}", b"", acl, 1))
                self._session, self._password = session, password
                self.alive.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.alive.clear()
        self._crowd.lost += 1
        if not self._crowd.over:
            self._crowd.start(self.connect())

    def ask(self, op: codec.Op, *values: Any) -> None:
        """Send a request."""
        if self._transport is not None:
            head = codec.ASKED.pack((-2 if op is codec.Op.PING else 1, op))
            self._transport.write(codec.framed(head + codec.REQUESTS[op].pack(*values)))

    def touch(self, proves: bool) -> None:
        """Ping as kazoo does, or prove that the session lives, as who holds a lock does."""
        if proves:
            path = f"{self._crowd.root}/{self._number}"
            self.ask(codec.Op.MULTI, ([(codec.Op.CHECK, (path, -1))],))
        else:
            self.ask(codec.Op.PING, ())


class Crowd:
    """Many such sessions in one process, and how often they are heard."""

    def __init__(self, hosts: str, root: str, timeout: float) -> None:
        self.root, self.timeout = root, timeout
        self.answered = self.expired = self.lost = 0
        self.over = False
        self.proves = False
        self._hosts = itertools.cycle(hosts.split(","))
        self._sessions: deque[Bare] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def next_host(self) -> str:
        """Return another server than the last time."""
        return next(self._hosts)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin some work."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def come(self, count: int) -> None:
        """Make so many sessions."""
        self.start(self._touch())

        async def one(number: int) -> None:
            self._sessions.append(Bare(self, number))
            await self._sessions[-1].connect()
            await self._sessions[-1].alive.wait()

        await shared(map(one, range(count)))

    async def all_back(self) -> None:
        """Wait until some have lost their connection, and each has one."""
        while not self.lost or not all(each.alive.is_set() for each in self._sessions):
            await asyncio.sleep(0.05)

    async def _touch(self) -> None:
        """Send what is due: ten proofs in a session timeout, or three pings."""
        turn, began = 0.0, clock()
        while not self.over:
            await asyncio.sleep(0.02)
            now = clock()
            turn += (now - began) * len(self._sessions) * (10 if self.proves else 3) / self.timeout
            began = now
            for _ in range(int(turn)):
                self._sessions.rotate(-1)
                self._sessions[-1].touch(self.proves)
            turn -= int(turn)


@dataclass(frozen=True, slots=True)
class Part:
    """A process with one client: it acquires all locks of a root, tells what it took, and obeys."""

    hosts: str
    timeout: float
    root: str
    count: int
    waits: bool

    def play(self, told: Connection) -> None:
        """Run, in the process."""
        asyncio.run(self._play(told))

    async def _play(self, told: Connection) -> None:
        before = resident()
        losses: list[float] = []
        over = asyncio.Event()

        def lost(_: object) -> None:
            losses.append(clock())
            if len(losses) == self.count:
                over.set()

        async with aio.connect(self.hosts, timeout=self.timeout) as client:
            locks = [
                aio.Lock(client, f"{self.root}/{number}", on_lost=lost)
                for number in range(self.count)
            ]
            times: list[float] = []

            async def acquire(lock: aio.Lock) -> aio.Grant:
                grant = await lock.acquire()
                assert grant is not None
                times.append(clock())
                return grant

            if self.waits:
                waiting = asyncio.gather(*map(acquire, locks))
                await self._queued(client)
                told.send("all wait")
                grants: list[aio.Grant] = await waiting
                told.send((times[0], times[-1]))
            else:
                grants, took = await timed(shared(map(acquire, locks)))
                told.send((took, resident() - before))
            while (order := await asyncio.to_thread(told.recv)) != "end":
                if order == "release":
                    _, took = await timed(released(grants))
                    told.send(took)
                elif order == "margin":
                    told.send(await self._margin(told, grants[0]))
                else:
                    told.send(time.process_time())
                    if order == "watch":
                        while grants[0].held:
                            await asyncio.sleep(0.001)
                        seen = clock()
                        await over.wait()
                        told.send((seen, losses[-1]))

    @staticmethod
    async def _margin(told: Connection, grant: aio.Grant) -> float:
        """Return the least lease until the next order, in seconds."""
        least = grant.remaining()
        while not told.poll():
            least = min(least, grant.remaining())
            await asyncio.sleep(0.01)
        return least

    async def _queued(self, client: KazooClient) -> None:
        """Wait until somebody stands second in each queue; those of the last one came last."""
        path = f"{self.root}/{self.count - 1}"
        there = 0
        while there < 2:
            with contextlib.suppress(KazooException):
                there = len(await asyncio.to_thread(client.get_children, path))
            await asyncio.sleep(0.1)


class Process:
    """A process that plays a part."""

    def __init__(self, part: Part) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, theirs = context.Pipe()
        self.process = context.Process(target=part.play, args=(theirs,))
        self.process.start()
        theirs.close()

    def hear(self) -> Any:
        """Return what it says next."""
        if not self._end.poll(LIMIT):
            raise TimeoutError("a process says nothing")
        return self._end.recv()

    def tell(self, order: str) -> None:
        """Give an order."""
        self._end.send(order)

    def ask(self, order: str) -> Any:
        """Give an order, and return the answer."""
        self.tell(order)
        return self.hear()

    def signal(self, number: signal.Signals) -> float:
        """Send a signal, and return when."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        return clock()


@contextmanager
def processes(parts: list[Part]) -> Iterator[list[Process]]:
    """Run processes that play these parts, and end them."""
    with ExitStack() as stack:
        found = []
        for part in parts:
            found.append(Process(part))
            stack.callback(found[-1].process.join)
            stack.callback(found[-1].process.kill)
        yield found
        for each in found:
            each.tell("end")
            each.process.join(LIMIT)


def memory_of_servers() -> float:
    """Return the MiB of memory of all Java that was started here."""
    parents, pages = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        head, _, tail = stat.read_text().rpartition(")")
        parents[int(stat.parent.name)] = int(tail.split()[1])
        if head.endswith("(java"):
            pages[int(stat.parent.name)] = int(tail.split()[21])
    found = sum(size for pid, size in pages.items() if os.getpid() in ancestors(pid, parents))
    return found * os.sysconf("SC_PAGE_SIZE") / 2**20


class Measuring:
    """Measures on an ensemble, and prints it."""

    def __init__(self, ensemble: Ensemble, timeout: float) -> None:
        self.figures: dict[str, float] = {}
        self._ensemble = ensemble
        self._timeout = timeout

    def note(self, what: str, figure: float, unit: str) -> None:
        """Keep a figure, and print it."""
        self.figures[what] = figure
        print(f"{what:<66} {figure:10.4g} {unit}", flush=True)

    def hold(self, clients: int, count: int) -> None:
        """Have clients hold so many locks each."""
        roots = [new_root() for _ in range(clients)]
        parts = [self._part(root, count, waits=False) for root in roots]
        started, busy = clock(), processor()
        with processes(parts) as holders:
            took, memory = zip(*(each.hear() for each in holders), strict=True)
            self.note("acquire all", clock() - started, "s")
            self.note("... by the clients' processor", sum(each.processor for each in took), "s")
            self.note("... by the servers' processor", processor() - busy, "s")
            self.note(
                "memory of a client for each lock", sum(memory) / clients / count / 1024, "KiB"
            )
            time.sleep(self._timeout)  # all watches are placed
            self.note("memory of the servers", memory_of_servers(), "MiB")
            self._rest(holders)
            for stops, name in ((0.8, "lease"), (2.0, "session")):
                holder = holders.pop()
                self._lose(holder, roots.pop(), count, stops * self._timeout, name)
                holder.tell("end")
            started = clock()
            for each in holders:
                each.tell("release")
            took = tuple(each.hear() for each in holders)
            self.note(f"release {len(holders) * count}", clock() - started, "s")
            self.note("... by those clients' processor", sum(each.processor for each in took), "s")

    async def crowd(self, count: int) -> None:
        """Have so many sessions beside a holder, and kill a server."""
        with zklock.connect(self._ensemble.hosts) as client:
            client.ensure_path(root := new_root())
        before = memory_of_servers()
        crowd = Crowd(self._ensemble.hosts, root, LONGEST)
        began = clock()
        await crowd.come(count)
        self.note("sessions: until all have a node", clock() - began, "s")
        with processes([self._part(new_root(), 1, waits=False)]) as (holder,):
            await asyncio.to_thread(holder.hear)
            for crowd.proves, name in ((False, "ping"), (True, "hold")):
                await asyncio.sleep(LONGEST / 10)
                began, busy, spent = clock(), processor(), time.process_time()
                answered = crowd.answered
                await asyncio.sleep(WHILE)
                took = clock() - began
                told = (crowd.answered - answered) / took
                self.note(f"sessions that {name}: answers a second", told, "")
                core = 100 / took
                self.note(f"... {name}, servers", (processor() - busy) * core, "% of a core")
                self.note(
                    f"... {name}, this process", (time.process_time() - spent) * core, "% of a core"
                )
            self.note("memory of the servers, more", memory_of_servers() - before, "MiB")
            crowd.proves = False
            await asyncio.sleep(LONGEST / 10)
            leader = self._ensemble.leader()
            victim = next(each for each in self._ensemble.servers if each is not leader)
            holder.tell("margin")
            began = clock()
            victim.kill()
            await crowd.all_back()
            self.note("a server is killed: until all sessions are back", clock() - began, "s")
            self.note("... connections that were lost", crowd.lost, "")
            self.note("... sessions that ended", crowd.expired, "")
            await asyncio.sleep(self._timeout)
            self.note("... the holder's least lease", holder.ask("margin"), "s")
            victim.launch()
            await asyncio.to_thread(self._ensemble.wait_until_serving, LIMIT)
        crowd.over = True

    def _part(self, root: str, count: int, *, waits: bool) -> Part:
        return Part(self._ensemble.hosts, self._timeout, root, count, waits)

    def _rest(self, holders: list[Process]) -> None:
        """Measure while all only hold."""
        leader = self._ensemble.leader()
        before, busy = leader.status(), processor()
        spent = sum(each.ask("processor") for each in holders)
        seconds = HOLDS * self._timeout
        time.sleep(seconds)
        spent = sum(each.ask("processor") for each in holders) - spent
        self.note("heartbeats a second", (leader.status().zxid - before.zxid) / seconds, "")
        self.note("processor of the clients", spent / seconds * 100, "% of a core")
        self.note("processor of the servers", (processor() - busy) / seconds * 100, "% of a core")

    def _lose(self, holder: Process, root: str, count: int, seconds: float, what: str) -> None:
        """Have a process stand still, while another waits for each of its locks."""
        with processes([self._part(root, count, waits=True)]) as (heir,):
            assert heir.hear() == "all wait"
            holder.ask("watch")
            stopped = holder.signal(signal.SIGSTOP)
            time.sleep(seconds)
            went_on = holder.signal(signal.SIGCONT)
            seen, told = holder.hear()
            first, last = heir.hear()
            self.note(f"the {what} ends: to the first look", seen - went_on, "s")
            self.note(f"the {what} ends: to the last on_lost", told - went_on, "s")
            self.note(
                f"the {what} ends: from the stop to the next ones' first", first - stopped, "s"
            )
            self.note(f"the {what} ends: ... to their last", last - stopped, "s")
            self.note(f"the {what} ends: the next ones release", heir.ask("release").seconds, "s")


def main(arguments: list[str] | None = None) -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--locks", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=20.0, help="of the sessions, in seconds")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(arguments)
    print(measured_with())
    with Ensemble(3, tick_time=TICK) as ensemble:
        measuring = Measuring(ensemble, options.timeout)
        if options.sessions:
            asyncio.run(measuring.crowd(options.sessions))
        if options.locks:
            measuring.hold(options.clients, options.locks // options.clients)
        conditions: dict[str, object] = {
            "locks": options.locks,
            "sessions": options.sessions,
            "clients": options.clients,
            "timeout": options.timeout,
            "ZooKeeper": ensemble.servers[0].version(),
        }
    if options.json:
        write(options.json, conditions, measuring.figures)


if __name__ == "__main__":
    main()
