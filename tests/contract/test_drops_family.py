"""As ``test_drops``, for what the kinds of locks do beyond the plain lock's recipe."""

from __future__ import annotations

import pytest

import zklock
from tests.contract.fronts import Place, Threads
from tests.contract.support import SOON, granted, run
from tests.contract.test_drops import Cast, Scenario, Stage, cast, play_all, sampled

__all__ = ["cast"]

pytestmark = pytest.mark.hazard("H5", "H9")

CRASHED = b"held by 0000000000000001-0000000001"
"""The data of a path whose last holder has not released."""


def beside(stage: Stage, *below: str, left: bytes = b"") -> tuple[Place, Place]:
    """Make a path beside the stage's own; return it for the stage's client, and for the other."""
    path = f"{stage.path}-beside"
    stage.other.create(path, left, makepath=True)
    for each in below:
        stage.other.ensure_path(path + each)
    return Place(Threads(), stage.client, path), Place(Threads(), stage.other, path)


def permitted(stage: Stage, limit: int) -> tuple[Place, Place]:
    """Make a semaphore there."""
    mine, theirs = beside(stage, "/locks", "/leases")
    theirs.Semaphore(limit=limit).set_limit(limit)
    return mine, theirs


def is_free(theirs: Place, limit: int) -> None:
    """Insist that all permits can be had, by who comes next."""
    theirs.gone("/locks")
    theirs.gone("/leases")
    granted(theirs.Semaphore(limit=limit), permits=limit).release()


def permits(stage: Stage) -> None:
    mine, theirs = permitted(stage, 3)
    stage.arm()
    grant = granted(mine.Semaphore(limit=3, on_lost=stage.losses), permits=2)
    grant.verify(SOON)
    leases = theirs.queued(2, "/leases")
    assert [int(name[-10:]) for name in leases] == [token.sequence for token in grant.tokens]
    theirs.gone("/locks")
    grant.release()
    is_free(theirs, 3)
    assert not stage.losses.losses


def permit_handed_over(stage: Stage) -> None:
    mine, theirs = permitted(stage, 1)
    holder = granted(theirs.Semaphore(limit=1))
    stage.arm()
    waiting = run(granted, mine.Semaphore(limit=1, on_lost=stage.losses))
    stage.settled(6)
    theirs.queued(2, "/leases")
    assert not waiting.done()
    holder.release()
    grant = waiting.result(SOON)
    grant.verify(SOON)
    assert grant.token > holder.token
    theirs.queued(1, "/leases")
    grant.release()
    is_free(theirs, 1)


def permit_not_in_time(stage: Stage) -> None:
    mine, theirs = permitted(stage, 1)
    holder = granted(theirs.Semaphore(limit=1))
    stage.arm()
    assert mine.Semaphore(limit=1).acquire(timeout=1.0) is None
    stage.over()
    theirs.queued(1, "/leases")
    theirs.gone("/locks")
    assert holder.held
    holder.release()
    is_free(theirs, 1)


def unmarked(theirs: Place) -> bool:
    """Whether nobody is there, and the last one has released; as the next one will find."""
    theirs.gone()
    return bool(theirs.client.get(theirs.path)[0] == b"")


def marked(stage: Stage) -> None:
    """Acquire with a mark, after a clean release."""
    mine, theirs = beside(stage)
    stage.arm()
    grant = granted(mine.Lock(track_abandoned=True, on_lost=stage.losses))
    assert grant.abandoned is False
    assert stage.other.get(mine.path)[0].decode() == f"held by {grant.token}"
    grant.release()
    assert unmarked(theirs)
    assert not stage.losses.losses


def marked_after_a_crash(stage: Stage) -> None:
    mine, theirs = beside(stage, left=CRASHED)
    stage.arm()
    grant = granted(mine.Lock(track_abandoned=True))
    assert grant.abandoned is True
    grant.release()
    assert unmarked(theirs)


