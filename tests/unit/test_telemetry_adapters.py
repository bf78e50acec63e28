"""Metrics and spans made of events: Prometheus, OpenTelemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

import zklock
from tests.unit.sessions import PATH, TIMEOUT, World
from zklock import LossReason
from zklock._ground.clock import clock
from zklock._telemetry import subscriptions as hub
from zklock._telemetry.subscriptions import emit
from zklock.telemetry import (
    Disconnected,
    Event,
    Granted,
    HeartbeatLate,
    LeaderChanged,
    Lost,
    Proof,
    Queued,
    Released,
    SessionEnded,
    ShardMoved,
    StaleTokenRefused,
    Suspended,
    Withdrawn,
)
from zklock.telemetry._state import WINDOW, LowWater, State, itself
from zklock.telemetry.otel import LockInstrumentor
from zklock.telemetry.prometheus import LockMetrics
from zklock.testing import wait_for

SOON = 10.0
ROOT = Path(__file__).parents[2]
TOKEN, NEXT = zklock.FencingToken(1, 1), zklock.FencingToken(1, 2)
LOCK: dict[str, Any] = {"path": "/lock", "kind": "exclusive", "identity": "me"}


def grant(number: int = 1, path: str = "/lock") -> dict[str, Any]:
    return LOCK | {
        "path": path,
        "token": zklock.FencingToken(1, number),
        "node": f"{path}/{number}",
        "session_id": 7,
    }


def granted(number: int = 1, path: str = "/lock", **fields: Any) -> Granted:
    told: dict[str, Any] = {"at": clock(), "permits": 1, "waited": 0.5, "gap": 0.02, **fields}
    return Granted(**told, **grant(number, path))


def released(number: int = 1, path: str = "/lock") -> Released:
    return Released(at=clock(), lasted=2.0, **grant(number, path))


def lost(number: int = 1, reason: LossReason = LossReason.LEASE_LAPSED) -> Lost:
    now = clock()
    return Lost(at=now, lasted=2.0, reason=reason, lease_end=now, **grant(number))


def refused(resource: str) -> StaleTokenRefused:
    return StaleTokenRefused(at=clock(), resource=resource, token=TOKEN, highest=NEXT)


def proof(**fields: Any) -> Proof:
    told: dict[str, Any] = {
        "at": clock(),
        "session_id": 7,
        "age": 0.0,
        "margin": 5.0,
        "lease": 8.0,
        "timeout": 12.0,
        "held": True,
    }
    return Proof(**{**told, **fields})


def events() -> list[Event]:
    """Return one or more of each kind. Some are of now: old ones count no more."""
    return [
        Queued(at=1.0, node="/lock/1", ahead=3, **LOCK),
        granted(1),
        granted(2),
        released(1),
        lost(2),
        Withdrawn(at=1.0, waited=0.1, error=None, **LOCK),
        Withdrawn(at=1.0, waited=0.1, error="AcquireCancelled", **LOCK),
        Suspended(at=1.0, remaining=1.0, **grant()),
        proof(),
        Disconnected(at=1.0, session_id=7, remaining=1.0, grants=0),
        SessionEnded(at=1.0, session_id=7, reason=LossReason.SESSION_EXPIRED),
        HeartbeatLate(at=1.0, session_id=7, limit=2.4),
        StaleTokenRefused(at=1.0, resource="store", token=TOKEN, highest=NEXT),
        ShardMoved(at=1.0, path="/pool", shard=1, identity="me", token=TOKEN, owned=True),
        ShardMoved(at=1.0, path="/pool", shard=2, identity="me", token=TOKEN, owned=True),
        ShardMoved(at=1.0, path="/pool", shard=1, identity="me", token=TOKEN, owned=False),
        LeaderChanged(at=1.0, path="/election", leader="me", token=TOKEN, gap=False),
    ]


class TestState:
    def test_locks_of_one_label_are_counted_together(self) -> None:
        state = State(lambda path: path.split("/")[1])
        state.note(granted(1, "/jobs/1"))
        state.note(granted(2, "/jobs/2"))
        assert state.holders() == {("jobs", "exclusive"): 2}
        for path in ("/pools/a", "/pools/b"):
            owned = ShardMoved(at=1.0, path=path, shard=1, identity="me", token=TOKEN, owned=True)
            state.note(owned)
        assert state.shards() == {("pools",): 2}

    def test_a_forked_child_holds_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        state = State(itself)
        state.note(granted())
        pid = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: pid + 1)
        assert state.holders() == {}
        assert state.low_water() == {}

    def test_the_low_water_mark_and_the_age(self) -> None:
        state = State(itself)
        assert state.low_water() == state.proof_age() == {}
        state.note(proof(held=False, margin=0.0))
        assert state.low_water() == state.proof_age() == {}
        state.note(granted())
        state.note(proof(margin=3.0))
        state.note(proof(margin=6.0))
        assert state.low_water() == {(): pytest.approx(3 / 12)}
        state.note(proof(at=clock() - 5.0, age=1.0, lease=5.5))
        assert 6.0 <= state.proof_age()[()] < 60.0
        assert state.low_water()[()] <= 0.5 / 12
        state.note(lost())
        assert state.low_water() == {(): 0.0}
        assert state.proof_age() == {}

    def test_the_low_water_mark_forgets(self) -> None:
        low = LowWater()
        low.note(1000.0, 0.1)
        low.note(1000.0 + WINDOW / 2, 0.5)
        assert min(low.lately(1000.0 + WINDOW / 2)) == 0.1
        assert low.lately(1000.0 + WINDOW + 20.0) == [0.5]
        assert low.lately(1000.0 + 2 * WINDOW) == []
        for at in range(100):
            low.note(2000.0 + 10 * at, 1.0)
        assert len(low._steps) <= WINDOW / 10 + 2


Sample = Callable[..., float | None]


class TestPrometheus:
    @pytest.fixture
    def registry(self) -> CollectorRegistry:
        return CollectorRegistry()

    @pytest.fixture
    def made(self, registry: CollectorRegistry) -> Iterator[LockMetrics]:
        made = LockMetrics(registry)
        yield made
        made.close()

    @pytest.fixture
    def sample(self, registry: CollectorRegistry) -> Sample:
        def sampled(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"zklock_client_{name}", labels)

        return sampled

    def test_what_is_counted_and_no_token_or_session_is_a_label(
        self, made: LockMetrics, registry: CollectorRegistry, sample: Sample
    ) -> None:
        for event in events():
            emit(event)
        assert made.flush(SOON)
        lock = {"path": "/lock", "kind": "exclusive"}
        assert sample("holders", **lock) == 0
        assert sample("wait_seconds_count", **lock) == 2
        assert sample("wait_seconds_sum", **lock) == 1.0
        assert sample("hold_seconds_count", **lock) == 2
        assert sample("queue_ahead_bucket", le="3.0", **lock) == 1
        assert sample("queue_ahead_bucket", le="2.0", **lock) == 0
        assert sample("handover_gap_seconds_count", **lock) == 2
        assert sample("withdrawn_total", reason="timeout", **lock) == 1
        assert sample("withdrawn_total", reason="AcquireCancelled", **lock) == 1
        assert sample("losses_total", reason="lease_lapsed", **lock) == 1
        assert sample("losses_total", reason="node_deleted", **lock) == 0
        assert sample("suspensions_total", **lock) == 1
        assert sample("heartbeats_late_total") == 1
        assert sample("sessions", state="connected") == 0
        assert sample("sessions_ended_total", reason="session_expired") == 1
        assert sample("stale_tokens_refused_total", resource="store") == 1
        assert sample("shards", pool="/pool") == 1
        assert sample("shard_moves_total", pool="/pool", direction="given_up") == 1
        assert sample("leader_changes_total", path="/election") == 1
        assert sample("lease_low_water_ratio") == 0.0
        assert sample("events_dropped_total") == 0
        text = generate_latest(registry).decode()
        assert str(TOKEN) not in text
        families = text_string_to_metric_families(text)
        labels = {name for family in families for it in family.samples for name in it.labels}
        assert " ".join(sorted(labels)) == "direction kind le path pool reason resource state"

    def test_a_session_with_a_lock(self, made: LockMetrics, sample: Sample) -> None:
        world = World()
        world.connect()
        held = world.acquire()
        world.run(TIMEOUT)
        assert made.flush(SOON)
        lock = {"path": PATH, "kind": "exclusive"}
        assert sample("holders", **lock) == 1
        assert sample("sessions", state="connected") == 1
        beats = sample("heartbeat_seconds_count")
        assert beats is not None
        assert beats > 5
        world.disconnect()
        assert made.flush(SOON)
        assert sample("sessions", state="disconnected") == 1
        held.abandon()
        assert made.flush(SOON)
        assert sample("holders", **lock) == 0

    @pytest.mark.parametrize("make", [LockMetrics, LockInstrumentor])
    def test_a_label_is_made_by_a_function(self, make: Any) -> None:
        with pytest.raises(TypeError, match="label must be callable, not int"):
            make(label=5)

    def test_closed_it_counts_no_more_and_can_be_made_again(
        self, registry: CollectorRegistry, sample: Sample
    ) -> None:
        made = LockMetrics(registry)
        made.close()
        made.close()
        assert not hub.hooks
        assert sample("sessions", state="connected") is None
        LockMetrics(registry).close()

    def test_a_scrape_may_come_as_soon_as_it_is_registered(self) -> None:
        scraped: list[Any] = []

        class Hurried(CollectorRegistry):
            def register(self, collector: Any) -> None:
                super().register(collector)
                scraped.extend(self.collect())

        LockMetrics(Hurried()).close()
        assert "zklock_client_events_dropped" in {family.name for family in scraped}

    def test_two_in_one_registry_are_refused(
        self, made: LockMetrics, registry: CollectorRegistry
    ) -> None:
        with pytest.raises(ValueError, match="Duplicated"):
            LockMetrics(registry)
        assert len(hub.hooks) == 1

    def test_without_a_thread_nothing_is_registered(
        self, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr("threading.Thread.start", refuse)
            with pytest.raises(zklock.ZkLockError):
                LockMetrics(registry)
        LockMetrics(registry).close()

    def test_labels_that_are_no_text_keep_no_metric_from_being_told(
        self, registry: CollectorRegistry
    ) -> None:
        parent: Any = lambda path: PurePosixPath(path).parent  # noqa: E731 - a slip of a user's
        made = LockMetrics(registry, label=parent)
        for number in (1, 2):
            emit(granted(number, f"/jobs/{number}"))
        emit(refused("/data/\udcff/1"))  # the name of a file, in bytes that are no text
        assert made.flush(SOON)
        told = generate_latest(registry).decode()
        assert 'zklock_client_holders{kind="exclusive",path="/jobs"} 2.0' in told
        assert r'refused_total{resource="/data/\\udcff"} 1.0' in told
        made.close()


class Recorded:
    """OpenTelemetry's SDK, which keeps in memory what is recorded."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._spans = InMemorySpanExporter()
        self._meters = MeterProvider(metric_readers=[self._reader])
        self._tracers = TracerProvider()
        self._tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.made = LockInstrumentor(self._meters, self._tracers)

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return the attributes and the value of each point of a metric."""
        assert self.made.flush(SOON)
        data = self._reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), getattr(point, "value", getattr(point, "sum", None)))
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == f"lock.client.{name}"
            for point in metric.data.data_points
        ]

    def spans(self, name: str) -> list[Any]:
        assert self.made.flush(SOON)
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def close(self) -> None:
        self.made.close()
        self._meters.shutdown()
        self._tracers.shutdown()


class TestOpenTelemetry:
    @pytest.fixture
    def recorded(self) -> Iterator[Recorded]:
        made = Recorded()
        yield made
        made.close()

    def test_metrics(self, recorded: Recorded) -> None:
        for event in events():
            emit(event)
        lock = {"lock.system": "zookeeper", "lock.name": "/lock", "lock.kind": "exclusive"}
        assert recorded.points("holders") == [(lock, 0)]
        assert recorded.points("wait.duration") == [(lock, 1.0)]
        assert recorded.points("hold.duration") == [(lock, 4.0)]
        assert recorded.points("queue.ahead") == [(lock, 3)]
        assert recorded.points("losses") == [(lock | {"lock.loss.reason": "lease_lapsed"}, 1)]
        assert recorded.points("withdrawn") == [
            (lock | {"lock.outcome": "timeout"}, 1),
            (lock | {"lock.outcome": "AcquireCancelled"}, 1),
        ]
        assert recorded.points("stale_tokens.refused") == [({"lock.resource": "store"}, 1)]
        assert recorded.points("lease.low_water") == [({}, 0.0)]
        assert [value for _, value in recorded.points("shards")] == [1]
        assert [value for _, value in recorded.points("leader.changes")] == [1]
        assert str(TOKEN) not in str(recorded._reader.get_metrics_data())

    def test_a_resource_whose_name_is_no_text(self, recorded: Recorded) -> None:
        emit(refused("/data/\udcff"))
        name = {"lock.resource": r"/data/\udcff"}
        assert recorded.points("stale_tokens.refused") == [(name, 1)]
        (span,) = recorded.spans("lock.token.refused")
        assert span.attributes["lock.resource"] == name["lock.resource"]

    def test_spans(self, recorded: Recorded) -> None:
        for event in events():
            emit(event)
        waits, holds = recorded.spans("lock.acquire"), recorded.spans("lock.hold")
        assert [it.attributes["lock.outcome"] for it in waits] == [
            "granted",
            "granted",
            "timeout",
            "AcquireCancelled",
        ]
        assert [it.attributes["lock.outcome"] for it in holds] == ["released", "lost"]
        assert dict(holds[0].attributes) == {
            "lock.system": "zookeeper",
            "lock.name": "/lock",
            "lock.kind": "exclusive",
            "lock.owner": "me",
            "lock.token": str(TOKEN),
            "lock.session.id": "0x7",
            "lock.outcome": "released",
        }
        assert holds[0].end_time - holds[0].start_time == 2_000_000_000
        assert [it.status.status_code for it in holds] == [StatusCode.UNSET, StatusCode.ERROR]
        assert holds[1].attributes["lock.loss.reason"] == "lease_lapsed"
        (refusal,) = recorded.spans("lock.token.refused")
        assert refusal.attributes["lock.token"] == str(TOKEN)
        assert refusal.attributes["lock.token.highest"] == str(NEXT)

    def test_spans_are_at_the_time_of_the_wall_clock(self, recorded: Recorded) -> None:
        import time

        before = time.time_ns()
        emit(granted(at=clock(), waited=0.0))
        emit(Released(at=clock(), lasted=0.0, **grant()))
        (hold,) = recorded.spans("lock.hold")
        after = time.time_ns()
        slack = 50_000_000  # what the wall clock may be adjusted by meanwhile
        assert before - slack <= hold.start_time <= after + slack

    def test_closed_it_records_no_more(self, recorded: Recorded) -> None:
        recorded.made.close()
        emit(granted())
        assert not hub.hooks
        assert recorded._spans.get_finished_spans() == ()


WORKER = """
import os, sys, time
from tests.unit import test_telemetry_adapters as told

