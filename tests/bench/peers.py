"""Who takes a lock in the benchmarks: zklock's fronts, kazoo, Curator, and the bare wire.

A *block* runs so many cycles of acquire and release, one after the other. It returns the seconds of
each cycle, and the processor time of one cycle, in seconds, of the process that runs it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path
from typing import Any, TypeAlias

from kazoo.client import KazooClient
from kazoo.protocol import serialization as wire
from kazoo.security import OPEN_ACL_UNSAFE

import zklock
from tests.bench.results import Run
from tests.bench.together import new_path
from tests.interop.curator import Curator, CuratorUnavailable
from tests.players import Player
from zklock import aio

Cycle: TypeAlias = Callable[[], None]
Block: TypeAlias = Callable[[int], tuple[list[float], float]]
Maker: TypeAlias = Callable[[str, str, ExitStack], Block]
"""Takes the hosts, the path of the lock, and what is closed at the end."""

WARM_UP = 8000
"""The cycles after which Java has compiled what a cycle runs."""
SOON = 120.0
"""The most seconds that the JVM may take for one command."""


def block_of(cycle: Cycle) -> Block:
    """Return what runs a call many times."""

    def block(size: int) -> tuple[list[float], float]:
        times = []
        busy = time.process_time()
        for _ in range(size):
            started = time.perf_counter()
            cycle()
            times.append(time.perf_counter() - started)
        return times, (time.process_time() - busy) / size

    return block


def connected(library: str, hosts: str, stack: ExitStack) -> Any:
    """Return a started client of zklock or of kazoo; it is stopped at the end."""
    if library == "zklock":
        return stack.enter_context(zklock.connect(hosts, timeout=10.0))
    client = KazooClient(hosts, timeout=10.0)
    client.start()
    stack.callback(client.close)
    stack.callback(client.stop)
    return client


def lock_of(library: str, client: Any, kind: str, path: str) -> Any:
    """Return a lock of a kind."""
    if library == "kazoo":
        more = {"max_leases": 2} if kind == "Semaphore" else {}
        return getattr(client, kind)(path, "bench", **more)
    if library == "kept":
        return zklock.Lock(client, path, keep=600.0)
    return getattr(zklock, kind)(client, path, **({"limit": 2} if kind == "Semaphore" else {}))


def lock_by(library: str, hosts: str, path: str, stack: ExitStack) -> Any:
    """Return a lock with a client of its own, or the bare requests for one: the floor."""
    if library == "floor":
        return stack.enter_context(closing(Wire(hosts, path)))
    return lock_of(library, connected(library, hosts, stack), "Lock", path)


def cycle_of(lock: Any) -> Cycle:
    """Return a call that acquires and releases."""

    def cycle() -> None:
        assert lock.acquire()
        lock.release()

    return cycle


def with_threads(library: str, hosts: str, path: str, stack: ExitStack) -> Block:
    """Take a lock on a thread."""
    return block_of(cycle_of(lock_by(library, hosts, path, stack)))


def with_asyncio(hosts: str, path: str, stack: ExitStack) -> Block:
    """Take zklock's Lock in a task. The event loop runs during a block only."""

    async def enter() -> KazooClient:
        return await there.enter_async_context(aio.connect(hosts, timeout=10.0))

    loop, there = stack.enter_context(asyncio.Runner()), AsyncExitStack()
    lock = aio.Lock(loop.run(enter()), path)
    stack.callback(lambda: loop.run(there.aclose()))

    async def many(size: int) -> list[float]:
        times = []
        for _ in range(size):
            started = time.perf_counter()
            grant = await lock.acquire()
            assert grant is not None
            await lock.release()
            times.append(time.perf_counter() - started)
        return times

    def block(size: int) -> tuple[list[float], float]:
        busy = time.process_time()
        times = loop.run(many(size))
        return times, (time.process_time() - busy) / size

    return block


