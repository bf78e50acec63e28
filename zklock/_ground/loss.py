"""Why a grant ended without a release, and the argument of a lost callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from zklock.token import FencingToken


class LostGrant(Protocol):
    """The grant that a loss is about."""

    @property
    def token(self) -> FencingToken:
        """Its fencing token."""

    @property
    def tokens(self) -> tuple[FencingToken, ...]:
        """One token for each permit of a semaphore, in order; one token for any other lock."""

    @property
    def path(self) -> str:
        """The full path of the contender's znode."""

    @property
    def lock_path(self) -> str:
        """The path of the lock."""

    @property
    def session_id(self) -> int:
        """The ZooKeeper session."""

    @property
    def identity(self) -> str:
        """The holder's identity, as stored in the znode."""

    @property
    def held(self) -> bool:
        """``False``: it is lost."""

    @property
    def released(self) -> bool:
        """``False``: it is lost."""

    def check(self) -> None:
        """Raise ``LockLost``."""


class LossReason(Enum):
    """Why a grant ended without a release."""

    SESSION_EXPIRED = "ZooKeeper ended or replaced the session"
    LEASE_LAPSED = "the session could not be proven alive in time"
    NODE_DELETED = "the contender's node was deleted by somebody else"
    CLIENT_CLOSED = "the client was stopped, or its credentials were refused"
    FORKED = "this process was forked from the one that holds the lock"


@dataclass(frozen=True, slots=True)
class Loss:
    """The argument of a lost callback.

    ``noticed`` and ``lease_end`` are seconds of the clock that counts since boot:
    ``CLOCK_BOOTTIME`` if the system has it, else ``time.monotonic()``.
    """

    reason: LossReason
    grant: LostGrant
    noticed: float
    lease_end: float

    def __str__(self) -> str:
        return (
            f"{self.grant.lock_path}: lock lost, token {self.grant.token}: {self.reason.value}; "
            "stop the guarded work and acquire again"
        )


LostCallback: TypeAlias = Callable[[Loss], object]
