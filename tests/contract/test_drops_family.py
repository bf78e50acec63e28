"""As ``test_drops``, for what the kinds of locks do beyond the plain lock's recipe."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import zklock
from tests.contract.support import SOON, gone, granted, queued, run
from tests.contract.test_drops import Cast, Scenario, Stage, cast, play_all, sampled

__all__ = ["cast"]

pytestmark = pytest.mark.hazard("H5", "H9")


def place(stage: Stage, limit: int) -> str:
    """Make a semaphore beside the stage's own path."""
    path = f"{stage.path}-permits"
    for below in ("locks", "leases"):
        stage.other.ensure_path(f"{path}/{below}")
    zklock.Semaphore(stage.other, path, limit=limit).set_limit(limit)
    return path


def is_free(stage: Stage, path: str, limit: int) -> None:
    """Insist that all permits can be had, by who comes next."""
    gone(stage.other, f"{path}/locks")
    gone(stage.other, f"{path}/leases")
    semaphore = zklock.Semaphore(stage.other, path, limit=limit)
    grant = semaphore.acquire(timeout=SOON, permits=limit)
    assert grant is not None
    semaphore.release()


def permits(stage: Stage) -> None:
    path = place(stage, 3)
    stage.arm()
    semaphore = zklock.Semaphore(stage.client, path, limit=3, on_lost=stage.losses)
    grant = semaphore.acquire(timeout=SOON, permits=2)
    assert grant is not None
    grant.verify(SOON)
    leases = queued(stage.other, f"{path}/leases", 2)
    assert [int(name[-10:]) for name in leases] == [token.sequence for token in grant.tokens]
    gone(stage.other, f"{path}/locks")
    grant.release()
    is_free(stage, path, 3)
    assert not stage.losses.losses


def permit_handed_over(stage: Stage) -> None:
    path = place(stage, 1)
    holder = granted(zklock.Semaphore(stage.other, path, limit=1))
    stage.arm()
    waiting = run(granted, zklock.Semaphore(stage.client, path, limit=1, on_lost=stage.losses))
    stage.settled(6)
    queued(stage.other, f"{path}/leases", 2)
    assert not waiting.done()
    holder.release()
    grant = waiting.result(SOON)
    grant.verify(SOON)
    assert grant.token > holder.token
    queued(stage.other, f"{path}/leases", 1)
    grant.release()
    is_free(stage, path, 1)


def permit_not_in_time(stage: Stage) -> None:
    path = place(stage, 1)
    holder = granted(zklock.Semaphore(stage.other, path, limit=1))
    stage.arm()
    semaphore = zklock.Semaphore(stage.client, path, limit=1)
    assert semaphore.acquire(timeout=1.0) is None
    stage.over()
    queued(stage.other, f"{path}/leases", 1)
    gone(stage.other, f"{path}/locks")
    assert holder.held
    holder.release()
    is_free(stage, path, 1)


def marked(stage: Stage) -> None:
    """Acquire with a mark, after a clean release."""
    path = f"{stage.path}-marked"
    stage.other.ensure_path(path)
    stage.arm()
    lock = zklock.Lock(stage.client, path, track_abandoned=True, on_lost=stage.losses)
    grant = granted(lock)
    assert grant.abandoned is False
    assert stage.other.get(path)[0].decode() == f"held by {grant.token}"
    grant.release()
    gone(stage.other, path)
    assert stage.other.get(path)[0] == b""
    assert not stage.losses.losses


def marked_after_a_crash(stage: Stage) -> None:
    path = f"{stage.path}-crashed"
    left = b"held by 0000000000000001-0000000001"
    stage.other.create(path, left, makepath=True)
    stage.arm()
    grant = granted(zklock.Lock(stage.client, path, track_abandoned=True))
    assert grant.abandoned is True
    grant.release()
    gone(stage.other, path)
    assert stage.other.get(path)[0] == b""


def delayed_after_a_crash(stage: Stage) -> None:
    """The delay is noted at the first try, and a later one waits for the rest of it."""
    path = f"{stage.path}-delayed"
    stage.other.create(path, b"held by 0000000000000001-0000000001", makepath=True)
    stage.arm()
    lock = zklock.Lock(stage.client, path, lock_delay=0.2)
    assert lock.acquire(blocking=False) is None
    grant = granted(lock)
    assert grant.abandoned is True
    grant.release()
    gone(stage.other, path)
    assert stage.other.get(path)[0] == b""


