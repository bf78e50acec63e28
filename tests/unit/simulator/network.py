"""Sockets of the simulated system, and the network between processes and servers.

What is sent arrives after a time that the seed chooses, in order. Where the network is cut, it
arrives after the cut has healed, as with TCP.
"""

from __future__ import annotations

import fcntl
import random
import select
import selectors
import socket
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from tests.unit.simulator import system
from tests.unit.simulator.system import Module, Process, System


class Listener(Protocol):
    """A server's end."""

    @property
    def accepts(self) -> bool | None:
        """Whether it accepts a connection now; ``None``: it does not even refuse."""

    def take(self, link: SimulatedLink, data: bytes | None) -> None:
        """Take bytes, or ``None``: the connection has ended."""


class Direction:
    """What is on its way in one direction: bytes, or ``None`` for the end."""

    def __init__(self, link: SimulatedLink, arrive: Callable[[bytes | None], object]) -> None:
        self._link = link
        self._arrive = arrive
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._newest = 0.0

    def send(self, data: bytes | None) -> None:
        network = self._link.network
        self._newest = max(self._newest, network.system.now + network.delay())
        self._queue.append((self._newest, data))
        network.system.at(self._newest, self.pump)

    def pump(self) -> None:
        """Have what is due arrive."""
        network = self._link.network
        while self._queue and self._queue[0][0] <= network.system.now:
            if network.is_cut(self._link):
                return
            self._arrive(self._queue.popleft()[1])


class SimulatedLink:
    """One connection of a process to a server."""

    def __init__(
        self, network: Network, process: Process, address: str, listener: Listener, end: Socket
    ) -> None:
        self.network = network
        self.process = process
        self.address = address
        self.up = Direction(self, lambda data: listener.take(self, data))
        self.down = Direction(self, end.arrive)
        self.over = False  # the server has closed it


