"""Sorts what a server sends on one connection: frame by frame, in the order in which they come.

Each frame starts with its length. The first one answers the handshake. A reply carries the number
of its request; replies come in the order of the requests. A reply to a wire request completes it.
An event tells those who watch. Every other frame is kazoo's, and is passed on whole, under kazoo's
own number.

A server answers credentials (``add_auth``) at once, before older requests. kazoo would take that
for the answer to its oldest request. So it is held back until it is due.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable
from functools import partial

from kazoo.exceptions import EXCEPTIONS, APIError

from zklock._ground.records import log_fields
from zklock._kazoo.socket import LONGEST_FIRST, HandshakingSocket
from zklock._kazoo.watches import Watch, Watches
from zklock._kazoo.wire_request import Awaited, WireRequest

log = logging.getLogger("zklock")

_EVENT_XID, _PING_XID, AUTH_XID = -1, -2, -4
_REPLY = struct.Struct(">iiqi")  # length; xid, zxid, error
_EVENT = struct.Struct(">iii")  # kind, state, length of the path
_CONNECTED = struct.Struct(">iiiqi")  # length; version, timeout, session, length of the password
_NUMBER = 4  # bytes
_number = struct.Struct(">i").unpack_from
_reply = _REPLY.unpack_from


class Frames:
    """Takes what is received, in pieces of any size; see the module.

    ``told``: what is to be called, in this order, by whoever has sorted.
    ``inbox``: kazoo's frames. ``broken``: nothing more is taken from this stream, as a frame cannot
    be what it should be. ``due``: the replies that are to come, in order of the requests, each with
    the number of its request (``AUTH_XID`` for credentials), kazoo's own number of it, the request
    if it is one, and the watch that it asks for.
    """

    def __init__(self, socket: HandshakingSocket) -> None:
        self.told: list[Callable[[], object]] = []
        self.inbox: deque[bytes] = deque()
        self.broken = False
        self.watches = Watches()
        self.due: deque[tuple[int, int, WireRequest | None, Watch | None]] = deque()
        self._socket = socket
        self._state = socket.state
        self._first = True
        self._data: bytes | bytearray = b""
        self._at = 0
        self._early: deque[bytes] = deque()  # answers to credentials

    @property
    def sorted(self) -> bool:
        """Whether nothing is left of what was received."""
        return self._at == len(self._data) and not self.broken

    def feed(self, chunk: bytes) -> None:
        """Take what was received."""
        if self._at == len(self._data):
            self._data, self._at = chunk, 0
            return
        data = self._data
        if isinstance(data, bytes):
            data = self._data = bytearray(data)
        del data[: self._at]
        data += chunk
        self._at = 0

    def sort(self, wanted: Callable[[], bool] | None = None) -> None:
        """Sort what has come, and note in ``told`` what to do.

        Only for as long as the next frame is ``wanted``.
        """
        data, size = self._data, len(self._data)
        while not self.broken and size - self._at >= _NUMBER:
            at = self._at
            length = _number(data, at)[0]
            end = at + _NUMBER + length
            if length < _REPLY.size - _NUMBER or (self._first and length > LONGEST_FIRST):
                self._impossible(length)
                return
            if end > size or (wanted is not None and not wanted()):
                return
            self._at = end
            if self._first:
                self._first = False
                self._handshake(data, at, end)
            elif _number(data, at + _NUMBER)[0] > 0:
                self._answer(data, at, end)
            else:
                self._other(data, at, end)

    def answers(self, landing: Awaited) -> bool:
        """Whether the next frame is a reply to one of these requests, as far as it is there."""
        if not self.due:
            return False
        number, _, request, _ = self.due[0]
        at = self._at + _NUMBER
        known = len(self._data) < at + _NUMBER or _number(self._data, at)[0] == number
        return known and request is not None and request.landing is landing

    def has_event(self) -> bool:
        """Whether the next frame is an event."""
        at = self._at + _NUMBER
        return len(self._data) >= at + _NUMBER and _number(self._data, at)[0] == _EVENT_XID

    def _pass_on(self, frame: bytes) -> None:
        self.told.append(partial(self.inbox.append, frame))

    def _other(self, data: bytes | bytearray, at: int, end: int) -> None:
        """Take what answers no request with a number."""
        _, xid, zxid, error = _reply(data, at)
        frame = bytes(data[at:end])
        if xid == _PING_XID:
            if self._state.goes_back(zxid):
                self._end_at(zxid)
                return
            self.told.append(self._socket.pinged_back)
        elif xid == _EVENT_XID:
            if not self._event(frame):
                return
        elif xid == AUTH_XID and not error:
            self._early.append(frame)
            self._authenticated()
            return
        self._pass_on(frame)

    def _authenticated(self) -> None:
        """Pass on the answers to credentials that are due."""
        while self._early and self.due and self.due[0][0] == AUTH_XID:
            self.due.popleft()
            self._pass_on(self._early.popleft())

    def _answer(self, data: bytes | bytearray, at: int, end: int) -> None:
        """Take a reply; pass it on, under kazoo's number, if it is kazoo's."""
        length, xid, zxid, error = _reply(data, at)
        if not self.due or self.due[0][0] != xid:
            self.told.append(partial(_say_stray, xid, self.due[0][0] if self.due else "none"))
            self.broken = True
            return
        if self._state.goes_back(zxid):
            self._end_at(zxid)
            return
        self._state.seen(zxid)
        _, kazoos, request, watch = self.due.popleft()
        if error and error not in EXCEPTIONS:  # because of it, kazoo's thread would end
            self.told.append(partial(_say_unknown, error))
            error = int(APIError.code)
        if watch is not None:
            self.watches.answered(watch, error)
        body = bytes(data[at + _REPLY.size : end])
        if request is not None:
            self.told.append(partial(request.land, error, body))
        else:
            self._pass_on(_REPLY.pack(length, kazoos, zxid, error) + body)
        if self._early:
            self._authenticated()

    def _end_at(self, zxid: int) -> None:
        """End the stream at a transaction that is older than one that was seen."""
        self.told.append(partial(self._state.cancel, zxid))
        self.broken = True

    def _event(self, frame: bytes) -> bool:
        """Have those told of an event who watch; return whether kazoo is to see it."""
        if len(frame) < _REPLY.size + _EVENT.size:
            return True
        kind, _, length = _EVENT.unpack_from(frame, _REPLY.size)
        start = _REPLY.size + _EVENT.size
        tells, kazoo_sees = self.watches.fire(kind, frame[start : start + length])
        self.told += tells
        return kazoo_sees

    def _handshake(self, data: bytes | bytearray, at: int, end: int) -> None:
        if end - at < _CONNECTED.size:
            self._impossible(end - at - _NUMBER)
            return
        _, _, milliseconds, _, password = _CONNECTED.unpack_from(data, at)
        flag = at + _CONNECTED.size + max(0, password)
        read_only = flag < end and data[flag] != 0
        self.told.append(partial(self._socket.connected, milliseconds, read_only))
        self._pass_on(bytes(data[at:end]))

    def _impossible(self, length: int) -> None:
        self.told.append(partial(_say_impossible, length))
        self.broken = True


# Users' code may hear of a log line: nothing is logged while others wait.


def _say_stray(xid: int, due: int | str) -> None:
    log.warning(
        "the server answered request %s instead of %s: connection dropped",
        xid,
        due,
        extra=log_fields(),
    )


def _say_impossible(length: int) -> None:
    log.warning(
        "the server sent a frame of %s bytes: connection dropped", length, extra=log_fields()
    )


def _say_unknown(error: int) -> None:
    log.warning("ZooKeeper answered with the unknown error code %s", error, extra=log_fields())
