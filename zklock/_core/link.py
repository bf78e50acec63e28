"""A client's stream to its servers: requests in, results out. It has no socket, thread or clock.

kazoo rides on it: kazoo's frames pass through as they are. Ours carry numbers from ``FIRST`` on, so
that a reply tells whose it is. Numbers of ours are not used twice in the life of a client: a server
that carries out a request of an earlier connection late cannot take it for a newer one.

Three things hold:

1. Replies come in the order of the requests. So a reply belongs to the oldest request that is due.
2. A cut drops all that is due. So no reply is late.
3. Nothing of ours goes out before kazoo has finished connecting, or behind its request to end the
   session: ``serving`` says so.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kazoo.exceptions import EXCEPTIONS, APIError

from zklock._core.ports import Shell
from zklock._core.wire import SETS_WATCH, SETS_WATCHES, Codec
from zklock._recipes.effects import Failed, Request

FIRST, _LAST = 1 << 30, (1 << 31) - 1
LONGEST_FIRST = 4096
"""The most bytes that the answer to a handshake may have; ZooKeeper sends 37."""

_EVENT_XID, _PING_XID, _AUTH_XID = -1, -2, -4
_CLOSE = -11
_head = struct.Struct(">ii").pack
_Reply = struct.Struct(">iiqi")
_reply = _Reply.unpack_from
_number = struct.Struct(">i").unpack_from
_event, _EVENT = struct.Struct(">iii").unpack_from, 16
_connected, _CONNECTED = struct.Struct(">iiqi").unpack_from, 20
_asked = struct.Struct(">iii").unpack_from
_HEAD = _Reply.size


class Rider(Protocol):
    """Whose requests are on the stream."""

    def fired(self, kind: int, path: str) -> None:
        """Take the event of a watch."""

    def closing(self) -> None:
        """Note that kazoo ends the session."""

    def warn(self, message: str, *details: object) -> None:
        """Log a warning, once nobody waits."""


class Flight:
    """Requests that were sent back to back, at ``sent``, and their results as they come.

    ``done(flight)`` is called with the last result.
    """

    __slots__ = ("_done", "_left", "requests", "results", "sent")

    def __init__(
        self, requests: Sequence[Request], sent: float, done: Callable[[Flight], object]
    ) -> None:
        self.requests = requests
        self.sent = sent
        self.results: list[Any] = [None] * len(requests)
        self._done = done
        self._left = len(requests)

    def set_result(self, slot: int, result: Any) -> None:
        self.results[slot] = result
        self._left -= 1
        if not self._left:
            self._done(self)


class Broken(Exception):
    """What has come cannot be of this stream: the connection is to be dropped."""


class Link:
    """The stream. ``out``: what is to be sent. ``inbox``: kazoo's frames that have come."""

    def __init__(self, rider: Rider, shell: Shell) -> None:
        self.out: list[bytes] = []
        self.inbox: deque[bytes] = deque()
        self.serving = False
        self.seen = 0  # the highest zxid of the session's replies
        self._rider, self._shell = rider, shell
        self._due: deque[tuple[int, Flight, int]] = deque()  # by number
        self._xid = FIRST
        self._buffer = b""
        self._first = False
        self._watched: set[bytes] = set()  # the paths that kazoo watches here
        self._hears_all = False  # kazoo watches paths that are not known here
        self._kazoos: deque[int] = deque()  # the numbers of its requests that are due
        self._early: deque[bytes] = deque()  # answers to credentials

    def opened(self) -> None:
        self.cut()
        self.inbox.clear()
        self._buffer, self._first = b"", True

    def cut(self) -> None:
        """Drop what is due: the connection is over. Repeatable."""
        self.serving = False
        for each in (self._due, self._watched, self._kazoos, self._early):
            each.clear()
        self.out.clear()

    @property
    def idle(self) -> bool:
        """Whether nothing of ours is due."""
        return not self._due

    # Towards the server.

    def ask(self, codec: Codec, flight: Flight, most: int) -> None:
        """Send the first so many of these requests back to back."""
        for slot, request in enumerate(flight.requests[:most]):
            body = codec.encode(request)
            if isinstance(body, Failed):
                flight.set_result(slot, body)
                continue
            self.out.append(_head(len(body) + 4, self._xid))
            self.out.append(body)
            self._due.append((self._xid, flight, slot))
            self._xid = self._xid + 1 if self._xid < _LAST else FIRST

    def pass_on(self, frame: bytes) -> None:
        """Send a frame of kazoo's; note the watch that it asks for."""
        length, xid, opcode = _asked(frame)
        if xid > 0 and opcode in SETS_WATCH and frame[-1]:
            self._watched.add(frame[16 : 16 + _number(frame, 12)[0]])
        elif opcode in SETS_WATCHES:
            self._hears_all = True
        elif length == 8 and opcode == _CLOSE:
            self.serving = False
            self._rider.closing()
        if xid > 0 or xid == _AUTH_XID:
            self._kazoos.append(xid)
        self.out.append(frame)

    # From the server.

    def receive(self, codec: Codec, chunk: bytes) -> None:
        """Take what has come; raises ``Broken``."""
        data = self._buffer + chunk if self._buffer else chunk
        at, size = 0, len(data)
        while size - at >= 4:
            end = at + 4 + _number(data, at)[0]
            if end - at < _HEAD or (self._first and end - at > LONGEST_FIRST):
                raise Broken(f"the server sent a frame of {end - at - 4} bytes")
            if end > size:
                break
            if self._first:
                self._first = False
                self._answer_to_handshake(data, at, end)
            else:
                self._frame(codec, data, at, end)
            at = end
        self._buffer = data[at:]

    def _frame(self, codec: Codec, data: bytes, at: int, end: int) -> None:
        _, xid, zxid, error = _reply(data, at)
        if xid == _EVENT_XID:
            self._fire(codec, data[at:end])
            return
        if xid > 0 or xid == _PING_XID:
            if 0 < zxid < self.seen:
                self._shell.went_back(zxid)
                raise Broken("the server is at an older transaction")
            self.seen = max(self.seen, zxid)
        if error and error not in EXCEPTIONS:
            self._rider.warn("ZooKeeper answered with the unknown error code %s", error)
        if xid >= FIRST:
            oldest, flight, slot = self._due.popleft() if self._due else _NONE
            if xid != oldest:
                raise Broken(f"the server answered request {xid} instead of {oldest or 'none'}")
            body = data[at + _HEAD : end]
            flight.set_result(slot, codec.result(flight.requests[slot], error, body))
            return
        if xid == _PING_XID:
            self._shell.pinged_back()
        self._hand_on(xid, _known(data[at:end], error))

    def _hand_on(self, xid: int, frame: bytes) -> None:
        """Hand a frame on to kazoo.

        A server answers credentials at once, before older requests. kazoo would take that for the
        answer to its oldest request. So it is held back until it is due.
        """
        due = self._kazoos
        if xid == _AUTH_XID and due and due[0] != _AUTH_XID:
            self._early.append(frame)
            return
        if xid > 0 and (not due or xid != due[0]):  # it would end kazoo's thread
            raise Broken(
                f"the server answered request {xid} instead of {due[0] if due else 'none'}"
            )
        self.inbox.append(frame)
        if due and xid == due[0]:
            due.popleft()
        while self._early and due and due[0] == _AUTH_XID:
            due.popleft()
            self.inbox.append(self._early.popleft())

    def _fire(self, codec: Codec, frame: bytes) -> None:
        if len(frame) < _HEAD + _EVENT - 4:
            raise Broken(f"the server sent an event of {len(frame)} bytes")
        kind, _, length = _event(frame, _HEAD)
        path = frame[_HEAD + 12 : _HEAD + 12 + length]
        if path in self._watched or self._hears_all:
            self._watched.discard(path)
            self.inbox.append(frame)
        known = path[len(codec.chroot.encode()) :].decode(errors="replace")
        self._rider.fired(kind, known or "/")

    def _answer_to_handshake(self, data: bytes, at: int, end: int) -> None:
        if end - at < 4 + _CONNECTED:
            raise Broken(f"the server sent a frame of {end - at - 4} bytes")
        _, milliseconds, session_id, password = _connected(data, at + 4)
        flag = at + 4 + _CONNECTED + max(0, password)
        read_only = flag < end and data[flag] != 0
        self.inbox.append(data[at:end])
        self._shell.shaken(milliseconds, session_id, read_only=read_only)


def _known(frame: bytes, error: int) -> bytes:
    """Return kazoo's frame; an error that it does not know would end its thread."""
    if error == 0 or error in EXCEPTIONS:
        return frame
    length, xid, zxid, _ = _reply(frame)
    return _Reply.pack(length, xid, zxid, APIError.code) + frame[_HEAD:]


_NONE = 0, Flight((), 0.0, lambda _: None), 0
"""What is due when nothing is."""