class Network:
    """All connections, and what is cut: pairs of a process and an address."""

    def __init__(self, running: System) -> None:
        self.system = running
        self.rng = random.Random(f"network {running.seed}")
        self.listeners: dict[str, Listener] = {}
        self.ports: dict[tuple[str, int], Socket] = {}  # on which sockets of tests listen
        self.links: list[SimulatedLink] = []
        self.cuts: set[tuple[str, str]] = set()
        self.slow = 0.0  # seconds that everything takes longer
        self.sockets: dict[int, Socket] = {}
        self._numbers = count(100)
        self.free_ports = count(40_000)

    def delay(self) -> float:
        usual = self.rng.choice((0.0005, 0.002, 0.01))
        return usual * (0.5 + self.rng.random()) + self.slow

    def is_cut(self, link: SimulatedLink) -> bool:
        return (link.process.name, link.address) in self.cuts

    def heal(self) -> None:
        """Let everything arrive again that waits."""
        self.cuts.clear()
        for link in self.links:
            for direction in (link.up, link.down):
                self.system.after(self.delay(), direction.pump)

    def add(self, end: Socket) -> int:
        number = next(self._numbers)
        self.sockets[number] = end
        return number

    def connect(self, address: tuple[str, int], timeout: float | None = None) -> Socket:
        """As ``socket.create_connection``."""
        me = self.system.current
        assert me is not None
        host = address[0]
        listener: Listener | None = self.listeners.get(host) or self.ports.get(address[:2])
        if listener is None:
            raise ConnectionRefusedError(111, "Connection refused")
        cut = (me.process.name, host)
        took = self.delay()
        if timeout is not None and took > timeout:
            system.sleep(timeout)
            raise TimeoutError("timed out")
        system.sleep(took)

        def answers() -> bool:
            return cut not in self.cuts and listener.accepts is not None

        if not self.system.block(answers, timeout):
            raise TimeoutError("timed out")
        if not listener.accepts:
            raise ConnectionRefusedError(111, "Connection refused")
        end = Socket(self)
        end.link = link = SimulatedLink(self, me.process, host, listener, end)
        end.out = link.up
        end.peer_name = address
        self.links.append(link)
        if isinstance(listener, Socket):
            listener.connected(link)
        return end

    def serve(self, address: tuple[str, int]) -> Socket:
        """As ``socket.create_server``."""
        end = Socket(self)
        end.bind(address)
        end.listen()
        return end

    def pair(self) -> tuple[Socket, Socket]:
        """As ``socket.socketpair``."""
        one, other = Socket(self), Socket(self)
        one.peer, other.peer = other, one
        return one, other

    def kill(self, process: Process) -> None:
        """End all connections of a process."""
        for end in list(self.sockets.values()):
            if end.link is not None and end.link.process is process:
                end.close()

    def modules(self) -> dict[str, Module]:
        """Return ``socket``, ``select`` and ``fcntl`` as zklock and kazoo see them."""
        network = self

        class Poll:
            """As ``select.poll()``."""

            def __init__(self) -> None:
                self._wanted: dict[int, int] = {}

            def register(self, each: Any, flags: int) -> None:
                self._wanted[each if isinstance(each, int) else each.fileno()] = flags

            def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
                seconds = None if milliseconds is None else milliseconds / 1000
                if milliseconds != 0:
                    sockets = network.sockets
                    ends = [sockets[number] for number in self._wanted if number in sockets]
                    if len(ends) < len(self._wanted) or select.POLLOUT in self._wanted.values():
                        return self._ready()
                    network.system.block(lambda: any(end.readable for end in ends), seconds)
                return self._ready()

            def _ready(self) -> list[tuple[int, int]]:
                sockets = network.sockets
                return [
                    (number, flags)
                    for number, flags in self._wanted.items()
                    if flags & select.POLLOUT
                    or (flags and (number not in sockets or sockets[number].readable))
                ]

        class Epoll(Poll):
            """As ``select.epoll()``, for sockets that can be read."""

            modify = Poll.register

            def unregister(self, number: int) -> None:
                del self._wanted[number]

            def close(self) -> None:
                self._wanted.clear()

            def fileno(self) -> Epoll:
                """Return what a simulated loop takes for a number."""
                return self

            @property
            def readable(self) -> bool:
                return bool(self._ready())

            def poll(self, seconds: float | None = None) -> list[tuple[int, int]]:
                if seconds != 0:
                    network.system.block(self._ready, seconds)
                return self._ready()

        class Made(Socket):
            """As ``socket.socket``, which tests make."""

            def __init__(self, *_: object) -> None:
                super().__init__(network)

        class Selector(selectors.BaseSelector):
            """As ``selectors.DefaultSelector``, for numbers of sockets."""

            def __init__(self) -> None:
                self._wanted: dict[int, selectors.SelectorKey] = {}

            def register(self, number: Any, events: int, data: Any = None) -> Any:
                if number not in network.sockets:
                    raise ValueError("Invalid file descriptor")
                self._wanted[number] = selectors.SelectorKey(number, number, events, data)
                return self._wanted[number]

            def unregister(self, number: Any) -> Any:
                return self._wanted.pop(number)

            def get_map(self) -> Any:
                return self._wanted

            def select(self, timeout: float | None = None) -> Any:
                if timeout is None or timeout > 0:
                    network.system.block(self._ready, timeout)
                return self._ready()

            def _ready(self) -> Any:
                sockets = network.sockets
                return [
                    (key, key.events)
                    for number, key in self._wanted.items()
                    if key.events & selectors.EVENT_WRITE
                    or number not in sockets
                    or sockets[number].readable
                ]

        return {
            "selectors": Module(selectors, DefaultSelector=Selector),
            "socket": Module(
                socket,
                socket=Made,
                create_connection=self.connect,
                create_server=self.serve,
                socketpair=self.pair,
                getaddrinfo=look_up,
                gethostname=lambda: "host",
            ),
            "select": Module(select, poll=Poll, epoll=Epoll),
            "fcntl": Module(fcntl, fcntl=lambda *_: 0),
        }


def look_up(host: str, port: int, *_: object) -> list[Any]:
    """As ``socket.getaddrinfo``: each name is an address, but for those that no DNS may have."""
    if host.endswith(".invalid"):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]