class Wire:
    """The floor: a socket, and the fewest requests that take a lock and give it back.

    It creates a node and lists its parent in one batch. If another node was there before, it
    watches that one until it is gone, and takes that for its turn. It gives the lock back by the
    deletion of its node. It looks at nothing else.
    """

    _SESSION = 30_000  # milliseconds: nothing is sent between blocks
    _HEAD = struct.Struct(">iii")  # length; number, opcode
    _REPLY = struct.Struct(">iqi")  # number, zxid, error
    _EVENT = -1

    def __init__(self, hosts: str, path: str) -> None:
        host, _, port = hosts.split(",", maxsplit=1)[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = self._socket.makefile("rb")
        hello = wire.Connect(0, 0, self._SESSION, 0, bytes(16), read_only=False).serialize()
        self._socket.sendall(len(hello).to_bytes(4) + hello)
        self._frame()
        self._number = self._events = 0
        self._path, self._node = path, ""
        self._ask(_request(wire.Create(path, b"", OPEN_ACL_UNSAFE, 0)))
        enter = wire.Create(f"{path}/it-", b"", OPEN_ACL_UNSAFE, 3)  # ephemeral, with a number
        self._enter = _request(enter), _request(wire.GetChildren(path, None))

    def _frame(self) -> bytes:
        return self._replies.read(int.from_bytes(self._replies.read(4)))

    def _next(self) -> bytes | None:
        """Return the next reply; ``None``: it is an event, which is counted."""
        frame = self._frame()
        if int.from_bytes(frame[:4], signed=True) != self._EVENT:
            return frame
        self._events += 1
        return None

    def _ask(self, *requests: tuple[int, bytes]) -> list[bytes]:
        """Send requests in one batch; return the replies without their heads.

        What reads a node, or makes the path, may fail: its reply is empty then.
        """
        frames = []
        for opcode, body in requests:
            self._number += 1
            frames.append(self._HEAD.pack(len(body) + 8, self._number, opcode) + body)
        self._socket.sendall(b"".join(frames))
        replies = []
        for opcode, _ in requests:
            while (reply := self._next()) is None:
                pass
            error = self._REPLY.unpack_from(reply)[2]
            assert error == 0 or opcode in {wire.GetData.type, wire.Create.type}
            replies.append(reply[self._REPLY.size :])
        return replies

    def acquire(self) -> bool:
        """Take it."""
        created, listed = self._ask(*self._enter)
        self._node = wire.Create.deserialize(created, 0)
        names, mine = wire.GetChildren.deserialize(listed, 0), self._node.rpartition("/")[2]
        before = max((name for name in names if name < mine), default="")
        if before:
            events = self._events
            (found,) = self._ask(_request(wire.GetData(f"{self._path}/{before}", watcher=True)))
            while found and self._events == events:
                self._next()
        return True

    def release(self) -> None:
        """Give it back."""
        self._ask(_request(wire.Delete(self._node, -1)))

    def close(self) -> None:
        """End the session."""
        self._ask((wire.Close.type, b""))
        self._replies.close()
        self._socket.close()


def _request(request: Any) -> tuple[int, bytes]:
    return request.type, bytes(request.serialize())


class Jvm:
    """Curator's mutex in a JVM, which has compiled what it runs before the first block."""

    def __init__(self, hosts: str) -> None:
        curator = Curator.find()
        self.version = curator.version
        self._stack = ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        curator.compile(Path(folder), Path(__file__).with_name("Cycles.java"))
        options = ["-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        classpath = ["-cp", f"{folder}{os.pathsep}{curator.classpath}"]
        command = [curator.java, *options, *classpath, "Cycles"]
        self._player = Player(command, Path(folder, "log"))
        self._stack.callback(self._player.close)
        self._ask("block", hosts, new_path(), WARM_UP)

    def _ask(self, *words: object) -> list[float]:
        said = self._player.ask(" ".join(map(str, words)), SOON)
        return [int(each) / 1e9 for each in said.split()]

    def make(self, hosts: str, path: str, stack: ExitStack) -> Block:
        """Take Curator's mutex on a thread of the JVM."""

        def block(size: int) -> tuple[list[float], float]:
            *times, busy = self._ask("block", hosts, path, size)
            return times, busy / size

        return block

    def rate(self, hosts: str, clients: int, paths: int, seconds: float) -> float:
        """Return the cycles a second of clients on one path, or of one client on many."""
        (cycles,) = self._ask("rate", hosts, new_path(), clients, paths, round(1000 * seconds))
        return cycles * 1e9 / seconds

    def hand(self, hosts: str, count: int, hold: float) -> list[float]:
        """Return the seconds from each release of one client to the turn of the other."""
        return self._ask("hand", hosts, new_path(), count, round(1000 * hold))

    def close(self) -> None:
        """End it."""
        self._stack.close()


def warm_jvm(run: Run, hosts: str, stack: ExitStack) -> Jvm | None:
    """Return Curator, warmed up on this server, if it is there."""
    try:
        jvm = Jvm(hosts)
    except CuratorUnavailable as error:
        print(f"Curator is missing: {error}", flush=True)
        run.conditions["missing"] = {"Curator": str(error)}
        return None
    stack.callback(jvm.close)
    run.conditions["Curator"] = jvm.version
    return jvm
