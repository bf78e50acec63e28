"""Metrics of the locks of this process, for Prometheus. Needs prometheus-client.

``pip install ".[prometheus]"`` from a checkout brings it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from zklock._ground import threads
from zklock._ground.loss import LossReason
from zklock._ground.process import Process, this_process
from zklock._telemetry.events import Event, Queued
from zklock.telemetry import _metrics, subscribe
from zklock.telemetry._state import State, itself, labeller

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["LockMetrics"]

_REFRESH = 1.0
"""Seconds between two looks at what changes with time, in Prometheus' multiprocess mode."""

_DROPPED = "zklock_client_events_dropped"
_DROPPED_TEXT = "Events that were not counted, as too many waited."


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
        self._parts = {metric: _made(metric) for metric in _metrics.METRICS}
        for reason in LossReason:
            self._parts[_metrics.ENDED].labels(_metrics.word(reason))
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
        for part in self._parts.values():
            yield from part.collect()
        for gauge in _metrics.GAUGES:
            family = GaugeMetricFamily(_name(gauge), gauge.text, labels=tuple(gauge.labels))
            for labels, number in gauge.read(self._state).items():
                family.add_metric(labels, number)
            yield family
        yield CounterMetricFamily(_DROPPED, _DROPPED_TEXT, value=dropped)

    def _note(self, event: Event) -> None:
        self._state.note(event)
        for metric, labels, number in _metrics.counted(event, self._label):
            part = self._parts[metric]
            child = part.labels(*labels) if labels else part
            if isinstance(child, Histogram):
                child.observe(number)
            else:
                child.inc(number)
        if isinstance(event, Queued):
            lock = self._label(event.path), event.kind
            for reason in LossReason:  # there from the start: so a first loss is an increase
                self._parts[_metrics.LOSSES].labels(*lock, _metrics.word(reason))
        if self._shared is not None:
            self._shared.refresh()


class _Shared:
    """The gauges in the files by which processes share them, in Prometheus' multiprocess mode.

    There, no process is asked at a scrape: each writes what it has, when it changes and as time
    passes.
    """

    def __init__(self, metrics: LockMetrics) -> None:
        self._metrics = metrics
        self._mutex = threading.Lock()
        self._process: Process | None = None  # that has the thread
        self._gauges = {
            gauge: Gauge(
                _name(gauge),
                gauge.text,
                tuple(gauge.labels),
                registry=None,
                multiprocess_mode=gauge.mode,
            )
            for gauge in _metrics.GAUGES
        }
        self._dropped = Counter(_DROPPED, _DROPPED_TEXT, registry=None)
        self._told = 0  # how many of those were dropped

    def refresh(self) -> None:
        """Write what is so now. On the subscription's thread and on its own."""
        with self._mutex:
            if self._process != this_process():  # a forked child has no such thread
                self._process = this_process()
                threads.start(self._run, "zklock-metrics")
            self._write()

    def _run(self) -> None:
        closed = self._metrics._closed
        while not closed.wait(_REFRESH):
            with self._mutex:
                self._write()

    def _write(self) -> None:
        for gauge, written in self._gauges.items():
            found = gauge.read(self._metrics._state)
            if not gauge.labels:
                written.set(found.get((), gauge.absent))
                continue
            for labels, number in found.items():
                written.labels(*labels).set(number)
        dropped = self._metrics._subscription.dropped
        self._dropped.inc(dropped - self._told)
        self._told = dropped


def _name(metric: _metrics.Metric | _metrics.Gauge) -> str:
    return f"zklock_client_{metric.name}"


def _made(metric: _metrics.Metric) -> Counter | Histogram:
    name, labels = _name(metric), tuple(metric.labels)
    if metric.buckets is None:
        return Counter(name, metric.text, labels, registry=None)
    return Histogram(name, metric.text, labels, registry=None, buckets=metric.buckets)