class Socket:
    """As a ``socket.socket``, connected or listening."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP

    def __init__(self, network: Network) -> None:
        self._network = network
        self._number = network.add(self)
        self._inbox = bytearray()
        self._ended = False
        self._closed = False
        self._timeout: float | None = None
        self.readable = False
        self.link: SimulatedLink | None = None
        self.out: Direction | None = None
        self.peer: Socket | None = None
        self.name = self.peer_name = ("", 0)
        self._accepted: dict[SimulatedLink, Socket] = {}
        self._backlog: deque[Socket] = deque()

    # Listening.

    @property
    def accepts(self) -> bool:
        """Whether it listens."""
        return self._network.ports.get(self.name) is self

    def bind(self, address: tuple[str, int]) -> None:
        self.name = address[0], address[1] or next(self._network.free_ports)

    def listen(self, backlog: int = 0) -> None:
        self._network.ports[self.name] = self

    def getsockname(self) -> tuple[str, int]:
        return self.name

    def getpeername(self) -> tuple[str, int]:
        return self.peer_name

    def connected(self, link: SimulatedLink) -> None:
        """Have a connection wait to be accepted."""
        end = Socket(self._network)
        end.link, end.out = link, link.down
        self._accepted[link] = end
        self._backlog.append(end)
        self.readable = True

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        self._wait()
        if not self._backlog:
            raise OSError(22, "Invalid argument")
        end = self._backlog.popleft()
        self.readable = bool(self._backlog)
        return end, ("127.0.0.1", 0)

    def take(self, link: SimulatedLink, data: bytes | None) -> None:
        """Have what a client has sent arrive at its accepted connection."""
        self._accepted[link].arrive(data)

    # Connected.

    def arrive(self, data: bytes | None) -> None:
        """Have bytes arrive, or the end."""
        if data is None:
            self._ended = True
        else:
            self._inbox += data
        self.readable = True

    def fileno(self) -> int:
        return -1 if self._closed else self._number

    def setblocking(self, blocking: bool) -> None:
        self._timeout = None if blocking else 0.0

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def setsockopt(self, *_: object) -> None:
        """There is nothing to tune."""

    def _wait(self) -> None:
        """Wait until there is something to read, or to accept."""
        if not self.readable:
            if self._timeout == 0:
                raise BlockingIOError
            if not self._network.system.block(lambda: self.readable, self._timeout):
                raise TimeoutError("timed out")
        if self._closed:
            raise OSError(9, "Bad file descriptor")

    def recv(self, size: int, flags: int = 0) -> bytes:
        if flags == socket.MSG_WAITALL:
            return Lines(self).read(size)
        self._wait()
        data = bytes(self._inbox[:size])
        del self._inbox[:size]
        self.readable = bool(self._inbox) or self._ended
        return data

    def send(self, data: Any) -> int:
        if self._closed:
            raise OSError(9, "Bad file descriptor")
        if data and self.out is not None:
            self.out.send(bytes(data))
        elif data and self.peer is not None:
            self.peer.arrive(bytes(data))
        return len(data)

    def sendall(self, data: Any) -> None:
        self.send(data)

    def makefile(self, mode: str) -> Lines:
        return Lines(self)

    def shutdown(self, how: int) -> None:
        if how != socket.SHUT_WR:
            self._ended = self.readable = True
        self._end()

    def _end(self) -> None:
        if self.out is not None:
            self.out.send(None)

    def close(self) -> None:
        if not self._closed:
            self._closed = self.readable = True
            self._network.sockets.pop(self._number, None)
            if self.accepts:
                del self._network.ports[self.name]
            self._end()

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def raised_by_the_call(error: BaseException) -> bool:
    """As zklock's: a simulated call has a frame of its own."""
    trace = error.__traceback__
    called = None if trace is None else trace.tb_next
    return called is None or called.tb_frame.f_code.co_filename == __file__


class Lines:
    """As much of a socket's file as zklock and tests use."""

    def __init__(self, end: Socket) -> None:
        self._end = end

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := self._end.recv(size - len(data))):
            data += more
        return data

    def readline(self, limit: int) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            data = self._end.recv(limit)
            if not data:
                break
            line += data
        return line

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        """It has nothing of its own."""
