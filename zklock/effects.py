"""What a recipe may ask for, and what it gets back.

A recipe is a generator. It yields one of

- a *flight*: a tuple of requests that are sent back to back on one session; the answer is the
  tuple of their results, in the same order. Requests of one session take effect in the order
  sent. A flight waits unsent while the client is disconnected.
- ``Claim``: take the grant, if the lease is live; the answer is the grant.
- ``Wait``: sleep until something happens to one of the watched nodes; the answer is what.
- ``Pause``: sleep for some seconds.

It may be thrown ``GiveUp`` at any of them, before it is carried out, and ``SessionReplaced``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from zklock.names import Queue
from zklock.token import FencingToken


@dataclass(frozen=True, slots=True)
class Create:
    """Create an ephemeral sequential node → ``Node``. Reply lost: it may or may not exist."""

    prefix: str
    data: bytes


@dataclass(frozen=True, slots=True)
class List:
    """List the children and the parent's czxid → ``Listing``."""

    path: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Read a node and watch it → ``Node``. A missing node leaves no watch behind.

    ``DENIED`` leaves none either: ZooKeeper (from 3.8.4 and 3.9.2 on) does not tell of the deletion
    of a node to those who may not read it.
    """

    path: str


@dataclass(frozen=True, slots=True)
class WatchList:
    """As ``List``, and watch for children that come and go → ``Listing``."""

    path: str


@dataclass(frozen=True, slots=True)
class WatchExists:
    """As ``Exists``, and watch the node; a missing one, for when it is created."""

    path: str


@dataclass(frozen=True, slots=True)
class Read:
    """Read a node → ``Node``."""

    path: str


@dataclass(frozen=True, slots=True)
class Exists:
    """Look whether a node exists, and whose it is → ``Node`` without its data."""

    path: str


@dataclass(frozen=True, slots=True)
class Check:
    """Have a quorum confirm that a node exists → ``None``.

    A write that changes nothing. What a server answers to ``sync`` is its leader's word alone,
    and a leader that was cut off believes for a while longer that it leads.
    """

    path: str


@dataclass(frozen=True, slots=True)
class Write:
    """Write a node's data, if it has this version (-1: any) → ``None``."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Mark:
    """Write the parent's data while the child exists, or else nothing → ``None``. Repeatable."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Sync:
    """Catch up with the leader → ``None``. What is read after it is at least that fresh."""

    path: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node → ``None``. Reply lost: ask again; ``MISSING`` then means it is done."""

    path: str


@dataclass(frozen=True, slots=True)
class Depart:
    """Delete a node and write its parent's data, both or neither → ``None``. See ``Delete``."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class HandOver:
    """Delete nodes, and ``path`` last, if ``successor`` exists; all or nothing → ``None``.

    ``MISSING``: one of them, or the successor, is not there. Reply lost: look.
    """

    path: str
    others: tuple[str, ...]
    successor: str


@dataclass(frozen=True, slots=True)
class MakePath:
    """Create a persistent node and its ancestors where missing → ``None``. Repeatable."""

    path: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Become the holder → the grant.

    ``None`` means that the lease was not live when it was asked for, and is now: look again.
    ``release`` makes the recipe that gives the grant back. ``others`` are nodes that the grant
    stands on, too, with their tokens, which are lower than ``token``. ``abandoned``: whether the
    grant before this one ended without a release, if that is known.
    """

    path: str
    token: FencingToken
    release: Callable[[], Recipe[None]]
    others: tuple[tuple[str, FencingToken], ...] = ()
    abandoned: bool | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep until something happens to one of the watched nodes → ``Event``."""

    blocker: str
    own: str | None
    beside: str | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Sleep for so many seconds → ``None``."""

    seconds: float


class Event(Enum):
    """What ended a ``Wait``."""

    BLOCKER_GONE = "the blocker's node was deleted"
    HOLDER_GONE = "the blocker's node was deleted, and it had been granted on this session"
    LETS_IN = "the blocker has become a reader, too"
    OWN_GONE = "the contender's own node was deleted"
    UNWATCHED = "a watch was used up or lost: watch again"


class Failure(Enum):
    """Why a request failed."""

    MISSING = "no such node"
    NOT_EMPTY = "the node has children"
    DENIED = "not permitted"
    CHANGED = "the node has been written meanwhile"
    DROPPED = "the connection broke before the answer: the outcome is unknown"
    OTHER = "ZooKeeper refused the request"


@dataclass(frozen=True, slots=True)
class Failed:
    """The result of a request that failed."""

    why: Failure
    error: Exception


@dataclass(frozen=True)
class Listing:
    """Children, with the czxid of the parent, the epoch of the tokens. Shared by those who look.

    ``changes`` counts the children that have ever come or gone.
    """

    names: list[str]
    epoch: int
    changes: int = 0

    @cached_property
    def queue(self) -> Queue:
        """The contenders among the children."""
        return Queue(self.names)


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its path, data, and owner; ``mine`` if the present session owns it.

    ``version`` counts the writes of its data.
    """

    path: str
    data: bytes
    owner: int
    mine: bool
    version: int = 0


class GiveUp(Exception):
    """Thrown into a recipe that is to withdraw: its time is over, or it was cancelled."""


class SessionReplaced(Exception):
    """Thrown into a recipe whose session is gone, and with it every node of it.

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
    | Mark
    | Sync
    | Delete
    | Depart
    | HandOver
    | MakePath
)
Flight: TypeAlias = tuple[Request, ...]
T = TypeVar("T")
Recipe: TypeAlias = Generator[Flight | Claim | Wait | Pause, Any, T]
