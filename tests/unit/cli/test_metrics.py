"""The metrics of a look."""

from __future__ import annotations

from tests.unit.cli.views import World
from zklock._pool.nodes import WorkerRecord, owned_data
from zklock.cli.exporter import metrics
from zklock.cli.view.model import Look
from zklock.token import FencingToken


def told(look: Look) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        it.name: {tuple(sample.labels.values()): sample.value for sample in it.samples}
        for it in metrics(look)
    }


def test_locks_sessions_and_deadlocks() -> None:
    world = World()
    for path, session in (("/a", 1), ("/b", 2), ("/b", 1), ("/a", 2), ("/a", 3)):
        world.queue(path, session, f"h:1:t{session}")
    world.semaphore("/p", 2, [(4, "x")], [])
    found = told(world.look())
    assert found["zklock_up"] == {(): 1}
    lock, permits = ("/a", "lock"), ("/p", "semaphore")
    assert found["zklock_holders"] == {lock: 1, ("/b", "lock"): 1, permits: 1}
    assert found["zklock_waiting"] == {lock: 2, ("/b", "lock"): 1, permits: 0}
    assert found["zklock_longest_wait_seconds"][permits] == 0
    assert found["zklock_longest_wait_seconds"][lock] > 0
    assert found["zklock_oldest_holder_age_seconds"][lock] > 0
    assert found["zklock_sessions"] == {(): 4}
    assert found["zklock_deadlocks"] == {("certain",): 1, ("possible",): 0}


def test_a_pool() -> None:
    world = World()
    for part in ("leader", "members", "assigned", "owned", "shards"):
        world.folder(f"/pool/{part}")
    world.folder("/pool/shards", b"3")
    record = WorkerRecord("w1", 1.0, assigned="a-1", owned="o-1")
    world.node("/pool/members/m-1", bytes(record))
    world.node("/pool/assigned/a-1", b"")
    world.node("/pool/owned/o-1", owned_data({0: FencingToken(1, 1), 2: FencingToken(1, 2)}))
    found = told(world.look())
    assert found["zklock_pool_shards"] == {("/pool",): 3}
    assert found["zklock_pool_workers"] == {("/pool",): 1}
    assert found["zklock_pool_shards_without_owner"] == {("/pool",): 1}
