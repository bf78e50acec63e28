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
from typing import Protocol

from kazoo.exceptions import EXCEPTIONS, APIError

from zklock._ground.records import log_fields
from zklock._kazoo.socket import LONGEST_FIRST
from zklock._kazoo.watches import Watch, Watches
from zklock._kazoo.wire_request import WireRequest

log = logging.getLogger("zklock")

_EVENT_XID, _PING_XID, AUTH_XID = -1, -2, -4
_LENGTH = struct.Struct(">i")
_REPLY = struct.Struct(">iiqi")  # length; xid, zxid, error
_EVENT = struct.Struct(">iii")  # kind, state, length of the path
_CONNECTED = struct.Struct(">iiiqi")  # length; version, timeout, session, length of the password
_NUMBER = struct.Struct(">i")
_HEAD = struct.Struct(">ii")  # length; xid

_length = _LENGTH.unpack_from
_reply = _REPLY.unpack_from
_head = _HEAD.unpack_from


class Hears(Protocol):
    """What is told while frames are sorted."""

    def connected(self, milliseconds: int, read_only: bool) -> None:
        """Note the answer to the handshake; 0 milliseconds: the session has expired."""

    def pinged_back(self) -> None:
        """Note the answer to a ping."""

    def saw(self, zxid: int) -> object:
        """Note the zxid of a reply: it is higher than those before it."""

    def goes_back(self, zxid: int) -> bool:
        """Note a zxid that is lower than one before it; return whether the stream ends there."""


