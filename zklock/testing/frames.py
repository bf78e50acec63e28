"""ZooKeeper's framing, as far as an observer of the stream needs it: each frame's end and kind.

A frame is a signed 32-bit big-endian length and that many bytes. The first frame in each direction
is the session handshake (``ConnectRequest``, ``ConnectResponse``), without a header. Later frames
begin with ``xid, op code`` towards the server and ``xid, zxid, error`` towards the client. Source:
``zookeeper.jute`` and ``ZooDefs.OpCode`` of Apache ZooKeeper 3.9.

Pure: no socket, thread or clock.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

#: Handshakes are some 50 bytes long. If the first length is outside 1 … 4096, this is no handshake
#: but TLS, a four-letter word, or another protocol.
_LONGEST_HANDSHAKE = 4096

_HEADER = struct.Struct(">ii")
_REPLY_HEADER = struct.Struct(">iqi")
_INT = struct.Struct(">i")
_CONNECTED = struct.Struct(">iiq")

_XID_EVENT = -1

_OPS = {
    1: "create",
    2: "delete",
    3: "exists",
    4: "getData",
    5: "setData",
    6: "getACL",
    7: "setACL",
    8: "getChildren",
    9: "sync",
    11: "ping",
    12: "getChildren2",
    13: "check",
    14: "multi",
    15: "create2",
    16: "reconfig",
    17: "checkWatches",
    18: "removeWatches",
    19: "createContainer",
    20: "deleteContainer",
    21: "createTTL",
    22: "multiRead",
    100: "auth",
    101: "setWatches",
    102: "sasl",
    103: "getEphemerals",
    104: "getAllChildrenNumber",
    105: "setWatches2",
    106: "addWatch",
    107: "whoAmI",
    -11: "closeSession",
}
_CONTROL = frozenset({"auth", "setWatches", "setWatches2", "sasl"})
_WITHOUT_PATH = _CONTROL | {"ping", "multi", "multiRead", "reconfig", "whoAmI", "closeSession"}
_EVENTS = {
    1: "NodeCreated",
    2: "NodeDeleted",
    3: "NodeDataChanged",
    4: "NodeChildrenChanged",
}


class Direction(enum.Enum):
    """Which way a frame goes."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


def known_ops(direction: Direction) -> frozenset[str]:
    """Return the names that `Frame.op` has for frames in this direction."""
    events = _EVENTS.values() if direction is Direction.TO_CLIENT else ()
    return frozenset({"connect", *_OPS.values(), *events})


class FrameKind(enum.Enum):
    """What a frame is; the application causes only ``REQUEST``, ``REPLY`` and ``EVENT``."""

    HANDSHAKE = "handshake"
    REQUEST = "request"
    REPLY = "reply"
    EVENT = "event"
    PING = "ping"
    CONTROL = "control"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame that the proxy read.

    ``number`` counts the frames of the proxy from 1, ``connection`` its connections from 1.
    ``at`` is when the frame was complete, in seconds since boot. ``op`` is ZooKeeper's own name of
    the operation; a reply has that of its request, an event has its type (``NodeDeleted``, …).
    ``path`` is the znode's path if the frame, or a reply's request, begins with one. It is as sent:
    with the chroot. ``size`` is in bytes, without the length word. ``xid`` is ``None`` on
    handshakes and opaque data. ``error`` is the server's code on replies (0: success), else
    ``None``.
    """

    number: int
    at: float
    connection: int
    direction: Direction
    kind: FrameKind
    op: str
    size: int
    xid: int | None = None
    path: str | None = None
    error: int | None = None


class Header(NamedTuple):
    """What the bytes of a frame tell: the fields of `Frame` with the same names."""

    kind: FrameKind
    op: str
    xid: int | None = None
    path: str | None = None
    error: int | None = None


class Splitter:
    """Cuts one direction's byte stream into frames.

    A stream is ``opaque`` from the start if it does not begin with a handshake, and later from a
    negative length on. Other code may set the attribute, too.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._first = True
        self.opaque = False

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the frames that are complete now, with their length words, and the opaque rest."""
        self._buffer += data
        frames: list[bytes] = []
        while not self.opaque and len(self._buffer) >= _INT.size:
            (length,) = _INT.unpack_from(self._buffer)
            if length < 0 or (self._first and not 0 < length <= _LONGEST_HANDSHAKE):
                self.opaque = True
                break
            end = _INT.size + length
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[:end]))
            del self._buffer[:end]
            self._first = False
        return frames, self.rest() if self.opaque else b""

    def rest(self) -> bytes:
        """Return, once, the bytes that are not cut yet."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


