"""What an observer of a stream sees of each frame: its kind, operation, number, path and error.

Pure: no socket, thread or clock.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from zklock.testing.zookeeper.codec import (
    ANSWERED,
    ASKED,
    CONNECTED,
    EVENT,
    EVENT_XID,
    REQUESTS,
    TEXT,
    Malformed,
    Op,
    Record,
)
from zklock.testing.zookeeper.messages import EventKind

_ASKED_AT = Record(*ASKED.fields, TEXT)
_TOLD = Record(*ANSWERED.fields, *EVENT.fields)
_OPS = {op.value: op.title for op in Op if op is not Op.ERROR}
_CONTROL = frozenset({"auth", "setWatches", "setWatches2", "sasl"})
_EVENTS = {kind.value: kind.title for kind in EventKind}


class Direction(enum.Enum):
    """Whether a frame goes to the server or to the client."""

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


class Dialogue:
    """Identifies the frames of one connection; matches replies with earlier requests."""

    def __init__(self) -> None:
        self._greeted: set[Direction] = set()
        self._asked: deque[Header] = deque()
        self.session_id: int | None = None
        self.session_timeout: float | None = None

    def read(self, direction: Direction, body: bytes) -> Header:
        """Identify the frame with this body, given all before it."""
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

    def _handshake(self, direction: Direction, body: bytes) -> Header:
        if direction is Direction.TO_CLIENT:
            found = _read(CONNECTED, body)
            if found is not None and found[2]:
                self.session_id, self.session_timeout = found[2], found[1] / 1000
        return Header(FrameKind.HANDSHAKE, "connect")

    def _answer(self, body: bytes) -> Header:
        found = _read(ANSWERED, body)
        if found is None:
            return Header(FrameKind.REPLY, "unknown")
        xid, _zxid, error = found
        if xid == EVENT_XID:
            return _event(body)
        for asked in self._asked:
            if asked.xid == xid:
                self._asked.remove(asked)
                kind = FrameKind.REPLY if asked.kind is FrameKind.REQUEST else asked.kind
                return Header(kind, asked.op, xid, asked.path, error)
        return Header(FrameKind.REPLY, "unknown", xid, error=error)


def _read(record: Record, body: bytes) -> tuple[Any, ...] | None:
    try:
        return record.unpack(body)[0]
    except Malformed:
        return None


def _request(body: bytes) -> Header:
    found = _read(ASKED, body)
    if found is None:
        return Header(FrameKind.REQUEST, "unknown")
    xid, code = found
    op = _OPS.get(code, f"op {code}")
    if op == "ping":
        kind = FrameKind.PING
    elif op in _CONTROL:
        kind = FrameKind.CONTROL
    else:
        kind = FrameKind.REQUEST
    path = None
    if code in REQUESTS and REQUESTS[code].fields[:1] == (TEXT,):
        *_, path = _read(_ASKED_AT, body) or (None,)
    return Header(kind, op, xid, path)


def _event(body: bytes) -> Header:
    found = _read(_TOLD, body)
    if found is None:
        return Header(FrameKind.EVENT, "unknown", EVENT_XID)
    kind, path = found[3], found[5]
    return Header(FrameKind.EVENT, _EVENTS.get(kind, f"event {kind}"), EVENT_XID, path)
