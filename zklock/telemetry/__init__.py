"""Events of the locks of this process, for metrics, traces and logs.

``subscribe(hook)`` has ``hook(event)`` called for every event: a frozen dataclass of this module.
See docs/telemetry.md.
"""

from __future__ import annotations

from zklock._core.callbacks import check_callback
from zklock._ground import threads
from zklock._ground.numbers import check_int
from zklock._ground.records import log_fields
from zklock._telemetry import subscriptions as _telemetry
from zklock._telemetry.events import (
    Connected,
    Disconnected,
    EpochChanged,
    Event,
    Granted,
    GrantEvent,
    HeartbeatAnswered,
    HeartbeatLate,
    HeartbeatSent,
    LeaderChanged,
    LockEvent,
    Lost,
    Proof,
    Queued,
    Released,
    SessionEnded,
    SessionEvent,
    ShardMoved,
    StaleTokenRefused,
    Suspended,
    Withdrawn,
)
from zklock._telemetry.subscriptions import Hook, Subscription
from zklock.errors import ZkLockError

__all__ = [
    "Connected",
    "Disconnected",
    "EpochChanged",
    "Event",
    "GrantEvent",
    "Granted",
    "HeartbeatAnswered",
    "HeartbeatLate",
    "HeartbeatSent",
    "LeaderChanged",
    "LockEvent",
    "Lost",
    "Proof",
    "Queued",
    "Released",
    "SessionEnded",
    "SessionEvent",
    "ShardMoved",
    "StaleTokenRefused",
    "Subscription",
    "Suspended",
    "Withdrawn",
    "log_fields",
    "subscribe",
]


def subscribe(hook: Hook, *, most: int = 10_000) -> Subscription:
    """Call ``hook(event)`` for every event of this process, until ``close()``.

    The hook runs on a daemon thread of its own, one event after the other, in the order in which
    they happened on each thread. A slow hook delays only its own events: at most ``most`` of them
    wait, and more are dropped and counted (``dropped``). An exception in it is logged, at most once
    a minute. Events that still wait when the process ends are not delivered: call ``flush()``
    before. A forked child keeps the same hooks, on its own threads, for its own events.

    Raises ``TypeError`` for what cannot be called, and for a coroutine function; ``ZkLockError``
    if no thread can be started.

    *Not guaranteed:* that every event is delivered. An interrupt (``KeyboardInterrupt``) at that
    very moment may lose one.
    """
    check_callback(False, "a telemetry hook", hook)
    check_int("most", most, 1)
    try:
        return _telemetry.subscribe(hook, most)
    except threads.NoThread as error:
        raise ZkLockError(
            f"no telemetry: its thread cannot be started ({error}): raise the limit of processes "
            "or memory, or subscribe before the interpreter shuts down"
        ) from error
