"""ZooKeeper's wire format: values to bytes, and bytes to values, for both sides. Pure.

All numbers are big-endian. A string, a buffer and a vector begin with a 32-bit length; -1 stands
for null. A frame is a 32-bit length and that many bytes. The first frame in each direction is the
handshake: ``CONNECT``, ``CONNECTED``. Later frames begin with ``ASKED`` towards the server, and
with ``ANSWERED`` towards the client.

Source: ``zookeeper.jute`` and ``ZooDefs`` of Apache ZooKeeper 3.9.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


class Op(enum.IntEnum):
    """The operations, by ZooKeeper's own numbers."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    DELETE_CONTAINER = 20
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CLOSE_SESSION = -11
    ERROR = -1

    @property
    def title(self) -> str:
        """ZooKeeper's own name of it, such as ``getData`` or ``getACL``."""
        first, *rest = self.name.lower().split("_")
        short = {"acl", "ttl"}
        return "".join([first, *(w.upper() if w in short else w.capitalize() for w in rest)])


class Stat(NamedTuple):
    """What a server tells about a node, in the order of the wire; the names are kazoo's."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeralOwner: int  # noqa: N815
    dataLength: int  # noqa: N815
    numChildren: int  # noqa: N815
    pzxid: int


class Acl(NamedTuple):
    """One entry of a node's ACL."""

    perms: int
    scheme: str
    id: str


EVENT_XID, PING_XID = -1, -2
EPHEMERAL, SEQUENTIAL = 1, 2
"""The ``mode`` of a create: a persistent node is 0, an ephemeral sequential one is 3."""


class Malformed(ValueError):
    """The bytes are no such record."""


class Field(NamedTuple):
    """How a value is written, and how it is read at an offset, with the offset behind it."""

    write: Callable[[Any], bytes]
    read: Callable[[bytes, int], tuple[Any, int]]


def _number(code: str) -> Field:
    form = struct.Struct(f">{code}")
    unpack, size = form.unpack_from, form.size
    return Field(form.pack, lambda body, at: (unpack(body, at)[0], at + size))


INT, LONG, FLAG = map(_number, "iq?")
_STAT = struct.Struct(">qqqqiiiqiiq")
PART = struct.Struct(">i?i")
"""Before a part of a transaction: operation, whether it is the end, error (in a request: -1)."""
END = PART.pack(-1, True, -1)
_int, _int_at, _WORD = INT.write, struct.Struct(">i").unpack_from, 4
_NULL = _int(-1)


def _buffer(data: bytes | None) -> bytes:
    return _NULL if data is None else _int(len(data)) + data


def _text(text: str) -> bytes:
    data = text.encode()
    return _int(len(data)) + data


def _buffer_at(body: bytes, at: int) -> tuple[bytes | None, int]:
    size, start = _int_at(body, at)[0], at + _WORD
    if size == -1:
        return None, start
    end = start + size
    if not start <= end <= len(body):
        raise Malformed("a length is negative, or leads beyond the end")
    return body[start:end], end


def _text_at(body: bytes, at: int) -> tuple[str, int]:
    start = at + _WORD
    end = start + _int_at(body, at)[0]
    if not start <= end <= len(body):
        raise Malformed("a length is negative, or leads beyond the end")
    return body[start:end].decode(), end


def stat_at(body: bytes, at: int) -> Stat:
    stat: Stat = tuple.__new__(Stat, _STAT.unpack_from(body, at))
    return stat


def _vector(field: Field) -> Field:
    def read(body: bytes, at: int) -> tuple[list[Any], int]:
        count, at = _int_at(body, at)[0], at + _WORD
        values = []
        for _ in range(count):
            value, at = read_one(body, at)
            values.append(value)
        return values, at

    read_one = field.read
    return Field(lambda values: _int(len(values)) + b"".join(map(field.write, values)), read)