class Dialogue:
    """Identifies the frames of one connection; matches replies with earlier requests."""

    def __init__(self) -> None:
        self._greeted: set[Direction] = set()
        self._asked: deque[Header] = deque()
        self.session_id: int | None = None
        self.session_timeout: float | None = None

    def read(self, direction: Direction, chunk: bytes) -> Header:
        """Identify this frame, given all before it; ``chunk`` includes the length word."""
        body = memoryview(chunk)[_INT.size :]
        if direction not in self._greeted:
            self._greeted.add(direction)
            return self._handshake(direction, body)
        if direction is Direction.TO_SERVER:
            header = _request(body)
            self._asked.append(header)
            return header
        return self._answer(body)

    def retract(self) -> None:
        """Forget the request that was read last: the server will not see it."""
        self._asked.pop()

    def unanswered(self) -> Header | None:
        """Return the latest request or control frame that the server has not yet answered."""
        return next((h for h in reversed(self._asked) if h.kind is not FrameKind.PING), None)

    def _handshake(self, direction: Direction, body: memoryview) -> Header:
        if direction is Direction.TO_SERVER:
            return Header(FrameKind.HANDSHAKE, "connect")
        if len(body) >= _CONNECTED.size:
            _, milliseconds, session_id = _CONNECTED.unpack_from(body)
            if session_id:
                self.session_id = session_id
                self.session_timeout = milliseconds / 1000
        return Header(FrameKind.HANDSHAKE, "connect")

    def _answer(self, body: memoryview) -> Header:
        if len(body) < _REPLY_HEADER.size:
            return Header(FrameKind.REPLY, "unknown")
        xid, _zxid, error = _REPLY_HEADER.unpack_from(body)
        if xid == _XID_EVENT:
            return _event(body[_REPLY_HEADER.size :])
        for asked in self._asked:
            if asked.xid == xid:
                self._asked.remove(asked)
                kind = FrameKind.REPLY if asked.kind is FrameKind.REQUEST else asked.kind
                return Header(kind, asked.op, xid, asked.path, error)
        return Header(FrameKind.REPLY, "unknown", xid, error=error)


def _request(body: memoryview) -> Header:
    if len(body) < _HEADER.size:
        return Header(FrameKind.REQUEST, "unknown")
    xid, code = _HEADER.unpack_from(body)
    op = _OPS.get(code, f"op {code}")
    if op == "ping":
        kind = FrameKind.PING
    elif op in _CONTROL:
        kind = FrameKind.CONTROL
    else:
        kind = FrameKind.REQUEST
    path = None if op in _WITHOUT_PATH else _text(body[_HEADER.size :])
    return Header(kind, op, xid, path)


def _event(body: memoryview) -> Header:
    if len(body) < _HEADER.size:
        return Header(FrameKind.EVENT, "unknown", _XID_EVENT)
    kind, _state = _HEADER.unpack_from(body)
    op = _EVENTS.get(kind, f"event {kind}")
    return Header(FrameKind.EVENT, op, _XID_EVENT, _text(body[_HEADER.size :]))


def _text(body: memoryview) -> str | None:
    if len(body) < _INT.size:
        return None
    (length,) = _INT.unpack_from(body)
    text = body[_INT.size :][: max(length, 0)]
    return None if length < 0 or len(text) < length else str(text, "utf-8", "replace")