metrics = told.LockMetrics(label=lambda name: name.rsplit("/", 1)[0])
for number in range(3):
    told.emit(told.granted(number, f"/jobs/{number}"))
    told.emit(told.refused(f"/stores/{number}"))
if sys.argv[1] == "holds":
    told.emit(told.proof(margin=0.5, lease=1000.0))
else:
    for number in range(3):
        told.emit(told.released(number, f"/jobs/{number}"))
assert metrics.flush(60.0)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.lengthy("it starts interpreters")
def test_processes_share_all_metrics_in_prometheus_multiprocess_mode(tmp_path: Path) -> None:
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WORKER, what],
                    env=environ,
                    cwd=ROOT,
                    stdin=pipe,
                    stdout=pipe,
                )
            )
            for what in ("holds", "holds", "rests")
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]
        jobs = {"path": "/jobs", "kind": "exclusive"}

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"zklock_client_{name}", labels)

        assert value("holders", **jobs) == 6
        assert value("hold_seconds_count", **jobs) == 3
        assert value("sessions", state="connected") == 2
        assert value("lease_low_water_ratio") == pytest.approx(0.5 / 12)
        age = value("proof_age_seconds")
        assert age is not None
        assert age > 0
        wait_for(lambda: (value("proof_age_seconds") or 0) > age, 60.0, "time passes")
        assert value("stale_tokens_refused_total", resource="/stores") == 9
        assert value("events_dropped_total") == 0
