"""Metrics of the locks of this process, for Prometheus. Needs prometheus-client.

``pip install ".[prometheus]"`` from a checkout brings it.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from zklock._ground import threads
from zklock._ground.happened import (
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
from zklock._ground.loss import LossReason
from zklock.telemetry import subscribe
from zklock.telemetry._state import State, itself, labeller

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["LockMetrics"]

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_PLACES = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)

_REFRESH = 1.0
"""Seconds between two looks at what changes with time, in Prometheus' multiprocess mode."""

_HOLDERS = "holders", "Grants that are held by this process.", ("path", "kind")
_SESSIONS = "sessions", "Sessions of this process.", ("state",)
_SHARDS = "shards", "Shards of a pool that workers of this process own.", ("pool",)
_LOW_WATER = (
    "lease_low_water_ratio",
    "The least lease of the last 5 minutes while something was held, as a part of the session "
    "timeout.",
    (),
)
_PROOF_AGE = (
    "proof_age_seconds",
    "The age of the newest proof, of the session with grants that waits longest.",
    (),
)
_DROPPED = "events_dropped", "Events that were not counted, as too many waited.", ()


class LockMetrics(Collector):
    """Metrics of all locks, elections, pools and sessions of this process.

    ``registry``: where to register, by default Prometheus' own. ``label``: makes the label of a
    path, and of the resource of a guard, by default that itself. Each label is a set of time
    series: if the program makes a lock for every job, have ``label`` return the part that stays,
    such as ``/jobs``.

    Make it before the first lock: what was granted before is not counted as held. docs/telemetry.md
    lists the metrics. A token is never a label.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        label: Callable[[str], str] = itself,
    ) -> None:
        self._registry = REGISTRY if registry is None else registry
        self._label = labeller(label)
        self._state = State(self._label)
        self._closed = threading.Event()
        lock = ("path", "kind")
        self._waits = _histogram("wait_seconds", "From the acquire to its grant.", lock, _LONG)
        self._holds = _histogram("hold_seconds", "From a grant to its end.", lock, _LONG)
        self._ahead = _histogram(
            "queue_ahead", "Contenders before a new one, holders included.", lock, _PLACES
        )
        self._gaps = _histogram(
            "handover_gap_seconds",
            "From the news that the contender before was gone to the grant.",
            lock,
            _SHORT,
        )
        self._withdrawn = _counter(
            "withdrawn", "Acquires that ended without a grant.", (*lock, "reason")
        )
        self._losses = _counter("losses", "Grants that were lost.", (*lock, "reason"))
        self._suspensions = _counter(
            "suspensions", "Grants whose connection was lost while the lease ran.", lock
        )
        self._epochs = _counter("epoch_changes", "Locks whose znode was made anew.", ("path",))
        self._beats = _histogram("heartbeat_seconds", "Until a heartbeat's answer.", (), _SHORT)
        self._sent = _counter("heartbeats", "Heartbeats that were sent.", ())
        self._late = _counter("heartbeats_late", "Times that answers became late.", ())
        self._ended = _counter("sessions_ended", "Sessions that are over.", ("reason",))
        self._stale = _counter(
            "stale_tokens_refused", "Near misses: stale tokens that guards refused.", ("resource",)
        )
        self._moves = _counter("shard_moves", "Shards taken and given up.", ("pool", "direction"))
        self._leaders = _counter(
            "leader_changes", "Changes of leader that observers heard of.", ("path",)
        )
        for reason in LossReason:
            self._ended.labels(_word(reason))
        self._parts: tuple[Counter | Histogram, ...] = (
            self._waits,
            self._holds,
            self._ahead,
            self._gaps,
            self._withdrawn,
            self._losses,
            self._suspensions,
            self._epochs,
            self._beats,
            self._sent,
            self._late,
            self._ended,
            self._stale,
            self._moves,
            self._leaders,
        )
        shares = {"PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"} & os.environ.keys()
        self._shared = _Shared(self) if shares else None
        # First: a scrape may come as soon as it is registered.
        self._subscription = subscribe(self._note)
        try:
            self._registry.register(self)
        except BaseException:
            self._subscription.close()
            raise

    def close(self) -> None:
        """Count no more, and leave the registry. Repeatable."""
        self._closed.set()
        self._subscription.close()
        with contextlib.suppress(KeyError):  # it has left already
            self._registry.unregister(self)

    def flush(self, timeout: float = 1.0) -> bool:
        """Wait until all events so far are counted, at most ``timeout`` seconds."""
        return self._subscription.flush(timeout)

    def describe(self) -> Iterable[Metric]:
        """Return the names of all metrics."""
        return self._collect(dropped=0)

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, for a scrape."""
        return self._collect(self._subscription.dropped)

    def _collect(self, dropped: int) -> Iterator[Metric]:
        for part in self._parts:
            yield from part.collect()
        holders = _gauge(*_HOLDERS)
        for labels, count in self._state.holders().items():
            holders.add_metric(labels, count)
        yield holders
        sessions = _gauge(*_SESSIONS)
        for state, count in self._state.sessions().items():
            sessions.add_metric([state], count)
        yield sessions
        shards = _gauge(*_SHARDS)
        for pool, count in self._state.shards().items():
            shards.add_metric([pool], count)
        yield shards
        for what, number in (
            (_LOW_WATER, self._state.low_water()),
            (_PROOF_AGE, self._state.proof_age()),
        ):
            gauge = _gauge(*what)
            if number is not None:
                gauge.add_metric([], number)
            yield gauge
        name, text, _ = _DROPPED
        yield CounterMetricFamily(f"zklock_client_{name}", text, value=dropped)

    def _note(self, event: Event) -> None:
        self._state.note(event)
        self._count(event)
        if self._shared is not None:
            self._shared.refresh()

    def _count(self, event: Event) -> None:
        if isinstance(event, LockEvent):
            self._note_lock(event, (self._label(event.path), event.kind))
            return
        match event:
            case HeartbeatSent():
                self._sent.inc()
            case HeartbeatAnswered():
                self._beats.observe(event.took)
            case HeartbeatLate():
                self._late.inc()
            case SessionEnded():
                self._ended.labels(_word(event.reason)).inc()
            case EpochChanged():
                self._epochs.labels(self._label(event.path)).inc()
            case StaleTokenRefused():
                self._stale.labels(self._label(event.resource)).inc()
            case ShardMoved():
                direction = "taken" if event.owned else "given_up"
                self._moves.labels(self._label(event.path), direction).inc()
            case LeaderChanged():
                self._leaders.labels(self._label(event.path)).inc()

    def _note_lock(self, event: LockEvent, lock: tuple[str, str]) -> None:
        match event:
            case Queued():
                self._ahead.labels(*lock).observe(event.ahead)
                for reason in LossReason:  # there from the start: so a first loss is an increase
                    self._losses.labels(*lock, _word(reason))
            case Granted():
                if event.waited is not None:
                    self._waits.labels(*lock).observe(event.waited)
                if event.gap is not None:
                    self._gaps.labels(*lock).observe(event.gap)
            case Released() | Lost():
                if event.lasted is not None:
                    self._holds.labels(*lock).observe(event.lasted)
                if isinstance(event, Lost):
                    self._losses.labels(*lock, _word(event.reason)).inc()
            case Suspended():
                self._suspensions.labels(*lock).inc()
            case Withdrawn():
                self._withdrawn.labels(*lock, event.error or "timeout").inc()


