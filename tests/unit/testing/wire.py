"""A server and a client that speak the framing of ZooKeeper over plain sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

OPS = {"create": 1, "delete": 2, "exists": 3, "getData": 4, "create2": 15, "closeSession": -11}
PING, EVENT, AUTH, SET_WATCHES = -2, -1, -4, -8
SESSION_ID, TIMEOUT_MS = 0x1234, 4000
DEADLINE = 60.0


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">i", len(data)) + data


CONNECT = frame(struct.pack(">iqiqi16s?", 0, 0, TIMEOUT_MS, 0, 16, bytes(16), False))
CONNECTED = frame(struct.pack(">iiqi16s?", 0, TIMEOUT_MS, SESSION_ID, 16, bytes(16), False))


def request(xid: int, op: str, path: str = "/a") -> bytes:
    return frame(struct.pack(">ii", xid, OPS[op]) + text(path) + b"rest")


def reply(xid: int, error: int = 0) -> bytes:
    return frame(struct.pack(">iqi", xid, 7, error))


def auth() -> bytes:
    return frame(struct.pack(">iii", AUTH, 100, 0) + text("digest") + text("user:secret"))


def ping() -> bytes:
    return frame(struct.pack(">ii", PING, 11))


def event(kind: int, path: str) -> bytes:
    return frame(struct.pack(">iqiii", EVENT, -1, 0, kind, 3) + text(path))


class Closed(Exception):
    """The peer has ended its stream, or reset the connection."""


class Peer:
    """One end of a connection that reads whole frames."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(DEADLINE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                chunk = self.sock.recv(size - len(data))
            except ConnectionError as error:
                raise Closed from error
            if not chunk:
                raise Closed
            data += chunk
        return data

    def body(self) -> bytes:
        (length,) = struct.unpack(">i", self.exactly(4))
        return self.exactly(length)

    def xid(self) -> int:
        """Read a frame that is not a handshake and return its xid."""
        return int.from_bytes(self.body()[:4], "big", signed=True)

    def ended(self) -> bool:
        """Wait for the peer's end; False if data comes instead."""
        try:
            self.exactly(1)
        except Closed:
            return True
        return False

    def silent(self, seconds: float = 0.15) -> bool:
        """Say whether nothing, not even the end, arrives for so long."""
        self.sock.settimeout(seconds)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(DEADLINE)
        return False


class Client(Peer):
    """A raw client; with ``greet`` it has done the handshake."""

    def __init__(self, port: int, *, greet: bool = True) -> None:
        super().__init__(socket.create_connection(("127.0.0.1", port), DEADLINE))
        if greet:
            self.send(CONNECT)
            assert len(self.body()) == len(CONNECTED) - 4


class Server:
    """Answers every request at once, in order, and remembers what it was sent.

    ``answer`` may be replaced: from a request's body it makes the frames to send, or none.
    """

    def __init__(self, answer: Callable[[bytes], bytes] | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.hosts = f"127.0.0.1:{self.port}"
        self.answer = answer or echo
        self.news = threading.Condition()
        self.xids: list[int] = []
        self.connections: list[Peer] = []
        self.ends = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self.connections:
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE)
        for peer in self.connections:
            peer.sock.close()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.news:
            assert self.news.wait_for(condition, DEADLINE), (self.xids, self.ends)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer = Peer(self._listener.accept()[0])
                peer.sock.settimeout(None)
                thread = threading.Thread(target=self._serve, args=(peer,))
                self._threads.append(thread)
                self.connections.append(peer)
                thread.start()

    def _serve(self, peer: Peer) -> None:
        try:
            first = peer.exactly(4)
            if first == b"isro":
                peer.send(b"rw")
                peer.sock.shutdown(socket.SHUT_RDWR)
                return
            if first == b"\x16\x03\x01\x00":
                while True:
                    peer.send(peer.exactly(1))
            peer.exactly(int.from_bytes(first, "big"))
            peer.send(CONNECTED)
            while True:
                body = peer.body()
                with self.news:
                    self.xids.append(int.from_bytes(body[:4], "big", signed=True))
                    self.news.notify_all()
                peer.send(self.answer(body))
        except (Closed, OSError):
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_RDWR)
        finally:
            with self.news:
                self.ends += 1
                self.news.notify_all()


def echo(body: bytes) -> bytes:
    return reply(int.from_bytes(body[:4], "big", signed=True))