def delayed_after_a_crash(stage: Stage) -> None:
    """The delay is noted at the first try, and a later one waits for the rest of it."""
    mine, theirs = beside(stage, left=CRASHED)
    stage.arm()
    lock = mine.Lock(lock_delay=0.2)
    assert lock.acquire(blocking=False) is None
    grant = granted(lock)
    assert grant.abandoned is True
    grant.release()
    assert unmarked(theirs)


def mark_is_left(stage: Stage) -> None:
    """Give up while the end of the one before is being waited off: it is told of still."""
    mine, theirs = beside(stage, left=CRASHED)
    stage.arm()
    assert mine.Lock(lock_delay=60.0).acquire(timeout=1.0) is None
    stage.over()
    theirs.gone()
    assert stage.other.get(mine.path)[0].startswith(CRASHED)


def downgrade(stage: Stage) -> None:
    mine, theirs = beside(stage)
    writer = mine.WriteLock(on_lost=stage.losses)
    grant = granted(writer)
    reader = theirs.waits(theirs.ReadLock(), 2)
    second = theirs.waits(theirs.WriteLock(), 3)
    stage.arm()
    assert writer.downgrade() is grant
    reading = reader.result(SOON)
    assert grant.held
    assert not second.done()
    grant.release()
    assert not second.done()
    reading.release()
    second.result(SOON).release()
    theirs.gone()
    assert not stage.losses.losses


def tidied(stage: Stage) -> None:
    mine, theirs = beside(stage)
    grant = granted(mine.Lock(tidy=True))
    stage.arm()
    grant.release()
    theirs.gone()
    after = granted(theirs.Lock(tidy=True))
    assert after.token > grant.token
    after.release()
    assert stage.other.exists(mine.path) is None


AT = ["/a", "/b", "/c"]


def several_at_once(stage: Stage) -> None:
    mine, theirs = beside(stage, *AT)
    stage.arm()
    multi = zklock.MultiLock([mine.Lock(each) for each in AT], on_lost=stage.losses)
    grant = multi.acquire(timeout=SOON)
    assert grant is not None
    grant.verify(SOON)
    for at, each in zip(AT, grant.grants, strict=True):
        (node,) = theirs.queued(1, at)
        assert f"{mine.path}{at}/{node}" == each.path
        (contender,) = theirs.Lock(at).contenders()
        assert (contender.token, contender.session_id) == (each.token, each.session_id)
    multi.release()
    for at in AT:
        theirs.passes_on(at)
    assert not stage.losses.losses


def several_one_after_the_other(stage: Stage) -> None:
    """Wait for the second of three; nothing stands in the queue of the third meanwhile."""
    mine, theirs = beside(stage, *AT)
    holder = granted(theirs.Lock("/b"))
    stage.arm()
    waiting = run(zklock.MultiLock([mine.Lock(each) for each in AT]).acquire, timeout=SOON)
    stage.settled(6)
    theirs.queued(2, "/b")
    theirs.passes_on("/c")
    assert not waiting.done()
    holder.release()
    grant = waiting.result(SOON)
    assert grant is not None
    grant.verify(SOON)
    grant.release()
    for at in AT:
        theirs.gone(at)


def several_not_free(stage: Stage) -> None:
    mine, theirs = beside(stage, *AT)
    holder = granted(theirs.Lock("/c"))
    stage.arm()
    assert zklock.MultiLock([mine.Lock(each) for each in AT]).acquire(blocking=False) is None
    stage.over()
    theirs.gone("/a")
    theirs.gone("/b")
    theirs.queued(1, "/c")
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
def test_every_frame_is_lost_once(cast: Cast, scenario: Scenario) -> None:
    cases = cast.record(scenario)
    assert len(cases) >= 4 * SCENARIOS[scenario]
    stages = play_all(cast, scenario, [(loss,) for loss in sampled(cases)])
    for stage in stages:
        (fault,) = stage.faults
        assert fault.frame is not None
    print(f"{scenario.__name__:20} {len(stages)} cases")
