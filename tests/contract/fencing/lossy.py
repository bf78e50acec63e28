"""Ways to a server on which replies are lost."""

from __future__ import annotations

import contextlib
import re
import socket
import threading

_COMMIT = re.compile(rb"(?<!auto)commit", re.IGNORECASE)


class _Way:
    """Passes bytes on to a server; each connection is served on a thread of its own."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        raise NotImplementedError


class LosesReplies(_Way):
    """The reply to each script is lost once, with its connection."""

    def __init__(self, port: int) -> None:
        self.lost = 0
        self.armed = False
        super().__init__(port)

    def _serve(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self._target)) as far:
            while request := near.recv(65536):
                far.sendall(request)
                reply = far.recv(65536)
                if self.armed and b"EVALSHA" in request and not reply.startswith(b"-NOSCRIPT"):
                    self.armed = False
                    self.lost += 1
                    return
                near.sendall(reply)


class LoadsAfterwards(LosesReplies):
    """The reply is lost because the server has died; the next one still loads its data."""

    def _serve(self, near: socket.socket) -> None:
        if not self.lost:
            super()._serve(near)
            return
        with contextlib.suppress(OSError), near:
            while near.recv(65536):
                near.sendall(b"-LOADING Redis is loading the dataset in memory\r\n")


class LosesTheCommit(_Way):
    """The reply to a COMMIT is lost, with the connection. The server has committed by then."""

    def _serve(self, near: socket.socket) -> None:
        asked = threading.Event()
        with (
            contextlib.suppress(OSError),
            near,
            socket.create_connection(("127.0.0.1", self._target)) as far,
        ):
            threading.Thread(target=self._there, args=(near, far, asked), daemon=True).start()
            while reply := far.recv(65536):
                if asked.is_set():
                    near.shutdown(socket.SHUT_RDWR)
                    return
                near.sendall(reply)

    def _there(self, near: socket.socket, far: socket.socket, asked: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while request := near.recv(65536):
                if _COMMIT.search(request):
                    asked.set()
                far.sendall(request)
            far.shutdown(socket.SHUT_WR)
