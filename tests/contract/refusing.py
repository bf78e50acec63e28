"""A relay in front of a server that answers some requests with an error of the test's choice."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from types import TracebackType

from zklock.testing import ZooKeeperServer

CREATE2, DELETE, GET_DATA, SYNC, GET_CHILDREN2, MULTI = 15, 2, 4, 9, 12, 14
_PING = 11
_EXISTS = struct.pack(">ii1s?", 3, 1, b"/", False)


class Refusing:
    """Passes everything on, but for requests that ``refuse()`` names: those are not carried out."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server.host, server.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._code = 0
        self._left: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def refuse(self, code: int, times: int, *opcodes: int) -> None:
        """Answer the next so many requests of each of these sorts with this error."""
        self._code = code
        self._left.update(dict.fromkeys(opcodes, times))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                self._sockets += [near, far]
                refused: set[int] = set()
                for way in ((near, far, self._request), (far, near, self._reply)):
                    threading.Thread(target=self._pass, args=(*way, refused), daemon=True).start()

    def _pass(self, source, sink, look, refused) -> None:  # type: ignore[no-untyped-def]
        try:
            with source.makefile("rb") as stream:
                first = True
                while len(head := stream.read(4)) == 4:
                    length = int.from_bytes(head)
                    frame = stream.read(length)
                    if len(frame) < length:
                        break
                    if not first:
                        frame = look(frame, refused)
                    first = False
                    sink.sendall(struct.pack(">i", len(frame)) + frame)
        except (OSError, ValueError):
            pass
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _request(self, frame: bytes, refused: set[int]) -> bytes:
        xid, opcode = struct.unpack_from(">ii", frame)
        if not self._left[opcode]:
            return frame
        self._left[opcode] -= 1
        self.refused[opcode] += 1
        refused.add(xid)
        return struct.pack(">i", xid) + _EXISTS

    def _reply(self, frame: bytes, refused: set[int]) -> bytes:
        xid, zxid, _ = struct.unpack_from(">iqi", frame)
        if xid not in refused:
            return frame
        refused.discard(xid)
        return struct.pack(">iqi", xid, zxid, self._code)

    def __enter__(self) -> Refusing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
