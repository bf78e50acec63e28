"""The metrics of this process: one table for both adapters, and what each event counts for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from zklock._ground.loss import LossReason
from zklock._telemetry.events import (
    EpochChanged,
    Event,
    Granted,
    HeartbeatAnswered,
    HeartbeatLate,
    HeartbeatSent,
    LeaderChanged,
    LockEvent,
    Lost,
    Queued,
    Released,
    SessionEnded,
    ShardMoved,
    StaleTokenRefused,
    Suspended,
    Withdrawn,
)
from zklock.telemetry._state import Label, State

_PATH = {"path": "lock.name"}
_LOCK = {**_PATH, "kind": "lock.kind"}
_OUTCOME = {**_LOCK, "reason": "lock.outcome"}
_LOSS = {**_LOCK, "reason": "lock.loss.reason"}
_ENDED = {"reason": "lock.session.end.reason"}
_RESOURCE = {"resource": "lock.resource"}
_POOL = {"pool": "lock.name"}
_MOVE = {**_POOL, "direction": "lock.shard.direction"}
_STATE = {"state": "lock.session.state"}

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_PLACES = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True, eq=False)
class Metric:
    """A counter, or a histogram with ``buckets``.

    ``name``: for Prometheus. ``otel``, ``unit``: for OpenTelemetry. ``labels``: OpenTelemetry's
    attributes, by the names of Prometheus' labels.
    """

    name: str
    otel: str
    unit: str
    text: str
    labels: Mapping[str, str]
    buckets: tuple[float, ...] | None = None


WAIT = Metric("wait_seconds", "wait.duration", "s", "Acquire to grant.", _LOCK, _LONG)
HOLD = Metric("hold_seconds", "hold.duration", "s", "Grant to its end.", _LOCK, _LONG)
AHEAD = Metric(
    "queue_ahead", "queue.ahead", "{contender}", "Contenders before a new one.", _LOCK, _PLACES
)
GAP = Metric(
    "handover_gap_seconds",
    "handover.gap",
    "s",
    "News that the contender before was gone, to grant.",
    _LOCK,
    _SHORT,
)
WITHDRAWN = Metric("withdrawn", "withdrawn", "{acquire}", "Acquires without a grant.", _OUTCOME)
LOSSES = Metric("losses", "losses", "{grant}", "Grants lost.", _LOSS)
SUSPENSIONS = Metric(
    "suspensions", "suspensions", "{grant}", "Grants whose connection was lost.", _LOCK
)
EPOCHS = Metric(
    "epoch_changes", "epoch.changes", "{lock}", "Locks whose znode was made anew.", _PATH
)
HEARTBEAT = Metric(
    "heartbeat_seconds", "heartbeat.duration", "s", "Until a heartbeat's answer.", {}, _SHORT
)
SENT = Metric("heartbeats", "heartbeat.sent", "{heartbeat}", "Heartbeats sent.", {})
LATE = Metric("heartbeats_late", "heartbeat.late", "{time}", "Times that answers became late.", {})
ENDED = Metric("sessions_ended", "sessions.ended", "{session}", "Sessions that are over.", _ENDED)
STALE = Metric(
    "stale_tokens_refused", "stale_tokens.refused", "{token}", "Near misses in guards.", _RESOURCE
)
MOVES = Metric("shard_moves", "shard.moves", "{shard}", "Shards taken, given up.", _MOVE)
LEADERS = Metric(
    "leader_changes", "leader.changes", "{change}", "Changes that observers heard of.", _PATH
)

METRICS = (
    *(WAIT, HOLD, AHEAD, GAP, WITHDRAWN, LOSSES, SUSPENSIONS, EPOCHS),
    *(HEARTBEAT, SENT, LATE, ENDED, STALE, MOVES, LEADERS),
)


@dataclass(frozen=True, eq=False)
class Gauge:
    """What is so now. ``read``: its numbers, by the values of its labels.

    ``mode``: how Prometheus joins the processes that share a registry. ``absent``: what a process
    writes there that has no number.
    """

    name: str
    otel: str
    unit: str
    text: str
    labels: Mapping[str, str]
    read: Callable[[State], Mapping[tuple[str, ...], float]]
    mode: Literal["livesum", "livemin", "livemax"] = "livesum"
    absent: float = 0.0


GAUGES = (
    Gauge("holders", "holders", "{grant}", "Grants held by this process.", _LOCK, State.holders),
    Gauge("sessions", "sessions", "{session}", "Sessions of this process.", _STATE, State.sessions),
    Gauge("shards", "shards", "{shard}", "Shards owned by this process.", _POOL, State.shards),
    Gauge(
        "lease_low_water_ratio",
        "lease.low_water",
        "1",
        "Least lease of the last 5 minutes with a grant, as a part of the session timeout.",
        {},
        State.low_water,
        "livemin",
        math.inf,
    ),
    Gauge(
        "proof_age_seconds",
        "proof.age",
        "s",
        "Age of the newest proof, of the session with grants that waits longest.",
        {},
        State.proof_age,
        "livemax",
    ),
)


def word(reason: LossReason) -> str:
    return reason.name.lower()


Counted: TypeAlias = Iterator[tuple[Metric, tuple[str, ...], float]]
"""Metrics, each with the values of its labels, and a number."""


def counted(event: Event, label: Label) -> Counted:
    """Yield what an event counts for."""
    match event:
        case LockEvent():
            yield from _of_a_lock(event, (label(event.path), event.kind))
        case HeartbeatSent():
            yield SENT, (), 1
        case HeartbeatAnswered():
            yield HEARTBEAT, (), event.took
        case HeartbeatLate():
            yield LATE, (), 1
        case SessionEnded():
            yield ENDED, (word(event.reason),), 1
        case EpochChanged():
            yield EPOCHS, (label(event.path),), 1
        case StaleTokenRefused():
            yield STALE, (label(event.resource),), 1
        case ShardMoved():
            yield MOVES, (label(event.path), "taken" if event.owned else "given_up"), 1
        case LeaderChanged():
            yield LEADERS, (label(event.path),), 1


def _of_a_lock(event: LockEvent, lock: tuple[str, str]) -> Counted:
    match event:
        case Queued():
            yield AHEAD, lock, event.ahead
        case Granted():
            if event.waited is not None:
                yield WAIT, lock, event.waited
            if event.gap is not None:
                yield GAP, lock, event.gap
        case Suspended():
            yield SUSPENSIONS, lock, 1
        case Withdrawn():
            yield WITHDRAWN, (*lock, event.error or "timeout"), 1
        case Released() | Lost():
            if event.lasted is not None:
                yield HOLD, lock, event.lasted
            if isinstance(event, Lost):
                yield LOSSES, (*lock, word(event.reason)), 1
