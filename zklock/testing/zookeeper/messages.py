"""What clients ask of a ZooKeeper server and what it answers; their frames. Pure.

A request's fields are those of ``codec.REQUESTS``, in that order, and its operation.

Source: ``KeeperException`` of Apache ZooKeeper 3.8.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias, get_args

from zklock.testing.zookeeper import codec
from zklock.testing.zookeeper.codec import Acl, Malformed, Op


class Code(enum.IntEnum):
    OK = 0
    RUNTIME_INCONSISTENCY = -2
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NOT_READ_ONLY = -119
    RECONFIG_DISABLED = -123
    THROTTLED_OP = -127


class EventKind(enum.IntEnum):
    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4

    @property
    def title(self) -> str:
        """ZooKeeper's own name of it, such as ``NodeDeleted``."""
        return f"Node{self.name.title().replace('_', '')}"


class Perms(enum.IntFlag):
    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


OPEN: tuple[Acl, ...] = (Acl(Perms.ALL, "world", "anyone"),)
"""The ACL that permits everything to everybody."""

READ_ONLY: tuple[Acl, ...] = (Acl(Perms.READ, "world", "anyone"),)
"""The ACL that permits everybody to read."""


class Connect(NamedTuple):
    """The first frame of a connection; ``read_only`` is ``None`` from clients that know of none."""

    last_zxid: int
    timeout: int
    session: int
    password: bytes
    read_only: bool | None = False


class Create(NamedTuple):
    """Create a node; ``op`` says whether the answer has a `Stat`."""

    path: str
    data: bytes | None
    acl: Sequence[Acl] = OPEN
    mode: int = 0
    op: Op = Op.CREATE


class Delete(NamedTuple):
    """Delete a node of this version (-1: of any)."""

    path: str
    version: int = -1
    op: Op = Op.DELETE


class Exists(NamedTuple):
    """Ask for a node's `Stat`; the watch stays if there is no node."""

    path: str
    watch: bool = False
    op: Op = Op.EXISTS


class GetData(NamedTuple):
    path: str
    watch: bool = False
    op: Op = Op.GET_DATA


class SetData(NamedTuple):
    """Write a node of this version (-1: of any)."""

    path: str
    data: bytes | None
    version: int = -1
    op: Op = Op.SET_DATA


class GetAcl(NamedTuple):
    path: str
    op: Op = Op.GET_ACL


class SetAcl(NamedTuple):
    """Replace a node's ACL of this version (-1: of any)."""

    path: str
    acl: Sequence[Acl]
    version: int = -1
    op: Op = Op.SET_ACL


class GetChildren(NamedTuple):
    """Ask for the names below a node; ``op`` says whether its `Stat` is wanted, too."""

    path: str
    watch: bool = False
    op: Op = Op.GET_CHILDREN


class Sync(NamedTuple):
    """Wait until this server has what the leader has."""

    path: str
    op: Op = Op.SYNC


class CheckVersion(NamedTuple):
    """Part of a transaction: the node has this version (-1: any)."""

    path: str
    version: int = -1
    op: Op = Op.CHECK


Part: TypeAlias = Create | Delete | SetData | CheckVersion


class Multi(NamedTuple):
    """A transaction: all of its parts, or none."""

    parts: tuple[Part, ...]
    op: Op = Op.MULTI


class SetWatches(NamedTuple):
    """Place again the watches of an earlier connection that had seen ``zxid``."""

    zxid: int
    data: Sequence[str]
    exists: Sequence[str]
    children: Sequence[str]
    op: Op = Op.SET_WATCHES


class Reconfig(NamedTuple):
    op: Op = Op.RECONFIG


class Auth(NamedTuple):
    scheme: str
    data: bytes | None
    op: Op = Op.AUTH


class Ping(NamedTuple):
    op: Op = Op.PING


class Close(NamedTuple):
    op: Op = Op.CLOSE_SESSION


class Unreadable(NamedTuple):
    """A request whose body does not fit its operation."""

    op: Op


class Unknown(NamedTuple):
    """An operation that this server does not have."""

    code: int
    op: Op = Op.ERROR


Request: TypeAlias = (
    Create
    | Delete
    | Exists
    | GetData
    | SetData
    | GetAcl
    | SetAcl
    | GetChildren
    | Sync
    | CheckVersion
    | Multi
    | SetWatches
    | Reconfig
    | Auth
    | Ping
    | Close
    | Unreadable
    | Unknown
)


class Connected(NamedTuple):
    """The answer to `Connect`; a session of 0: the one asked for is over."""

    timeout: int
    session: int
    password: bytes
    read_only: bool | None


class Answer(NamedTuple):
    """The answer to the request ``xid``; ``zxid`` is the last transaction of the server.

    ``body`` has the values of ``codec.REPLIES[op]``, and perhaps more, unless there is an error.
    """

    xid: int
    zxid: int
    code: int
    op: Op = Op.ERROR
    body: tuple[Any, ...] = ()


class WatchEvent(NamedTuple):
    kind: EventKind
    path: str


class HangUp(NamedTuple):
    """The server closes the connection, after what it has sent before."""


Message: TypeAlias = Connected | Answer | WatchEvent | HangUp

_SYNC_CONNECTED = 3
KINDS: Final[dict[Op, Any]] = {
    **{
        kind._field_defaults["op"]: kind
        for kind in get_args(Request)
        if kind not in (Unreadable, Unknown)
    },
    **dict.fromkeys((Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL), Create),
    Op.GET_CHILDREN2: GetChildren,
}
"""What is asked by each operation."""


def read_connect(frame: bytes) -> Connect:
    """Read the first frame of a connection; `Malformed` for anything else."""
    (_, last_zxid, timeout, session, password, read_only), _ = codec.CONNECT.unpack(frame)
    return Connect(last_zxid, timeout, session, password or b"", read_only)


def read_request(frame: bytes) -> tuple[int, Request]:
    """Read any other frame: ``xid`` and request; `Malformed` if it has no header."""
    (xid, code), at = codec.ASKED.unpack(frame)
    if code not in KINDS:
        return xid, Unknown(code)
    try:
        return xid, _request(code, codec.REQUESTS[code].unpack(frame, at)[0])
    except Malformed:
        return xid, Unreadable(Op(code))


def _request(code: int, values: tuple[Any, ...]) -> Request:
    op = Op(code)
    if op is Op.MULTI:
        values = (tuple([_request(*part) for part in values[0]]),)
    elif op is Op.AUTH:
        values = values[1:]
    kind = KINDS[op]
    request: Request = kind(*values[: len(kind._fields) - 1], op=op)
    return request


def frame(message: Message) -> bytes:
    """Return the frame that says this; `HangUp` is none, and has no bytes."""
    match message:
        case Answer(xid, zxid, code, op, body):
            text = codec.REPLIES[op].pack(body) if body else b""
            return codec.framed(codec.ANSWERED.pack((xid, zxid, code)) + text)
        case WatchEvent(kind, path):
            head = codec.ANSWERED.pack((codec.EVENT_XID, -1, 0))
            return codec.framed(head + codec.EVENT.pack((kind, _SYNC_CONNECTED, path)))
        case Connected():
            return codec.framed(codec.CONNECTED.pack((0, *message)))
    return b""
