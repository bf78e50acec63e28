"""The requests of a recipe, and the answers to them.

A recipe is a generator. It yields one of

- a *batch*: a tuple of requests that are sent back to back on one session; the answer is the
  sequence of their results, in the same order. Requests of one session take effect in the order
  sent. A batch waits unsent while the client is disconnected.
- ``Claim``: take the grant, if the lease is live; the answer is the grant.
- ``Wait``: sleep until something happens to one of the watched nodes; the answer is a ``Wakeup``.
- ``Pause``: sleep for some seconds.
- ``AbandonCreate``: leave a contender that may still come to the host; the answer is ``None``, at
  once.

Nobody changes a request or a result. (Classes that are frozen take several times as long to make.)

At each of them an exception may be thrown into the recipe. It is ``Cancelled`` (before the request
is carried out), ``SessionReplaced``, or the error that the host raised instead of beginning it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from zklock._ground.cached_property import cached_property
from zklock._ground.copy_error import copy_error
from zklock._recipes.names import Queue
from zklock.token import FencingToken


def backoff(tries: int) -> float:
    """Return the seconds to pause before the next try, after ``tries`` tries that failed."""
    return min(2.0, 0.05 * 2.0 ** min(tries, 16))


@dataclass(slots=True, unsafe_hash=True)
class Create:
    """Create an ephemeral sequential node → ``Node``. Reply lost: it may or may not exist.

    ``asked`` numbers the contenders in the order in which they asked. On one client, creates that
    wait for a missing parent are sent in this order.
    """

    prefix: str
    data: bytes
    asked: int = 0


@dataclass(slots=True, unsafe_hash=True)
class List:
    """List the children and the parent's czxid → ``Listing``."""

    path: str


@dataclass(slots=True, unsafe_hash=True)
class Watch:
    """Read a node and watch it → ``Node``. A missing node leaves no watch behind.

    ``DENIED`` leaves no watch either. A client that may not read a node does not hear of its
    deletion (ZooKeeper 3.8.4, 3.9.2 and later).
    """

    path: str


@dataclass(slots=True, unsafe_hash=True)
class WatchList:
    """Do what ``List`` does, and watch for children that come and go → ``Listing``."""

    path: str


@dataclass(slots=True, unsafe_hash=True)
class WatchExists:
    """Do what ``Exists`` does, and watch the node; a missing node is watched for its creation."""

    path: str


@dataclass(slots=True, unsafe_hash=True)
class Read:
    """Read a node → ``Node``."""

    path: str


@dataclass(slots=True, unsafe_hash=True)
class Exists:
    """Look whether a node exists, and who owns it → ``Node`` without its data."""

    path: str


@dataclass(slots=True, unsafe_hash=True)
class Check:
    """Have a quorum confirm that a node exists, with this version (-1: any version) → ``None``.

    It is a write that changes nothing. ``sync`` is not enough: its answer rests on the leader
    alone, and a leader that was cut off believes for a while longer that it leads.
    """

    path: str
    version: int = -1


@dataclass(slots=True, unsafe_hash=True)
class Write:
    """Write a node's data, if its version is this one (-1: any version) → ``None``."""

    path: str
    data: bytes
    version: int = -1


@dataclass(slots=True, unsafe_hash=True)
class Sync:
    """Catch up with the leader → ``None``. A later read is at least that fresh."""

    path: str


@dataclass(slots=True, unsafe_hash=True)
class Delete:
    """Delete a node, if its version is this one (-1: any version) → ``None``.

    Reply lost: ask again; ``MISSING`` then means it is done.
    """

    path: str
    version: int = -1


Operation: TypeAlias = Delete | Write | Check


@dataclass(slots=True, unsafe_hash=True)
class Transaction:
    """Carry out operations in this order, all or none → ``None``.

    A failure is that of the first operation that was refused. Reply lost: it may or may not be
    done.
    """

    operations: tuple[Operation, ...]


def parent_of(path: str) -> str:
    """Return the path of the parent of a node."""
    return path.rpartition("/")[0]


@dataclass(slots=True, unsafe_hash=True)
class Make:
    """Create a persistent node → ``None``, also if it exists. ``/``: the client's chroot."""

    path: str


