"""A way to a Redis server on which replies are lost."""

from __future__ import annotations

import contextlib
import socket
import threading


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