class Record:
    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self._writes = [field.write for field in fields]
        self._reads = [field.read for field in fields]

    def pack(self, values: Iterable[Any]) -> bytes:
        """Return the bytes of these values; those behind the last field are left out."""
        return b"".join([write(one) for write, one in zip(self._writes, values, strict=False)])

    def unpack(self, body: bytes, at: int = 0) -> tuple[tuple[Any, ...], int]:
        """Return the values at an offset, and the offset behind them; or `Malformed`."""
        values = []
        try:
            for read in self._reads:
                value, at = read(body, at)
                values.append(value)
        except (struct.error, UnicodeDecodeError) as error:
            raise Malformed(str(error)) from error
        return tuple(values), at


def _parts(kinds: Mapping[int, Record], done: int) -> Field:
    """Return the field of a transaction: pairs of an operation and its values."""

    def write(parts: Iterable[tuple[int, tuple[Any, ...]]]) -> bytes:
        chunks: list[bytes] = []
        for op, values in parts:
            chunks += PART.pack(op, False, values[0] if op == -1 else done), kinds[op].pack(values)
        return b"".join((*chunks, END))

    def read(body: bytes, at: int) -> tuple[list[tuple[int, tuple[Any, ...]]], int]:
        parts: list[tuple[int, tuple[Any, ...]]] = []
        while True:
            op, end, _ = PART.unpack_from(body, at)
            at += PART.size
            if end:
                return parts, at
            if op not in kinds:
                raise Malformed(f"operation {op} in a transaction")
            values, at = kinds[op].unpack(body, at)
            parts.append((op, values))

    return Field(write, read)


def _acl(entry: tuple[int, str, str]) -> bytes:
    perms, *names = entry  # an empty name is null, as kazoo has it
    return _int(perms) + b"".join([_text(name) if name else _NULL for name in names])


def _acl_at(body: bytes, at: int) -> tuple[Acl, int]:
    (perms, scheme, name), at = _ACL.unpack(body, at)
    return Acl(perms, (scheme or b"").decode(), (name or b"").decode()), at


BUFFER, TEXT = Field(_buffer, _buffer_at), Field(_text, _text_at)
TEXTS, ACLS = _vector(TEXT), _vector(Field(_acl, _acl_at))
STAT = Field(
    lambda stat: b"" if stat is None else _STAT.pack(*stat),
    lambda body, at: (stat_at(body, at), at + _STAT.size),
)
_ACL = Record(INT, BUFFER, BUFFER)
_CLIENTS = _vector(Field(Record(TEXT, TEXT).pack, Record(TEXT, TEXT).unpack))
_LAST_FLAG = Field(  # None: it is not there
    lambda flag: b"" if flag is None else FLAG.write(flag),
    lambda body, at: FLAG.read(body, at) if at < len(body) else (None, at),
)

CONNECT = Record(INT, LONG, INT, LONG, BUFFER, _LAST_FLAG)
"""Protocol version, last zxid seen, timeout in milliseconds, session, password, read-only."""
CONNECTED = Record(INT, INT, LONG, BUFFER, _LAST_FLAG)
"""Protocol version, timeout in milliseconds, session (0: it has expired), password, read-only."""
ASKED = Record(INT, INT)
"""The number of a request, and its operation."""
ANSWERED = Record(INT, LONG, INT)
"""The number of a request (of an event: ``EVENT_XID``), zxid, error."""
EVENT = Record(INT, INT, TEXT)
"""Kind, state, path."""