def mark_is_left(stage: Stage) -> None:
    """Give up while the end of the one before is being waited off: it is told of still."""
    path = f"{stage.path}-waited"
    left = b"held by 0000000000000001-0000000001"
    stage.other.create(path, left, makepath=True)
    stage.arm()
    assert zklock.Lock(stage.client, path, lock_delay=60.0).acquire(timeout=1.0) is None
    stage.over()
    gone(stage.other, path)
    assert stage.other.get(path)[0].startswith(left)


def downgrade(stage: Stage) -> None:
    path = f"{stage.path}-downgraded"
    writer = zklock.WriteLock(stage.client, path, on_lost=stage.losses)
    grant = granted(writer)
    reader = run(granted, zklock.ReadLock(stage.other, path))
    queued(stage.other, path, 2)
    second = run(granted, zklock.WriteLock(stage.other, path))
    queued(stage.other, path, 3)
    stage.arm()
    assert writer.downgrade() is grant
    beside = reader.result(SOON)
    assert grant.held
    assert not second.done()
    grant.release()
    assert not second.done()
    beside.release()
    second.result(SOON).release()
    gone(stage.other, path)
    assert not stage.losses.losses


def tidied(stage: Stage) -> None:
    path = f"{stage.path}-tidied"
    stage.other.ensure_path(path)
    lock = zklock.Lock(stage.client, path, tidy=True)
    grant = granted(lock)
    stage.arm()
    grant.release()
    gone(stage.other, path)
    after = granted(zklock.Lock(stage.other, path, tidy=True))
    assert after.token > grant.token
    after.release()
    assert stage.other.exists(path) is None


def several(stage: Stage) -> list[str]:
    """Make the paths of some locks beside the stage's own."""
    paths = [f"{stage.path}-{name}" for name in "abc"]
    for path in paths:
        stage.other.ensure_path(path)
    return paths


def several_at_once(stage: Stage) -> None:
    paths = several(stage)
    stage.arm()
    multi = zklock.MultiLock(
        [zklock.Lock(stage.client, path) for path in paths], on_lost=stage.losses
    )
    grant = multi.acquire(timeout=SOON)
    assert grant is not None
    grant.verify(SOON)
    for path, each in zip(paths, grant.grants, strict=True):
        (node,) = queued(stage.other, path, 1)
        assert f"{path}/{node}" == each.path
        (mine,) = zklock.Lock(stage.other, path).contenders()
        assert (mine.token, mine.session_id) == (each.token, each.session_id)
    multi.release()
    for path in paths:
        gone(stage.other, path)
        granted(zklock.Lock(stage.other, path)).release()
    assert not stage.losses.losses


def several_one_after_the_other(stage: Stage) -> None:
    """Wait for the second of three; nothing stands in the queue of the third meanwhile."""
    paths = several(stage)
    holder = granted(zklock.Lock(stage.other, paths[1]))
    stage.arm()
    multi = zklock.MultiLock([zklock.Lock(stage.client, path) for path in paths])
    waiting = run(multi.acquire, timeout=SOON)
    stage.settled(6)
    queued(stage.other, paths[1], 2)
    gone(stage.other, paths[2])
    granted(zklock.Lock(stage.other, paths[2])).release()
    assert not waiting.done()
    holder.release()
    grant = waiting.result(SOON)
    assert grant is not None
    grant.verify(SOON)
    grant.release()
    for path in paths:
        gone(stage.other, path)


def several_not_free(stage: Stage) -> None:
    paths = several(stage)
    holder = granted(zklock.Lock(stage.other, paths[2]))
    stage.arm()
    multi = zklock.MultiLock([zklock.Lock(stage.client, path) for path in paths])
    assert multi.acquire(blocking=False) is None
    stage.over()
    for path in paths[:2]:
        gone(stage.other, path)
    queued(stage.other, paths[2], 1)
    assert holder.held
    holder.release()


SCENARIOS: dict[Scenario, int] = {
    permits: 8,
    permit_handed_over: 8,
    permit_not_in_time: 8,
    marked: 4,
    marked_after_a_crash: 4,
    delayed_after_a_crash: 6,
    mark_is_left: 4,
    downgrade: 3,
    tidied: 1,
    several_at_once: 5,
    several_one_after_the_other: 7,
    several_not_free: 5,
}
"""With the number of requests that each consists of, at least."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_frame_is_lost_once(
    cast: Cast, scenario: Scenario, record_property: Callable[[str, object], None]
) -> None:
    cases = cast.record(scenario)
    assert len(cases) >= 4 * SCENARIOS[scenario]
    stages = play_all(cast, scenario, [(loss,) for loss in sampled(cases)])
    for stage in stages:
        (fault,) = stage.faults
        assert fault.frame is not None
    record_property("cases", len(stages))
    print(f"{scenario.__name__:20} {len(stages)} cases")
