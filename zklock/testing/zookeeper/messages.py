"""What clients ask of a ZooKeeper server and what it answers. Pure data.

Source: ``zookeeper.jute``, ``ZooDefs`` and ``KeeperException`` of Apache ZooKeeper 3.8.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias


class Code(enum.IntEnum):
    """The error of an answer."""

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
    NO_WATCHER = -121
    RECONFIG_DISABLED = -123
    THROTTLED_OP = -127


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
    CREATE_TTL = 21
    AUTH = 100
    SET_WATCHES = 101
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


class EventKind(enum.IntEnum):
    """What a watch tells of."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILD = 4


class Perms(enum.IntFlag):
    """The permissions of an ACL."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


class Acl(NamedTuple):
    """One entry of a node's ACL."""

    perms: int
    scheme: str
    id: str


OPEN: tuple[Acl, ...] = (Acl(Perms.ALL, "world", "anyone"),)
"""The ACL that permits everything to everybody."""

READ_ONLY: tuple[Acl, ...] = (Acl(Perms.READ, "world", "anyone"),)
"""The ACL that permits everybody to read."""


class Stat(NamedTuple):
    """What a server tells about a node, in the order of the wire."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    length: int
    children: int
    pzxid: int


EPHEMERAL, SEQUENTIAL = 1, 2
"""The ``mode`` of a create: a persistent node is 0, an ephemeral sequential one is 3."""


class Connect(NamedTuple):
    """The first frame of a connection. ``old`` clients do not know of read-only servers."""

    last_zxid: int
    timeout: int
    session: int
    password: bytes
    read_only: bool = False
    old: bool = False


class Create(NamedTuple):
    """Create a node; ``op`` says whether the answer has a `Stat`."""

    path: str
    data: bytes | None
    acl: tuple[Acl, ...] = OPEN
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
    """Ask for a node's data."""

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
    """Ask for a node's ACL."""

    path: str
    op: Op = Op.GET_ACL


class SetAcl(NamedTuple):
    """Replace a node's ACL of this version (-1: of any)."""

    path: str
    acl: tuple[Acl, ...]
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


class Check(NamedTuple):
    """Part of a transaction: the node has this version (-1: any)."""

    path: str
    version: int = -1
    op: Op = Op.CHECK


Part: TypeAlias = Create | Delete | SetData | Check


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
    persistent: Sequence[str] = ()
    recursive: Sequence[str] = ()
    op: Op = Op.SET_WATCHES


class AddWatch(NamedTuple):
    """Watch until it is removed: the node (mode 0), or all at and below it (mode 1)."""

    path: str
    mode: int
    op: Op = Op.ADD_WATCH


class GetEphemerals(NamedTuple):
    """List one's own ephemeral nodes whose paths begin like this."""

    prefix: str
    op: Op = Op.GET_EPHEMERALS


class CountBelow(NamedTuple):
    """Count all nodes below a node."""

    path: str
    op: Op = Op.GET_ALL_CHILDREN_NUMBER


class WhoAmI(NamedTuple):
    """Tell as whom the server knows the client."""

    op: Op = Op.WHO_AM_I


class Reconfig(NamedTuple):
    """Change the ensemble."""

    op: Op = Op.RECONFIG


class WatchKind(enum.IntEnum):
    """Which watches are meant."""

    CHILDREN = 1
    DATA = 2
    ANY = 3


class RemoveWatches(NamedTuple):
    """Remove one's own watches of a path; ``Op.CHECK_WATCHES`` only asks whether there are any."""

    path: str
    kind: int
    op: Op = Op.REMOVE_WATCHES


class Auth(NamedTuple):
    """Say who one is."""

    scheme: str
    data: bytes | None
    op: Op = Op.AUTH


class Ping(NamedTuple):
    """Keep the session."""

    op: Op = Op.PING


class Close(NamedTuple):
    """End the session."""

    op: Op = Op.CLOSE_SESSION


class Unreadable(NamedTuple):
    """A request whose body does not fit its operation."""

    op: Op


class Unknown(NamedTuple):
    """An operation that this server does not have."""

    code: int


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
    | Check
    | Multi
    | SetWatches
    | RemoveWatches
    | AddWatch
    | GetEphemerals
    | CountBelow
    | WhoAmI
    | Reconfig
    | Auth
    | Ping
    | Close
    | Unreadable
    | Unknown
)


class Created(NamedTuple):
    """A node's path, and its `Stat` if that was asked for."""

    path: str
    stat: Stat | None = None


class Data(NamedTuple):
    """A node's data."""

    data: bytes | None
    stat: Stat


class Children(NamedTuple):
    """The names below a node, and its `Stat` if that was asked for."""

    names: tuple[str, ...]
    stat: Stat | None = None


class Acls(NamedTuple):
    """A node's ACL."""

    acl: tuple[Acl, ...]
    stat: Stat


class Synced(NamedTuple):
    """The path that was asked for."""

    path: str


class Number(NamedTuple):
    """A number."""

    value: int


class Clients(NamedTuple):
    """As whom a client is known: scheme and name."""

    clients: tuple[tuple[str, str], ...]


class Done(NamedTuple):
    """The result of one part of a transaction that was carried out."""

    op: Op
    body: Created | Stat | None = None


class NotDone(NamedTuple):
    """Why one part was not carried out; ``OK`` for those before the one that failed."""

    code: int


class Results(NamedTuple):
    """The results of a transaction, one a part."""

    parts: tuple[Done | NotDone, ...]


Body: TypeAlias = (
    Created | Stat | Data | Children | Acls | Synced | Results | Number | Clients | None
)


class Connected(NamedTuple):
    """The answer to `Connect`; a session of 0: the one asked for is over."""

    timeout: int
    session: int
    password: bytes
    read_only: bool
    old: bool


class Answer(NamedTuple):
    """The answer to the request ``xid``; ``zxid`` is the last transaction of the server."""

    xid: int
    zxid: int
    code: int
    body: Body


class Event(NamedTuple):
    """A watch has fired."""

    kind: EventKind
    path: str


class HangUp(NamedTuple):
    """The server closes the connection, after what it has sent before."""


Message: TypeAlias = Connected | Answer | Event | HangUp
