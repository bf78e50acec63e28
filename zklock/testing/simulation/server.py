"""The embedded server on the clock of a simulation."""

from __future__ import annotations

import socket
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, TypeVar

from zklock.testing.ports import LOOPBACK
from zklock.testing.zookeeper.codec import Splitter
from zklock.testing.zookeeper.machine import Machine
from zklock.testing.zookeeper.server import Connection, EmbeddedServer

C = TypeVar("C", bound=Hashable)
T = TypeVar("T")


class LinkedSocket(socket.socket):
    """One end of a connection. It counts the bytes that pass, and notes when it sent last."""

    def __init__(self, descriptor: int, clock: Callable[[], float]) -> None:
        super().__init__(fileno=descriptor)
        self._clock = clock
        self.sent = 0
        self.received = 0
        self.sent_at = clock()

    def send(self, *args: Any) -> int:
        sent = super().send(*args)
        self.sent += sent
        self.sent_at = self._clock()
        return sent

    def recv(self, *args: Any) -> bytes:
        data = super().recv(*args)
        self.received += len(data)
        return data

    def getpeername(self) -> tuple[str, int]:
        """Return what ``cons`` shows."""
        return LOOPBACK, 0

    @property
    def over(self) -> bool:
        return self.fileno() < 0


def linked(clock: Callable[[], float]) -> tuple[LinkedSocket, LinkedSocket]:
    """Return both ends of a new connection."""
    ours, theirs = socket.socketpair()
    return LinkedSocket(ours.detach(), clock), LinkedSocket(theirs.detach(), clock)


class _Machine(Machine[C]):
    """A server for which a ping is no sign of life: kazoo sends it by the real clock."""

    _PINGS_COUNT = False


class SimulatedServer(EmbeddedServer):
    """An embedded server whose clock is handed in. Sessions end in `tick` alone.

    Clients of the simulation connect by `adopt`. Others may connect to its port, to look: their
    sessions live as long as they are connected.
    """

    _MACHINE: ClassVar[type[Machine[Any]]] = _Machine

    def __init__(self, clock: Callable[[], float], **rules: Any) -> None:
        self._clock = clock
        self._adopted: dict[Connection, object] = {}  # whose they are
        self._cut: set[object] = set()  # the owners that nothing reaches
        super().__init__(**rules)

    def ask(self, question: Callable[[], T]) -> T:
        """Have the server's thread answer this between two turns."""
        return self._call(question)

    def adopt(self, link: LinkedSocket, owner: object) -> None:
        """Take one end of a connection of ``owner``."""

        def take() -> None:
            link.setblocking(False)
            connection = Connection(link, LOOPBACK, Splitter(self._max_frame))
            self._connections[connection] = None
            self._adopted[connection] = owner
            if owner not in self._cut:
                self._selector.register(link, connection.mask, connection)

        self._call(take)

    def cut(self, owner: object) -> None:
        """Read and send nothing more on the connections of ``owner``."""

        def change() -> None:
            self._cut.add(owner)
            for connection, of in self._adopted.items():
                if of is owner:
                    self._selector.unregister(connection.socket)

        self._call(change)

    def mend(self, owner: object) -> None:
        """Go on with the connections of ``owner``: what was kept back passes, in order."""

        def change() -> None:
            self._cut.discard(owner)
            for connection, of in list(self._adopted.items()):
                if of is owner:
                    self._selector.register(connection.socket, connection.mask, connection)
                    self._flush(connection)

        self._call(change)

    def ping(self, session_id: int) -> None:
        """Note that the client of a session is alive."""
        self._call(lambda: self._touch(session_id))

    def due(self) -> float:
        """Return when `tick` has something to do, in seconds. On the server's thread."""
        return self._machine.due() / 1000

    def tick(self) -> None:
        """End the sessions that have expired."""

        def advance() -> None:
            for connection in self._connections:
                if connection not in self._adopted:
                    self._touch(self._machine.linked(connection))
            self._machine.advance(self._now())
            self._deliver()

        self._call(advance)

    # On the server's thread.

    def _now(self) -> int:
        return round(self._clock() * 1000)

    def _touch(self, session_id: int) -> None:
        session = self._machine.sessions.find(session_id)
        if session is not None:
            self._machine.sessions.touch(session, session.timeout, self._now())

    def _patience(self) -> None:
        return None

    def _advance(self) -> None:
        """Do nothing: time goes on in `tick`."""

    def _flush(self, connection: Connection) -> None:
        if self._adopted.get(connection) not in self._cut:
            super()._flush(connection)

    def _lose(self, connection: Connection) -> None:
        if self._adopted.pop(connection, None) in self._cut:
            self._selector.register(connection.socket, connection.mask, connection)
        super()._lose(connection)