_NODE, _VERSIONED, _WATCHED = (TEXT, BUFFER, ACLS, INT), (TEXT, INT), (TEXT, FLAG)
_KINDS: Mapping[Op, tuple[tuple[Field, ...], tuple[Field, ...]]] = {
    Op.CREATE: (_NODE, (TEXT,)),
    Op.CREATE2: (_NODE, (TEXT, STAT)),
    Op.CREATE_CONTAINER: (_NODE, (TEXT, STAT)),
    Op.CREATE_TTL: ((*_NODE, LONG), (TEXT, STAT)),
    Op.DELETE: (_VERSIONED, ()),
    Op.SET_DATA: ((TEXT, BUFFER, INT), (STAT,)),
    Op.CHECK: (_VERSIONED, ()),
    Op.EXISTS: (_WATCHED, (STAT,)),
    Op.GET_DATA: (_WATCHED, (BUFFER, STAT)),
    Op.GET_ACL: ((TEXT,), (ACLS, STAT)),
    Op.SET_ACL: ((TEXT, ACLS, INT), (STAT,)),
    Op.GET_CHILDREN: (_WATCHED, (TEXTS,)),
    Op.GET_CHILDREN2: (_WATCHED, (TEXTS, STAT)),
    Op.SYNC: ((TEXT,), (TEXT,)),
    Op.PING: ((), ()),
    Op.RECONFIG: ((BUFFER, BUFFER, BUFFER, LONG), (BUFFER, STAT)),
    Op.CHECK_WATCHES: (_VERSIONED, ()),
    Op.REMOVE_WATCHES: (_VERSIONED, ()),
    Op.AUTH: ((INT, TEXT, BUFFER), ()),
    Op.SET_WATCHES: ((LONG, TEXTS, TEXTS, TEXTS), ()),
    Op.SET_WATCHES2: ((LONG, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS), ()),
    Op.ADD_WATCH: (_VERSIONED, (INT,)),
    Op.GET_EPHEMERALS: ((TEXT,), (TEXTS,)),
    Op.GET_ALL_CHILDREN_NUMBER: ((TEXT,), (INT,)),
    Op.WHO_AM_I: ((), (_CLIENTS,)),
    Op.CLOSE_SESSION: ((), ()),
}

REQUESTS: dict[int, Record] = {op: Record(*asked) for op, (asked, _) in _KINDS.items()}
REPLIES: dict[int, Record] = {op: Record(*told) for op, (_, told) in _KINDS.items()}
"""The bodies of requests, and of replies without an error, by operation.

That of a transaction is one list of its parts: each is an operation (``Op.ERROR``: it failed) and a
tuple of values.
"""
_IN_A_TRANSACTION = list(_KINDS)[:7]
_asked: dict[int, Record] = {op: REQUESTS[op] for op in _IN_A_TRANSACTION}
_told: dict[int, Record] = {op: REPLIES[op] for op in _IN_A_TRANSACTION}
REQUESTS[Op.MULTI] = Record(_parts(_asked, -1))
REPLIES[Op.MULTI] = Record(_parts(_told | {Op.ERROR: Record(INT)}, 0))


def framed(body: bytes) -> bytes:
    return _int(len(body)) + body


class Splitter:
    """Cuts one direction of a stream into the bodies of frames.

    A stream is ``opaque`` from the start if it does not begin with a handshake, which has 1 to 4096
    bytes: it is TLS, a four-letter word, or another protocol. It is opaque later from a length on
    that is negative, or higher than ``longest``. Other code may set the attribute, too.
    """

    def __init__(self, longest: int = 2**31 - 1) -> None:
        self._buffer = bytearray()
        self._least, self._most, self._longest = 1, min(4096, longest), longest
        self.opaque = False

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the bodies of the frames that are complete now, and the opaque rest."""
        self._buffer += data
        bodies: list[bytes] = []
        at = 0
        while not self.opaque and len(self._buffer) - at >= _WORD:
            length = _int_at(self._buffer, at)[0]
            if not self._least <= length <= self._most:
                self.opaque = True
                break
            start, end = at + _WORD, at + _WORD + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start:end]))
            at, self._least, self._most = end, 0, self._longest
        del self._buffer[:at]
        return bodies, self.rest() if self.opaque else b""

    def rest(self) -> bytes:
        """Return, once, the bytes that are not cut yet."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest
