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
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

from kazoo.client import KazooClient

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
        client = zklock.connect(hosts, timeout=10.0)
    else:
        client = KazooClient(hosts, timeout=10.0)
        client.start()
    stack.callback(client.close)
    stack.callback(client.stop)
    return client


def cycle_of(lock: Any) -> Cycle:
    """Return a call that acquires and releases."""

    def cycle() -> None:
        assert lock.acquire()
        lock.release()

    return cycle


def with_zklock(hosts: str, path: str, stack: ExitStack, keep: float | None = None) -> Block:
    """Take zklock's Lock on a thread."""
    return block_of(cycle_of(zklock.Lock(connected("zklock", hosts, stack), path, keep=keep)))


def with_asyncio(hosts: str, path: str, stack: ExitStack, keep: float | None = None) -> Block:
    """Take zklock's Lock in a task. The event loop runs during a block only."""

    async def connected() -> KazooClient:
        return await aio.connect(hosts, timeout=10.0)

    loop = stack.enter_context(asyncio.Runner())
    client = loop.run(connected())
    stack.callback(client.close)
    stack.callback(client.stop)
    lock = aio.Lock(client, path, keep=keep)

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


def with_kazoo(hosts: str, path: str, stack: ExitStack) -> Block:
    """Take kazoo's Lock."""
    return block_of(cycle_of(connected("kazoo", hosts, stack).Lock(path, "bench")))


_INT = struct.Struct(">i")
_OPEN = struct.pack(">ii", 1, 31) + b"\0\0\0\5world\0\0\0\6anyone"


def framed(data: bytes) -> bytes:
    """Return data behind its length: a frame, or a text in one."""
    return _INT.pack(len(data)) + data


def making(path: bytes, flags: int) -> bytes:
    """Return the body of a create; 3: ephemeral, and with a number."""
    return framed(path) + framed(b"") + _OPEN + _INT.pack(flags)


class Wire:
    """The floor: a socket, and the fewest requests that take a lock and give it back.

    It creates a node and lists its parent in one batch. If another node was there before, it
    watches that one until it is gone, and takes that for its turn. It gives the lock back by the
    deletion of its node. It looks at nothing else.
    """

    _SESSION = 30_000  # milliseconds: nothing is sent between blocks
    _HEAD = struct.Struct(">iii")  # length; number, opcode
    _REPLY = struct.Struct(">iqi")  # number, zxid, error
    _CREATE, _DELETE, _READ, _LIST, _CREATE_2, _END = 1, 2, 4, 12, 15, -11
    _EVENT = -1

    def __init__(self, hosts: str, path: str) -> None:
        host, _, port = hosts.split(",", maxsplit=1)[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = self._socket.makefile("rb")
        hello = struct.pack(">iqiq", 0, 0, self._SESSION, 0) + framed(bytes(16))
        self._socket.sendall(framed(hello))
        self._frame()
        self._number = 0
        self._events = 0
        self._node = b""
        prefix = path.encode()
        self._ask((self._CREATE, making(prefix, 0)))
        self._create = self._CREATE_2, making(prefix + b"/it-", 3)
        self._list = self._LIST, framed(prefix) + b"\0"

    @classmethod
    def _text_at(cls, data: bytes, at: int) -> bytes:
        begin = at + _INT.size
        return data[begin : begin + _INT.unpack_from(data, at)[0]]

    def _frame(self) -> bytes:
        (length,) = _INT.unpack(self._replies.read(_INT.size))
        return self._replies.read(length)

    def _next(self) -> bytes | None:
        """Return the next reply; ``None``: it is an event, which is counted."""
        frame = self._frame()
        if _INT.unpack_from(frame)[0] != self._EVENT:
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
            assert error == 0 or opcode in {self._READ, self._CREATE}
            replies.append(reply[self._REPLY.size :])
        return replies

    def _before(self, listed: bytes) -> bytes:
        """Return the name of the youngest node before this one; empty if there is none."""
        names, at = [], _INT.size
        for _ in range(_INT.unpack_from(listed)[0]):
            names.append(self._text_at(listed, at))
            at += _INT.size + len(names[-1])
        mine = self._node.rpartition(b"/")[2]
        return max((name for name in names if name < mine), default=b"")

    def acquire(self) -> bool:
        """Take it."""
        created, listed = self._ask(self._create, self._list)
        self._node = self._text_at(created, 0)
        before = self._before(listed)
        if before:
            events, parent = self._events, self._node.rpartition(b"/")[0]
            (found,) = self._ask((self._READ, framed(parent + b"/" + before) + b"\1"))
            while found and self._events == events:
                self._next()
        return True

    def release(self) -> None:
        """Give it back."""
        self._ask((self._DELETE, framed(self._node) + b"\xff\xff\xff\xff"))

    def cycle(self) -> None:
        """Take it and give it back."""
        self.acquire()
        self.release()

    def close(self) -> None:
        """End the session."""
        self._ask((self._END, b""))
        self._replies.close()
        self._socket.close()


def with_wire(hosts: str, path: str, stack: ExitStack) -> Block:
    """Send what a lock has to send, and nothing more."""
    wire = Wire(hosts, path)
    stack.callback(wire.close)
    return block_of(wire.cycle)


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
        self._connect(hosts, new_path())
        self._block(WARM_UP)
        self._ask("disconnect")

    def _ask(self, *words: object) -> str:
        return self._player.ask(" ".join(map(str, words)), SOON)

    def _connect(self, hosts: str, path: str) -> None:
        assert self._ask("connect", hosts, path) == "connected"

    def _block(self, size: int) -> tuple[list[float], float]:
        *times, busy = (int(each) / 1e9 for each in self._ask("block", size).split())
        return times, busy / size

    def make(self, hosts: str, path: str, stack: ExitStack) -> Block:
        """Take Curator's mutex on a thread of the JVM."""
        self._connect(hosts, path)
        stack.callback(self._ask, "disconnect")
        return self._block

    def rate(self, how: str, hosts: str, many: int, seconds: float) -> float:
        """Return cycles a second: ``contend``, of clients; ``spread``, of one client's threads."""
        return int(self._ask(how, hosts, new_path(), many, round(1000 * seconds))) / seconds

    def hand(self, hosts: str, count: int, hold: float) -> list[float]:
        """Return the seconds from each release of one client to the turn of the other."""
        gaps = self._ask("hand", hosts, new_path(), count, round(1000 * hold))
        return [int(each) / 1e9 for each in gaps.split()]

    def close(self) -> None:
        """End it."""
        self._stack.close()


def warm_jvm(run: Run, hosts: str, stack: ExitStack) -> Jvm | None:
    """Return Curator, warmed up on this server, if it is there."""
    try:
        jvm = Jvm(hosts)
    except CuratorUnavailable as error:
        run.miss("Curator", error)
        return None
    stack.callback(jvm.close)
    run.conditions["Curator"] = jvm.version
    return jvm
