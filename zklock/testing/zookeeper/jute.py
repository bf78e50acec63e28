"""ZooKeeper's wire format: bytes to requests, messages to bytes. Pure.

All numbers are big-endian. A string, a buffer and a vector begin with a 32-bit length, of which -1
means null. A frame is a 32-bit length and that many bytes. The first frame of a client is
`Connect`; all others begin with ``xid, op``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TypeVar

from zklock.testing.zookeeper.messages import (
    Acl,
    Acls,
    AddWatch,
    Answer,
    Auth,
    Body,
    Check,
    Children,
    Clients,
    Close,
    Connect,
    Connected,
    CountBelow,
    Create,
    Created,
    Data,
    Delete,
    Done,
    Event,
    Exists,
    GetAcl,
    GetChildren,
    GetData,
    GetEphemerals,
    HangUp,
    Message,
    Multi,
    Number,
    Op,
    Part,
    Ping,
    Reconfig,
    RemoveWatches,
    Request,
    Results,
    SetAcl,
    SetData,
    SetWatches,
    Stat,
    Sync,
    Synced,
    Unknown,
    Unreadable,
    WhoAmI,
)

T = TypeVar("T")

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_HEADER = struct.Struct(">ii")
_CONNECT = struct.Struct(">iqiq")
_CONNECTED = struct.Struct(">iiq")
_ANSWER = struct.Struct(">iqi")
_EVENT = struct.Struct(">iqiii")
_STAT = struct.Struct(">qqqqiiiqiiq")
_PART = struct.Struct(">i?i")

_EVENT_XID, _EVENT_ZXID, _SYNC_CONNECTED = -1, -1, 3


class Malformed(ValueError):
    """The bytes are no such record."""


class Reader:
    """Reads the records of one frame, from front to back."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._at = 0

    def _unpack(self, form: struct.Struct) -> tuple[int, ...]:
        try:
            values = form.unpack_from(self._frame, self._at)
        except struct.error as error:
            raise Malformed("the frame ends too early") from error
        self._at += form.size
        return values

    @property
    def left(self) -> int:
        """The bytes that are not read yet."""
        return len(self._frame) - self._at

    def header(self) -> tuple[int, int]:
        """Return ``xid`` and operation."""
        xid, op = self._unpack(_HEADER)
        return xid, op

    def number(self) -> int:
        """Return a 32-bit number."""
        return self._unpack(_INT)[0]

    def long(self) -> int:
        """Return a 64-bit number."""
        return self._unpack(_LONG)[0]

    def flag(self) -> bool:
        """Return a truth value."""
        if not self.left:
            raise Malformed("the frame ends too early")
        self._at += 1
        return self._frame[self._at - 1] != 0

    def buffer(self) -> bytes | None:
        """Return bytes, or null."""
        length = self.number()
        if length == -1:
            return None
        if not 0 <= length <= self.left:
            raise Malformed(f"a length of {length} with {self.left} bytes left")
        self._at += length
        return self._frame[self._at - length : self._at]

    def text(self) -> str:
        """Return a text; null is an error."""
        found = self.buffer()
        if found is None:
            raise Malformed("null instead of a text")
        return self._decoded(found)

    def _text_or_null(self) -> str:
        return self._decoded(self.buffer() or b"")

    def _decoded(self, found: bytes) -> str:
        try:
            return found.decode()
        except UnicodeDecodeError as error:
            raise Malformed("not UTF-8") from error

    def vector(self, read: Callable[[], T]) -> tuple[T, ...]:
        """Return what ``read`` reads, as often as the vector says; null is empty."""
        count = self.number()
        if count > self.left:
            raise Malformed(f"{count} entries with {self.left} bytes left")
        return tuple(read() for _ in range(count))

    def acl(self) -> Acl:
        """Return one entry of an ACL; kazoo sends an empty text as null."""
        return Acl(self.number(), self._text_or_null(), self._text_or_null())

    def part(self) -> tuple[int, bool]:
        """Return the header of a transaction's part: its operation, and whether it is the end."""
        op, end, _ = self._unpack(_PART)
        return op, bool(end)


def read_connect(frame: bytes) -> Connect:
    """Read the first frame of a connection; `Malformed` for anything else."""
    reader = Reader(frame)
    _version, last_zxid, timeout, session = reader._unpack(_CONNECT)
    password = reader.buffer() or b""
    old = not reader.left
    return Connect(last_zxid, timeout, session, password, not old and reader.flag(), old)


def read_request(frame: bytes) -> tuple[int, Request]:
    """Read any other frame: ``xid`` and request; `Malformed` if it has no header."""
    reader = Reader(frame)
    xid, code = reader.header()
    read = _READ.get(code)
    if read is None:
        return xid, Unknown(code)
    try:
        return xid, read(reader)
    except Malformed:
        return xid, Unreadable(Op(code))


def _create(op: Op) -> Callable[[Reader], Create]:
    def read(r: Reader) -> Create:
        return Create(r.text(), r.buffer(), r.vector(r.acl), r.number(), op)

    return read


def _create_ttl(r: Reader) -> Create:
    found = _create(Op.CREATE_TTL)(r)
    r.long()
    return found


def _multi(reader: Reader) -> Multi:
    parts: list[Part] = []
    while True:
        code, end = reader.part()
        if end:
            return Multi(tuple(parts))
        read = _PARTS.get(code)
        if read is None:
            raise Malformed(f"operation {code} in a transaction")
        parts.append(read(reader))