class Frames:
    """Takes what is received, in pieces of any size; see the module.

    ``broken``: nothing more is taken from this stream, as a frame cannot be what it should be.
    ``due``: the replies that are to come, in order of the requests, each with the number of its
    request (``AUTH_XID`` for credentials), kazoo's own number of it, the request if it is one, and
    the watch that it asks for.
    ``zxid``: the highest one of a reply on this session.
    """

    def __init__(self, hears: Hears) -> None:
        self.broken = False
        self.watches = Watches()
        self._hears = hears
        self._first = True
        self.zxid = 0
        self._data: bytes | bytearray = b""
        self._at = 0
        self.due: deque[tuple[int, int, WireRequest | None, Watch | None]] = deque()
        self._early: deque[bytes] = deque()  # answers to credentials

    def left(self) -> list[WireRequest]:
        """Return the requests without a reply."""
        return [request for _, _, request, _ in self.due if request is not None]

    def feed(self, chunk: bytes) -> None:
        """Take what was received."""
        if self._at == len(self._data):
            self._data, self._at = chunk, 0
            return
        data = self._data
        if isinstance(data, bytes):
            data = self._data = bytearray(data)
        del data[: self._at]
        self._at = 0
        data += chunk

    def sort(self) -> bytes:
        """Take frames, and return the next one for kazoo; nothing if there is none yet."""
        data, size = self._data, len(self._data)
        while True:
            at = self._at
            early = self._early.popleft() if self._early and self._authenticated() else b""
            if early or self.broken or size - at < _LENGTH.size:
                return early
            length = _length(data, at)[0]
            end = at + _LENGTH.size + length
            if length < _REPLY.size - _LENGTH.size or (self._first and length > LONGEST_FIRST):
                return self._impossible(length)
            if end > size:
                return b""
            self._at = end  # before anybody hears of the frame, and perhaps fails
            if self._first:
                self._first = False
                return self._handshake(data, at, end)
            xid = _NUMBER.unpack_from(data, at + _LENGTH.size)[0]
            frame = (self._answer if xid > 0 else self._told)(data, at, end)
            if frame:
                return frame

    def _told(self, data: bytes | bytearray, at: int, end: int) -> bytes:
        """Take what answers no request with a number; return it if it is kazoo's."""
        xid = _NUMBER.unpack_from(data, at + _LENGTH.size)[0]
        if xid == _PING_XID:
            zxid = _reply(data, at)[2]
            if zxid < self.zxid and self._hears.goes_back(zxid):
                return self._break()
            self._hears.pinged_back()
        elif xid == _EVENT_XID and not self._event(data, at + _REPLY.size, end):
            return b""
        elif xid == AUTH_XID and not _reply(data, at)[3] and not self._authenticated():
            self._early.append(bytes(data[at:end]))
            return b""
        return bytes(data[at:end])

    def _authenticated(self) -> bool:
        """Return whether an answer to credentials is due; it is not any more then."""
        due = bool(self.due) and self.due[0][0] == AUTH_XID
        if due:
            self.due.popleft()
        return due

    @property
    def idle(self) -> bool:
        """Whether no reply is due, and nothing is left of what was received."""
        return not self.due and self._at == len(self._data) and not self.broken

    def replies_to(self, landing: object) -> tuple[list[tuple[WireRequest, int, bytes]], bool]:
        """Take the replies to the requests of a landing that come next: request, error code, body.

        Return them, and whether what comes next, as far as it is there, is no such reply. Nothing
        of that is looked at.
        """
        taken: list[tuple[WireRequest, int, bytes]] = []
        data, size, due = self._data, len(self._data), self.due
        while due:
            number, _, request, watch = due[0]
            if request is None or request.landing is not landing:
                return taken, True
            at = self._at
            if size - at < _HEAD.size:
                return taken, False
            length, xid = _head(data, at)
            if xid != number or length < _REPLY.size - _LENGTH.size:
                return taken, True
            end = at + _LENGTH.size + length
            if end > size:
                return taken, False
            _, _, zxid, error = _reply(data, at)
            if 0 < zxid < self.zxid:
                return taken, True  # the connection thread sees to it
            self._at = end
            due.popleft()
            body = bytes(data[at + _REPLY.size : end])
            self._seen(zxid)
            taken.append((request, self._heard(error, watch), body))
        return taken, self._at < size

    def _heard(self, error: int, watch: Watch | None) -> int:
        """Note what the head of a reply says; return the error code to pass on."""
        if watch is not None:
            self.watches.answered(watch, error)
        return _known(error) if error else 0

    def _seen(self, zxid: int) -> None:
        if zxid > self.zxid:
            self.zxid = zxid
            self._hears.saw(zxid)

    def _answer(self, data: bytes | bytearray, at: int, end: int) -> bytes:
        """Take a reply; return it, under kazoo's number, if it is kazoo's."""
        length, xid, zxid, error = _reply(data, at)
        if not self.due or self.due[0][0] != xid:
            due = self.due[0][0] if self.due else "none"
            log.warning(
                "the server answered request %s instead of %s: connection dropped",
                xid,
                due,
                extra=log_fields(),
            )
            return self._break()
        if zxid < self.zxid and self._hears.goes_back(zxid):
            return self._break()
        self._seen(zxid)
        _, kazoos, request, watch = self.due.popleft()
        error = self._heard(error, watch)  # kazoo's thread would end because of an unknown one
        if request is not None:
            request.land(error, bytes(data[at + _REPLY.size : end]))
            return b""
        return _REPLY.pack(length, kazoos, zxid, error) + data[at + _REPLY.size : end]

    def _event(self, data: bytes | bytearray, at: int, end: int) -> bool:
        """Tell of an event; return whether kazoo is to see it."""
        if end - at < _EVENT.size:
            return True
        kind, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        return self.watches.fire(kind, bytes(data[at : at + length]))

    def _handshake(self, data: bytes | bytearray, at: int, end: int) -> bytes:
        if end - at < _CONNECTED.size:
            return self._impossible(end - at - _LENGTH.size)
        _, _, milliseconds, _, password = _CONNECTED.unpack_from(data, at)
        flag = at + _CONNECTED.size + max(0, password)
        self._hears.connected(milliseconds, read_only=flag < end and data[flag] != 0)
        return bytes(data[at:end])

    def _impossible(self, length: int) -> bytes:
        log.warning(
            "the server sent a frame of %s bytes: connection dropped", length, extra=log_fields()
        )
        return self._break()

    def _break(self) -> bytes:
        self.broken = True
        return b""


def _known(error: int) -> int:
    """Return the error code to pass on, which is one that kazoo knows."""
    if not error or error in EXCEPTIONS:
        return error
    log.warning("ZooKeeper answered with the unknown error code %s", error, extra=log_fields())
    return int(APIError.code)
