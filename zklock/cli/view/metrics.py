"""The metrics of a look: names, labels and numbers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from zklock.cli.view.live import Look
from zklock.cli.view.model import LockView, Place


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge: for each set of labels' values a number."""

    name: str
    text: str
    labels: Sequence[str] = ()
    samples: list[tuple[Sequence[str], float]] = field(default_factory=list)


def metrics(look: Look) -> Iterator[Metric]:
    """Yield what an exporter serves.

    Without a connection nothing but that is told: old numbers would look like new ones.
    """
    up = "Whether ZooKeeper is connected: then the other metrics are present and up to date."
    yield Metric("zklock_up", up, samples=[((), float(look.connected))])
    if not look.connected:
        return
    locks = look.picture.locks
    lock = ("path", "kind")
    yield _each(locks, "zklock_holders", "How many hold.", lock, lambda it: len(it.holders))
    yield _each(locks, "zklock_waiting", "How many wait.", lock, lambda it: len(it.waiting))
    yield _each(
        locks,
        "zklock_oldest_holder_age_seconds",
        "Seconds since the oldest holder queued; by the clocks of the server and the exporter.",
        lock,
        lambda it: _oldest(it.holders),
    )
    yield _each(
        locks,
        "zklock_longest_wait_seconds",
        "Seconds since the first waiter queued, 0 if nobody waits; by the same clocks.",
        lock,
        lambda it: _oldest(it.waiting),
    )
    sessions = {place.contender.session_id for it in locks for place in it.places}
    count = len(sessions - {0, None})
    yield Metric("zklock_sessions", "Sessions that hold or wait.", samples=[((), float(count))])
    yield Metric(
        "zklock_deadlocks",
        "Deadlocks; see zklock graph.",
        ("certainty",),
        [
            ((word,), float(sum(one.certain is sure for one in look.deadlocks)))
            for word, sure in (("certain", True), ("possible", False))
        ],
    )
    pools = look.picture.pools
    for name, text, numbers in (
        ("zklock_pool_shards", "How many shards a pool has.", [it.shards for it in pools]),
        ("zklock_pool_workers", "How many workers a pool has.", [len(it.workers) for it in pools]),
        (
            "zklock_pool_shards_without_owner",
            "Shards that no worker says it owns.",
            [it.orphans for it in pools],
        ),
    ):
        samples = [((it.path,), float(at)) for it, at in zip(pools, numbers, strict=True)]
        yield Metric(name, text, ("pool",), list(samples))
    hidden = float(len(look.denied))
    yield Metric("zklock_hidden_nodes", "Nodes that ACLs hide.", samples=[((), hidden)])


def _each(
    locks: Sequence[LockView],
    name: str,
    text: str,
    labels: Sequence[str],
    number: Callable[[LockView], float],
) -> Metric:
    samples = [((it.path, it.what.value), float(number(it))) for it in locks]
    return Metric(name, text, labels, list(samples))


def _oldest(places: Sequence[Place]) -> float:
    return max((place.age or 0.0 for place in places), default=0.0)
