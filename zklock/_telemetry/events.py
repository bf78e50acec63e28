"""What telemetry is told: one frozen class for each kind of event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zklock._ground.loss import LossReason
from zklock.token import FencingToken


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have: ``at``, the time in seconds of the clock that counts since boot.

    It is the clock of ``Loss``: ``CLOCK_BOOTTIME`` if the system has it, else ``time.monotonic()``.
    """

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LockEvent(Event):
    """An event of one lock, semaphore, election or shard of a pool.

    ``path``: its path. ``kind``: ``exclusive``, ``read``, ``write``, ``semaphore``, ``election`` or
    ``shard``. ``identity``: of the contender or holder, in this process.
    """

    path: str
    kind: str
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued(LockEvent):
    """A contender has its place in the queue; again if it had to queue anew.

    ``node``: its znode. ``ahead``: how many contenders stand before it, holders included.
    """

    node: str
    ahead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn(LockEvent):
    """An acquire has ended without a grant.

    ``waited``: seconds since it began. ``error``: the name of the exception's class if it was
    cancelled or failed; ``None`` if the lock was not free, or not in time.
    """

    waited: float
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantEvent(LockEvent):
    """An event of one grant. ``node`` and ``session_id`` identify the grant.

    ``token``: its fencing token; of a semaphore's grant the highest. Do not make it a label of a
    metric: every grant has another.
    """

    token: FencingToken
    node: str
    session_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted(GrantEvent):
    """A contender has become the holder.

    ``permits``: how many tokens the grant has, which is 1 except for semaphores. ``waited``:
    seconds since the acquire began. ``gap``: seconds from the news that the contender before it was
    gone to this grant; ``None`` if no such news came: nobody was before it, or the connection was
    lost meanwhile. It is this process's estimate of the time in which nobody held the lock. The
    time that this news takes from ZooKeeper is not in it.

    ``waited`` is ``None`` if the acquire began before the subscription. ``kept``: see
    ``Grant.kept``.
    """

    permits: int
    waited: float | None
    gap: float | None
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended(GrantEvent):
    """The connection is lost, and the lease still runs. ``remaining``: seconds of lease left."""

    remaining: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(GrantEvent):
    """The holder has given the grant back: once for each grant.

    ``lasted``: seconds since the grant, ``None`` if that was before the subscription.
    """

    lasted: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(GrantEvent):
    """The grant is lost: once for each grant.

    ``reason`` and ``lease_end`` are those of the ``Loss``, and ``at`` is when it was noticed.
    ``lasted``: as in ``Released``.
    """

    reason: LossReason
    lease_end: float
    lasted: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochChanged(Event):
    """The first grant of a lock whose znode was made anew: its tokens have a greater epoch."""

    path: str
    before: int
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvent(Event):
    """An event of one ZooKeeper session of this process."""

    session_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected(SessionEvent):
    """A session is connected, for the first time or again. ``timeout``: its timeout in seconds."""

    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected(SessionEvent):
    """A session has lost its connection. ``remaining``: seconds of lease left.

    ``grants``: how many grants were held on it.
    """

    remaining: float
    grants: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded(SessionEvent):
    """A session is over: ZooKeeper ended it, or the client was stopped."""

    reason: LossReason


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSent(SessionEvent):
    """A heartbeat was sent. Its answer, if one comes, is another event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswered(SessionEvent):
    """A heartbeat was answered, ``took`` seconds after it was sent."""

    took: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatLate(SessionEvent):
    """Answers take longer than ``limit`` seconds: once, until an answer is prompt again."""

    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof(SessionEvent):
    """A quorum has proven that the session was alive, ``age`` seconds ago.

    ``margin``: how many seconds of lease were left when it came, 0 if none. It is how near the
    grants were to being lost. ``lease``: seconds of lease from now on. ``timeout``: the session
    timeout in seconds. ``held``: whether there is a grant that lives on the lease.
    """

    age: float
    margin: float
    lease: float
    timeout: float
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleTokenRefused(Event):
    """A guard in this process has refused a stale token: a near miss.

    ``resource`` is the guard's name for what it protects. ``highest`` is the mark.
    """

    resource: str
    token: FencingToken
    highest: FencingToken | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMoved(Event):
    """A worker of this process owns a shard of the pool at ``path`` from now on, or no longer.

    ``shard``: its number, or its name if it has one.
    """

    path: str
    shard: Any
    identity: str
    token: FencingToken
    owned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChanged(Event):
    """An observer in this process has heard of a change of leader.

    ``leader`` is the identity of the new one, ``None`` if there is none. ``gap``: others may have
    led unseen before it (see ``LeaderChange``).
    """

    path: str
    leader: str | None
    token: FencingToken | None
    gap: bool
