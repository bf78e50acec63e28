"""Ways to a server on which replies are lost."""

from __future__ import annotations

import contextlib
import re
import socket
import threading

_COMMIT = re.compile(rb"(?<!auto)commit", re.IGNORECASE)


class LosesReplies:
    """Passes bytes on to a server; the reply to each script is lost once, with its connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lost = 0
        self.armed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

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


class LosesTheCommit:
    """Passes bytes on to a server; the reply to a COMMIT is lost, with the connection.

    The server has committed by then.
    """

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
                with contextlib.ExitStack() as closing:
                    closing.enter_context(near)  # unless both pumps have it
                    far = socket.create_connection(("127.0.0.1", self._target))
                    closing.pop_all()
                asked = threading.Event()
                for pump in (self._there, self._back):
                    threading.Thread(target=pump, args=(near, far, asked), daemon=True).start()

    def _there(self, near: socket.socket, far: socket.socket, asked: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while request := near.recv(65536):
                if _COMMIT.search(request):
                    asked.set()
                far.sendall(request)
            far.shutdown(socket.SHUT_WR)

    def _back(self, near: socket.socket, far: socket.socket, asked: threading.Event) -> None:
        with contextlib.suppress(OSError), near, far:
            while reply := far.recv(65536):
                if asked.is_set():
                    near.shutdown(socket.SHUT_RDWR)
                    return
                near.sendall(reply)
