"""The metrics of a look, as Prometheus' client has them. Needs prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily

from zklock.cli.view.live import Look
from zklock.cli.view.model import QueuePlace


def metrics(look: Look) -> Iterator[GaugeMetricFamily]:
    """Yield what an exporter serves.

    Without a connection nothing but that is told: old numbers would look like new ones.
    """
    up = "Whether ZooKeeper is connected: then the other metrics are present and up to date."
    yield GaugeMetricFamily("zklock_up", up, float(look.connected))
    if not look.connected:
        return
    locks, pools = look.picture.locks, look.picture.pools
    for name, text, numbers in (
        ("zklock_holders", "How many hold.", [len(it.holders) for it in locks]),
        ("zklock_waiting", "How many wait.", [len(it.waiting) for it in locks]),
        (
            "zklock_oldest_holder_age_seconds",
            "Seconds since the oldest holder queued; by the clocks of the server and the exporter.",
            [_oldest(it.holders) for it in locks],
        ),
        (
            "zklock_longest_wait_seconds",
            "Seconds since the first waiter queued, 0 if nobody waits; by the same clocks.",
            [_oldest(it.waiting) for it in locks],
        ),
    ):
        of = [(it.path, it.what.value) for it in locks]
        yield _gauge(name, text, ("path", "kind"), zip(of, numbers, strict=True))
    sessions = {place.contender.session_id for it in locks for place in it.places} - {0, None}
    yield GaugeMetricFamily("zklock_sessions", "Sessions that hold or wait.", len(sessions))
    certain = sum(one.certain for one in look.deadlocks)
    found = [(("certain",), certain), (("possible",), len(look.deadlocks) - certain)]
    yield _gauge("zklock_deadlocks", "Deadlocks; see zklock graph.", ("certainty",), found)
    for name, text, numbers in (
        ("zklock_pool_shards", "How many shards a pool has.", [it.shards for it in pools]),
        ("zklock_pool_workers", "How many workers a pool has.", [len(it.workers) for it in pools]),
        (
            "zklock_pool_shards_without_owner",
            "Shards that no worker says it owns.",
            [it.orphans for it in pools],
        ),
    ):
        yield _gauge(name, text, ("pool",), zip([(it.path,) for it in pools], numbers, strict=True))
    yield GaugeMetricFamily("zklock_hidden_nodes", "Nodes that ACLs hide.", len(look.denied))


def _gauge(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def _oldest(places: Sequence[QueuePlace]) -> float:
    return max((place.age or 0.0 for place in places), default=0.0)
