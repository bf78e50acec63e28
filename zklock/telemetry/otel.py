"""Spans and metrics of the locks of this process, by OpenTelemetry's API.

``pip install ".[otel]"`` from a checkout brings the API; the SDK and its exporters are yours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from opentelemetry import metrics, trace
from opentelemetry.metrics import (
    CallbackOptions,
    Counter,
    Histogram,
    Meter,
    MeterProvider,
    Observation,
)
from opentelemetry.trace import Status, StatusCode, TracerProvider

from zklock._ground.addresses import session_text
from zklock._ground.clock import clock
from zklock._telemetry.events import (
    Event,
    Granted,
    GrantEvent,
    LockEvent,
    Lost,
    Released,
    StaleTokenRefused,
    Withdrawn,
)
from zklock._version import __version__
from zklock.telemetry import subscribe
from zklock.telemetry._metrics import GAUGES, METRICS, Gauge, Metric, counted, word
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
        self._parts = {metric: _made(meter, metric) for metric in METRICS}
        for gauge in GAUGES:
            meter.create_observable_gauge(
                _name(gauge), [partial(self._observe, gauge)], gauge.unit, gauge.text
            )
        self._subscription = subscribe(self._note)

    def close(self) -> None:
        """Record nothing more, not even the end of what has begun. Final for this object."""
        self._open = False
        self._subscription.close()

    def flush(self, timeout: float = 1.0) -> bool:
        """Wait until all events so far are recorded, at most ``timeout`` seconds."""
        return self._subscription.flush(timeout)

    def _observe(self, gauge: Gauge, options: CallbackOptions) -> Iterable[Observation]:
        """Return the numbers of a gauge; called by the SDK, on its threads."""
        for labels, number in (gauge.read(self._state) if self._open else {}).items():
            yield Observation(number, _attributes(gauge.labels, labels))

    def _note(self, event: Event) -> None:
        self._state.note(event)
        for metric, labels, number in counted(event, self._label):
            part, attributes = self._parts[metric], _attributes(metric.labels, labels)
            if isinstance(part, Histogram):
                part.record(number, attributes)
            else:
                part.add(number, attributes)
        match event:
            case Granted() if event.waited is not None:
                self._span("lock.acquire", event, event.waited, {"lock.outcome": "granted"})
            case Withdrawn():
                outcome = {"lock.outcome": event.error or "timeout"}
                self._span("lock.acquire", event, event.waited, outcome)
            case Released() if event.lasted is not None:
                self._span("lock.hold", event, event.lasted, {"lock.outcome": "released"})
            case Lost() if event.lasted is not None:
                outcome = {"lock.outcome": "lost", "lock.loss.reason": word(event.reason)}
                self._span("lock.hold", event, event.lasted, outcome, event.reason.value)
            case StaleTokenRefused():
                self._span("lock.token.refused", event, 0.0, {}, "stale token")

    def _span(
        self, name: str, event: Event, lasted: float, more: Attributes, problem: str | None = None
    ) -> None:
        """Record a span that has ended with the event."""
        end = (
            # By the wall clock, even if a test has frozen time().
            time.clock_gettime_ns(time.CLOCK_REALTIME) - int((clock() - event.at) * 1e9)
        )
        span = self._tracer.start_span(
            name, attributes=_described(event) | more, start_time=end - int(lasted * 1e9)
        )
        if problem is not None:
            span.set_status(Status(StatusCode.ERROR, problem))
        span.end(end)


def _name(metric: Metric | Gauge) -> str:
    return f"lock.client.{metric.otel}"


def _made(meter: Meter, metric: Metric) -> Counter | Histogram:
    make = meter.create_counter if metric.buckets is None else meter.create_histogram
    return make(_name(metric), metric.unit, metric.text)


def _attributes(labels: Mapping[str, str], values: Sequence[str]) -> Attributes:
    attributes = dict(zip(labels.values(), values, strict=True))
    return {"lock.system": "zookeeper", **attributes} if "lock.name" in attributes else attributes


def _described(event: Event) -> Attributes:
    attributes: Attributes = {}
    if isinstance(event, LockEvent):
        attributes = {
            "lock.system": "zookeeper",
            "lock.name": event.path,
            "lock.kind": event.kind,
            "lock.owner": event.identity,
        }
    if isinstance(event, GrantEvent):
        attributes["lock.token"] = str(event.token)
        attributes["lock.session.id"] = session_text(event.session_id)
    if isinstance(event, StaleTokenRefused):
        attributes["lock.resource"] = written(event.resource)
        attributes["lock.token"] = str(event.token)
        if event.highest is not None:
            attributes["lock.token.highest"] = str(event.highest)
    return attributes