@dataclass(slots=True, unsafe_hash=True)
class Claim:
    """Become the holder → the grant.

    ``None``: the lease was not live at the time of the request, and is live now: look again.
    ``release`` makes the recipe that gives the grant back; ``undo``, if there is one, the recipe
    for a grant that nobody has got. ``others`` are more nodes that the grant needs, with their
    tokens, which are lower than ``token``. ``abandoned``: whether the
    grant before this one ended without a release; ``None`` if that is not known. ``alone``: whether
    ``release`` deletes the node, and does nothing else.
    """

    path: str
    token: FencingToken
    release: Callable[[], Recipe[Any]]
    others: tuple[tuple[str, FencingToken], ...] = ()
    abandoned: bool | None = None
    alone: bool = False
    undo: Callable[[], Recipe[Any]] | None = None


@dataclass(slots=True, unsafe_hash=True)
class Wait:
    """Sleep until something happens to one of the watched nodes → ``Wakeup``."""

    blocker: str
    own: str | None
    beside: str | None = None


@dataclass(slots=True, unsafe_hash=True)
class Pause:
    """Sleep for ``seconds`` → ``None``."""

    seconds: float


@dataclass(slots=True, unsafe_hash=True)
class AbandonCreate:
    """Have the host delete the contender with this name, should it be made later → ``None``.

    A create whose reply was lost may be carried out late, even after a look on a new connection
    that began with a sync and did not find it. A server that is cut off from the leader keeps the
    create, and behind it a handshake that the client has given up. When it reaches the leader
    again, the handshake makes it the session's server once more, and the leader may check the owner
    of the create only after that (ZOOKEEPER-710 tells of such a handshake).
    """

    path: str
    uuid: str


class Wakeup(Enum):
    """What ended a ``Wait``."""

    BLOCKER_GONE = "the blocker's node was deleted"
    HOLDER_GONE = "the blocker's node was deleted, and it had been granted on this session"
    LETS_IN = "the blocker has become a reader, too"
    OWN_GONE = "the contender's own node was deleted"
    UNWATCHED = "a watch was used up or lost: watch again"


class Failure(Enum):
    MISSING = "no such node"
    NOT_EMPTY = "the node has children"
    DENIED = "not permitted"
    CHANGED = "the node has changed meanwhile"
    DROPPED = "the connection broke, or ZooKeeper is too busy: the outcome is unknown"
    OTHER = "ZooKeeper refused the request"


@dataclass(slots=True, unsafe_hash=True)
class Failed:
    """The result of a request that failed.

    ``busy``: the connection works, and ZooKeeper asks the client to wait. The recipe gets the
    result after a pause, so a recipe that asks again need not pause itself. ``node``: which of
    several nodes could not be written, if that is known.
    """

    why: Failure
    error: Exception
    busy: bool = False
    node: str | None = None

    def for_another(self) -> Failed:
        """Return the same failure, with an error of its own; see ``copied``."""
        return replace(self, error=copy_error(self.error))


@dataclass
class Listing:
    """Children, and the czxid of the parent: the epoch of the tokens.

    Several attempts may share one listing. ``changes`` counts every child that came or went since
    the parent was made. ``size`` is that of the parent's own data, in bytes.
    """

    names: list[str]
    epoch: int
    changes: int = 0
    size: int = 0

    @cached_property
    def queue(self) -> Queue:
        """Return the contenders among the children."""
        return Queue(self.names)


@dataclass(slots=True, unsafe_hash=True)
class Node:
    """A node: its path, data, and owner; ``mine``: whether the present session owns it.

    ``version`` counts the writes of its data. ``made`` is when it was made, and ``written`` when
    its data were written last, in milliseconds of the leader's clock.
    """

    path: str
    data: bytes
    owner: int
    mine: bool
    version: int = 0
    made: int = 0
    written: int = 0


class Cancelled(Exception):
    """Thrown into a recipe that must withdraw: its time is over, or it was cancelled."""


class SessionReplaced(Exception):
    """Thrown into a recipe whose session is gone; all nodes of that session are gone too.

    ``final`` is the error to raise if no other session will come, else ``None``.
    """

    def __init__(self, final: Exception | None) -> None:
        super().__init__()
        self.final = final


Request: TypeAlias = (
    Create
    | List
    | Watch
    | WatchList
    | WatchExists
    | Read
    | Exists
    | Check
    | Write
    | Sync
    | Delete
    | Transaction
    | Make
)
Batch: TypeAlias = tuple[Request, ...]
T = TypeVar("T")
Recipe: TypeAlias = Generator[Batch | Claim | Wait | Pause | AbandonCreate, Any, T]
