"""Why a grant ended without a release, and the argument of a lost callback."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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


STOPPED, REFUSED = "the client was stopped", "the client's credentials were refused"
"""The two cases of ``CLIENT_CLOSED``."""


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
    ``CLOCK_BOOTTIME`` if the system has it, else ``time.monotonic()``. ``str(loss)`` is a sentence
    for people: the lock's path, when the lock was lost (UTC), the token and the reason.
    """

    reason: LossReason
    grant: LostGrant
    noticed: float
    lease_end: float
    _made: float = field(
        # Not time(), which tests freeze.
        default_factory=lambda: time.clock_gettime(time.CLOCK_REALTIME),
        init=False,
        repr=False,
        compare=False,
    )
    _refused: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def _why(self) -> str:
        if self.reason is not LossReason.CLIENT_CLOSED:
            return str(self.reason.value)
        return REFUSED if self._refused else STOPPED

    @property
    def _todo(self) -> str:
        over = self.reason in {LossReason.CLIENT_CLOSED, LossReason.FORKED}
        return "connect first, then acquire again" if over else "acquire again"

    @property
    def _since(self) -> str:
        """When the lock was lost, by the wall clock: when its lease ended, if that was before."""
        late = self.noticed - self.lease_end
        wall = self._made - late if 0 < late < math.inf else self._made
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall))

    def __str__(self) -> str:
        return (
            f"{self.grant.lock_path}: lock lost at {self._since}, token {self.grant.token}: "
            f"{self._why}; stop the guarded work and {self._todo}"
        )


LostCallback: TypeAlias = Callable[[Loss], object]
