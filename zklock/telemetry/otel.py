"""Spans and metrics of the locks of this process, by OpenTelemetry's API.

``pip install ".[otel]"`` from a checkout brings the API; the SDK and its exporters are yours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Status, StatusCode, TracerProvider

from zklock._ground.addresses import session_text
from zklock._ground.clock import clock
from zklock._ground.happened import (
    EpochChanged,
    Event,
    Granted,
    GrantEvent,
    HeartbeatAnswered,
    HeartbeatLate,
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
from zklock._version import __version__
from zklock.telemetry import subscribe
from zklock.telemetry._state import State, itself, labeller, written

__all__ = ["LockInstrumentor"]

Attributes: TypeAlias = dict[str, str]


class LockInstrumentor:
    """Records spans and metrics of all locks, elections, pools and sessions of this process.

    ``meter_provider``, ``tracer_provider``: by default the global ones. ``label``: makes
    ``lock.name`` of a path for metrics, and ``lock.resource`` of a guard's resource, by default
    that itself; spans have the path and the resource.

    Make it before the first lock. docs/telemetry.md lists the names. A token is an attribute of
    spans, and never of metrics.

    *Not guaranteed:* a parent. Spans are made when they have ended, on one of zklock's own threads:
    each is a trace of its own.
    """

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
        *,
        label: Callable[[str], str] = itself,
    ) -> None:
        meter = metrics.get_meter("zklock", __version__, meter_provider)
        self._tracer = trace.get_tracer("zklock", __version__, tracer_provider)
        self._label = labeller(label)
        self._state = State(self._label)
        self._open = True
        self._wait = meter.create_histogram("lock.client.wait.duration", "s", "Acquire to grant")
        self._hold = meter.create_histogram("lock.client.hold.duration", "s", "Grant to its end")
        self._ahead = meter.create_histogram(
            "lock.client.queue.ahead", "{contender}", "Contenders before a new one"
        )
        self._gap = meter.create_histogram(
            "lock.client.handover.gap", "s", "News that the one before was gone, to grant"
        )
        self._beat = meter.create_histogram(
            "lock.client.heartbeat.duration", "s", "Until a heartbeat's answer"
        )
        self._late = meter.create_counter(
            "lock.client.heartbeat.late", "{time}", "Times that answers became late"
        )
        self._withdrawn = meter.create_counter(
            "lock.client.withdrawn", "{acquire}", "Acquires without a grant"
        )
        self._losses = meter.create_counter("lock.client.losses", "{grant}", "Grants lost")
        self._suspensions = meter.create_counter(
            "lock.client.suspensions", "{grant}", "Grants whose connection was lost"
        )
        self._epochs = meter.create_counter(
            "lock.client.epoch.changes", "{lock}", "Locks whose znode was made anew"
        )
        self._ended = meter.create_counter("lock.client.sessions.ended", "{session}", "Ended")
        self._stale = meter.create_counter(
            "lock.client.stale_tokens.refused", "{token}", "Near misses that guards refused"
        )
        self._moves = meter.create_counter("lock.client.shard.moves", "{shard}", "Taken, given up")
        self._leaders = meter.create_counter(
            "lock.client.leader.changes", "{change}", "Changes that observers heard of"
        )
        meter.create_observable_gauge(
            "lock.client.holders", [self._holders], "{grant}", "Grants held by this process"
        )
        meter.create_observable_gauge(
            "lock.client.sessions", [self._sessions], "{session}", "Sessions of this process"
        )
        meter.create_observable_gauge(
            "lock.client.shards", [self._shards], "{shard}", "Shards owned by this process"
        )
        meter.create_observable_gauge(
            "lock.client.lease.low_water",
            [self._low_water],
            "1",
            "Least lease of the last 5 minutes, as a part of the session timeout",
        )
        meter.create_observable_gauge(
            "lock.client.proof.age", [self._proof_age], "s", "Age of the newest proof"
        )
        self._subscription = subscribe(self._note)

    def close(self) -> None:
        """Record no more."""
        self._open = False
        self._subscription.close()

    def flush(self, timeout: float = 1.0) -> bool:
        """Wait until all events so far are recorded, at most ``timeout`` seconds."""
        return self._subscription.flush(timeout)

    def _note(self, event: Event) -> None:
        self._state.note(event)
        if isinstance(event, LockEvent):
            self._note_lock(event, self._lock(event.path, event.kind))
            return
        match event:
            case HeartbeatAnswered():
                self._beat.record(event.took)
            case HeartbeatLate():
                self._late.add(1)
            case SessionEnded():
                self._ended.add(1, {"lock.session.end.reason": event.reason.name.lower()})
            case EpochChanged():
                self._epochs.add(1, self._lock(event.path))
            case StaleTokenRefused():
                self._stale.add(1, {"lock.resource": self._label(event.resource)})
                self._refusal(event)
            case ShardMoved():
                moved = {"lock.shard.direction": "taken" if event.owned else "given_up"}
                self._moves.add(1, self._lock(event.path) | moved)
            case LeaderChanged():
                self._leaders.add(1, self._lock(event.path))

    def _note_lock(self, event: LockEvent, lock: Attributes) -> None:
        match event:
            case Queued():
                self._ahead.record(event.ahead, lock)
            case Granted():
                if event.waited is not None:
                    self._wait.record(event.waited, lock)
                    self._span("lock.acquire", event, event.waited, {"lock.outcome": "granted"})
                if event.gap is not None:
                    self._gap.record(event.gap, lock)
            case Suspended():
                self._suspensions.add(1, lock)
            case Withdrawn():
                why = {"lock.outcome": event.error or "timeout"}
                self._withdrawn.add(1, lock | why)
                self._span("lock.acquire", event, event.waited, why)
            case Released() | Lost():
                self._note_end(event, lock)

    def _note_end(self, event: Released | Lost, lock: Attributes) -> None:
        outcome = {"lock.outcome": "released"}
        problem = None
        if isinstance(event, Lost):
            why = {"lock.loss.reason": event.reason.name.lower()}
            self._losses.add(1, lock | why)
            outcome, problem = {"lock.outcome": "lost"} | why, event.reason.value
        if event.lasted is not None:
            self._hold.record(event.lasted, lock)
            self._span("lock.hold", event, event.lasted, outcome, problem)

    def _span(
        self,
        name: str,
        event: LockEvent,
        lasted: float,
        more: Attributes,
        problem: str | None = None,
    ) -> None:
        """Record a span that has ended with the event."""
        end = _wall_clock(event.at)
        span = self._tracer.start_span(
            name, attributes=_described(event) | more, start_time=end - int(lasted * 1e9)
        )
        if problem is not None:
            span.set_status(Status(StatusCode.ERROR, problem))
        span.end(end)

    def _refusal(self, event: StaleTokenRefused) -> None:
        at = _wall_clock(event.at)
        attributes = {"lock.resource": written(event.resource), "lock.token": str(event.token)}
        if event.highest is not None:
            attributes["lock.token.highest"] = str(event.highest)
        span = self._tracer.start_span("lock.token.refused", attributes=attributes, start_time=at)
        span.set_status(Status(StatusCode.ERROR, "stale token"))
        span.end(at)

    def _lock(self, path: str, kind: str | None = None) -> Attributes:
        return _named(self._label(path), kind)

    # What the SDK asks for, on its threads.

    def _holders(self, options: CallbackOptions) -> Iterable[Observation]:
        counts = self._state.holders() if self._open else {}
        for (name, kind), count in counts.items():
            yield Observation(count, _named(name, kind))

    def _sessions(self, options: CallbackOptions) -> Iterable[Observation]:
        counts = self._state.sessions() if self._open else {}
        for state, count in counts.items():
            yield Observation(count, {"lock.session.state": state})

    def _shards(self, options: CallbackOptions) -> Iterable[Observation]:
        counts = self._state.shards() if self._open else {}
        for name, count in counts.items():
            yield Observation(count, _named(name))

    def _low_water(self, options: CallbackOptions) -> Iterable[Observation]:
        return self._single(self._state.low_water())

    def _proof_age(self, options: CallbackOptions) -> Iterable[Observation]:
        return self._single(self._state.proof_age())

    def _single(self, number: float | None) -> Iterable[Observation]:
        return [Observation(number)] if number is not None and self._open else []


def _named(name: str, kind: str | None = None) -> Attributes:
    attributes = {"lock.system": "zookeeper", "lock.name": name}
    return attributes if kind is None else attributes | {"lock.kind": kind}


def _described(event: LockEvent) -> Attributes:
    attributes = {
        "lock.system": "zookeeper",
        "lock.name": event.path,
        "lock.kind": event.kind,
        "lock.owner": event.identity,
    }
    if isinstance(event, GrantEvent):
        attributes |= {
            "lock.token": str(event.token),
            "lock.session.id": session_text(event.session_id),
        }
    return attributes


def _wall_clock(at: float) -> int:
    """Return a time of the clock since boot as nanoseconds of the wall clock."""
    return time.time_ns() - int((clock() - at) * 1e9)