def _set_watches(r: Reader) -> SetWatches:
    return SetWatches(r.long(), r.vector(r.text), r.vector(r.text), r.vector(r.text))


def _set_watches2(r: Reader) -> SetWatches:
    first = _set_watches(r)
    return first._replace(
        persistent=r.vector(r.text), recursive=r.vector(r.text), op=Op.SET_WATCHES2
    )


def _reconfig(r: Reader) -> Reconfig:
    for _ in range(3):
        r.buffer()
    r.long()
    return Reconfig()


_PARTS: Mapping[int, Callable[[Reader], Part]] = {
    Op.CREATE: _create(Op.CREATE),
    Op.CREATE2: _create(Op.CREATE2),
    Op.CREATE_CONTAINER: _create(Op.CREATE_CONTAINER),
    Op.CREATE_TTL: _create_ttl,
    Op.DELETE: lambda r: Delete(r.text(), r.number()),
    Op.SET_DATA: lambda r: SetData(r.text(), r.buffer(), r.number()),
    Op.CHECK: lambda r: Check(r.text(), r.number()),
}

_READ: Mapping[int, Callable[[Reader], Request]] = {
    **_PARTS,
    Op.EXISTS: lambda r: Exists(r.text(), r.flag()),
    Op.GET_DATA: lambda r: GetData(r.text(), r.flag()),
    Op.GET_ACL: lambda r: GetAcl(r.text()),
    Op.SET_ACL: lambda r: SetAcl(r.text(), r.vector(r.acl), r.number()),
    Op.GET_CHILDREN: lambda r: GetChildren(r.text(), r.flag()),
    Op.GET_CHILDREN2: lambda r: GetChildren(r.text(), r.flag(), Op.GET_CHILDREN2),
    Op.SYNC: lambda r: Sync(r.text()),
    Op.PING: lambda r: Ping(),
    Op.MULTI: _multi,
    Op.CHECK_WATCHES: lambda r: RemoveWatches(r.text(), r.number(), Op.CHECK_WATCHES),
    Op.REMOVE_WATCHES: lambda r: RemoveWatches(r.text(), r.number()),
    Op.AUTH: lambda r: (r.number(), Auth(r.text(), r.buffer()))[1],
    Op.SET_WATCHES: _set_watches,
    Op.SET_WATCHES2: _set_watches2,
    Op.ADD_WATCH: lambda r: AddWatch(r.text(), r.number()),
    Op.GET_EPHEMERALS: lambda r: GetEphemerals(r.text()),
    Op.GET_ALL_CHILDREN_NUMBER: lambda r: CountBelow(r.text()),
    Op.WHO_AM_I: lambda r: WhoAmI(),
    Op.RECONFIG: _reconfig,
    Op.CLOSE_SESSION: lambda r: Close(),
}


def _buffer(data: bytes | None) -> bytes:
    return _INT.pack(-1) if data is None else _INT.pack(len(data)) + data


def _text(text: str) -> bytes:
    return _buffer(text.encode())


def _stat(stat: Stat) -> bytes:
    return _STAT.pack(*stat)


def _maybe(stat: Stat | None) -> bytes:
    return b"" if stat is None else _stat(stat)


def _acls(body: Acls) -> bytes:
    entries = [_INT.pack(acl.perms) + _text(acl.scheme) + _text(acl.id) for acl in body.acl]
    return _INT.pack(len(entries)) + b"".join(entries) + _stat(body.stat)


def _children(body: Children) -> bytes:
    return b"".join([_INT.pack(len(body.names)), *map(_text, body.names), _maybe(body.stat)])


def _clients(body: Clients) -> bytes:
    known = [_text(scheme) + _text(name) for scheme, name in body.clients]
    return _INT.pack(len(known)) + b"".join(known)


def _results(body: Results) -> bytes:
    chunks = []
    for part in body.parts:
        if isinstance(part, Done):
            chunks += [_PART.pack(part.op, False, 0), _body(part.body)]
        else:
            chunks += [_PART.pack(Op.ERROR, False, part.code), _INT.pack(part.code)]
    return b"".join([*chunks, _PART.pack(-1, True, -1)])


_WRITE: Mapping[type, Callable[..., bytes]] = {
    type(None): lambda body: b"",
    Created: lambda body: _text(body.path) + _maybe(body.stat),
    Stat: _stat,
    Data: lambda body: _buffer(body.data) + _stat(body.stat),
    Children: _children,
    Acls: _acls,
    Synced: lambda body: _text(body.path),
    Results: _results,
    Number: lambda body: _INT.pack(body.value),
    Clients: _clients,
}


def _body(body: Body) -> bytes:
    return _WRITE[type(body)](body)


def _connected(message: Connected) -> bytes:
    head = _CONNECTED.pack(0, message.timeout, message.session) + _buffer(message.password)
    return head if message.old else head + bytes([message.read_only])


def frame(message: Message) -> bytes:
    """Return the frame that says this; `HangUp` is none, and has no bytes."""
    if isinstance(message, Answer):
        text = _ANSWER.pack(message.xid, message.zxid, message.code) + _body(message.body)
    elif isinstance(message, Event):
        head = _EVENT.pack(_EVENT_XID, _EVENT_ZXID, 0, message.kind, _SYNC_CONNECTED)
        text = head + _text(message.path)
    elif isinstance(message, HangUp):
        return b""
    else:
        text = _connected(message)
    return _INT.pack(len(text)) + text