class _Shared:
    """The gauges in the files by which processes share them, in Prometheus' multiprocess mode.

    There, no process is asked at a scrape: each writes what it has, when it changes and as time
    passes. What a process does not know does not count: its lease is infinite.
    """

    def __init__(self, metrics: LockMetrics) -> None:
        self._metrics = metrics
        self._mutex = threading.Lock()
        self._process: int | None = None  # that has the thread
        self._holders = _written(_HOLDERS, "livesum")
        self._sessions = _written(_SESSIONS, "livesum")
        self._shards = _written(_SHARDS, "livesum")
        self._low_water = _written(_LOW_WATER, "livemin")
        self._low_water.set(math.inf)
        self._proof_age = _written(_PROOF_AGE, "livemax")
        self._dropped = _counter(*_DROPPED)
        self._told = 0  # how many of those were dropped

    def refresh(self) -> None:
        """Write what is so now. On the subscription's thread and on its own."""
        with self._mutex:
            if self._process != os.getpid():  # a forked child has no such thread
                self._process = os.getpid()
                threads.start(self._run, "zklock-metrics")
            self._write()

    def _run(self) -> None:
        closed = self._metrics._closed
        while not closed.wait(_REFRESH):
            with self._mutex:
                self._write()

    def _write(self) -> None:
        state = self._metrics._state
        for labels, count in state.holders().items():
            self._holders.labels(*labels).set(count)
        for each, count in state.sessions().items():
            self._sessions.labels(each).set(count)
        for pool, count in state.shards().items():
            self._shards.labels(pool).set(count)
        low, dropped = state.low_water(), self._metrics._subscription.dropped
        self._low_water.set(math.inf if low is None else low)
        self._proof_age.set(state.proof_age() or 0.0)
        self._dropped.inc(dropped - self._told)
        self._told = dropped


def _written(what: tuple[str, str, tuple[str, ...]], mode: Any) -> Gauge:
    name, text, labels = what
    return Gauge(f"zklock_client_{name}", text, labels, registry=None, multiprocess_mode=mode)


def _word(reason: LossReason) -> str:
    return reason.name.lower()


def _counter(name: str, text: str, labels: Iterable[str]) -> Counter:
    return Counter(f"zklock_client_{name}", text, tuple(labels), registry=None)


def _histogram(
    name: str, text: str, labels: Iterable[str], buckets: tuple[float, ...]
) -> Histogram:
    name = f"zklock_client_{name}"
    return Histogram(name, text, tuple(labels), registry=None, buckets=buckets)


def _gauge(name: str, text: str, labels: Iterable[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"zklock_client_{name}", text, labels=tuple(labels))
