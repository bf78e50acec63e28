"""Leading without a function that leads: acquired and released as a lock is. On both fronts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from tests.contract.fronts import Place, Threads
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, Losses, run
from tests.contract.test_aio import aside
from zklock import aio
from zklock.testing import wait_for

Connect = Callable[..., Any]


def latch(place: Place, identity: str, **options: Any) -> Any:
    return place.LeaderElection(identity=identity, **options)


def acquired(election: Any) -> Any:
    leadership = election.acquire(timeout=SOON)
    assert leadership is not None, f"not elected: {election.members()}"
    return leadership


class Elected:
    """A callback that keeps what it was told."""

    def __init__(self) -> None:
        self.leaderships: list[Any] = []

    def __call__(self, leadership: Any) -> None:
        self.leaderships.append(leadership)


@LASTING
class TestAcquiring:
    def test_leads_until_it_releases(self, theirs: Place) -> None:
        elected = Elected()
        election = latch(theirs, "a", on_elected=elected, payload="here")
        second = latch(theirs, "b")
        leadership = acquired(election)
        assert leadership.held
        assert leadership.identity == "a"
        assert election.is_leader
        assert election.leadership == leadership
        assert not leadership.should_stop.is_set()
        leader = second.leader()
        assert (leader.identity, leader.payload, leader.token) == ("a", b"here", leadership.token)
        wait_for(lambda: len(elected.leaderships) == 1, SOON)
        assert elected.leaderships[0].token == leadership.token
        assert second.acquire(blocking=False) is None
        theirs.queued(1)
        leadership.release()
        assert not election.is_leader
        assert election.leadership is None
        assert leadership.released
        wait_for(leadership.should_stop.is_set, SOON)
        later = acquired(second)
        assert later.token > leadership.token
        later.release()
        with pytest.raises(zklock.NotHeld):
            later.release()
        theirs.gone()
        assert len(elected.leaderships) == 1

    def test_for_a_body(self, theirs: Place) -> None:
        first, second = (latch(theirs, name) for name in "ab")
        with first.acquire() as leadership:
            assert leadership.held
            with second.attempt(timeout=0.1) as none:
                assert none is None
            assert first.is_leader
        assert leadership.released
        with second.attempt(timeout=SOON) as leadership:
            assert leadership.held
            assert second.is_leader
        theirs.gone()
        with pytest.raises(ValueError, match="does not wait"):
            first.acquire(blocking=False, timeout=1.0)
        with pytest.raises(TypeError, match="not 5: pass seconds as timeout="):
            first.acquire(5)

    def test_beside_members_that_run(self, theirs: Place) -> None:
        runner = zklock.LeaderElection(theirs.client, theirs.path, identity="runner")
        running = run(runner.run, lambda leadership: leadership.should_stop.wait(2 * SOON))
        wait_for(lambda: runner.is_leader, SOON)
        election = latch(theirs, "latch")
        waiting = run(acquired, election)
        theirs.queued(2)
        runner.resign()
        leadership = waiting.result(SOON)
        theirs.queued(2)
        assert not runner.is_leader
        leadership.release()
        wait_for(lambda: runner.is_leader, SOON)
        runner.stop()
        running.result(SOON)


@LASTING
class TestEndingIt:
    def test_cancel_does_not_end_the_object(self, theirs: Place) -> None:
        first, second = (latch(theirs, name) for name in "ab")
        second.cancel()  # nothing is pending
        leadership = acquired(first)
        for _ in range(2):
            waiting = run(second.acquire)
            theirs.queued(2)
            second.cancel()
            with pytest.raises(zklock.AcquireCancelled, match="cancelled"):
                waiting.result(SOON)
            theirs.queued(1)
        waiting = run(acquired, second)
        theirs.queued(2)
        leadership.release()
        waiting.result(SOON).release()
        theirs.gone()

    def test_stop_is_final(self, theirs: Place) -> None:
        first, second = (latch(theirs, name) for name in "ab")
        leadership = acquired(first)
        waiting = run(second.acquire)
        theirs.queued(2)
        second.stop()
        with pytest.raises(zklock.AcquireCancelled, match="stopped"):
            waiting.result(SOON)
        with pytest.raises(zklock.AcquireCancelled, match="stopped"):
            second.acquire()
        theirs.queued(1)
        assert not leadership.should_stop.is_set()
        first.stop()
        wait_for(leadership.should_stop.is_set, SOON)
        assert leadership.held  # whoever acquired it has to release it
        assert first.is_leader
        leadership.release()
        theirs.gone()

    def test_those_who_ask_for_it_are_heard(self, theirs: Place) -> None:
        election = latch(theirs, "a")
        with pytest.raises(zklock.NotHeld):
            election.resign()
        asks: list[Callable[[Any], object]] = [
            lambda leadership: election.resign(),
            lambda leadership: leadership.resign(),
            lambda leadership: theirs.Lock().request_release(),
        ]
        for ask in asks:
            leadership = acquired(election)
            ask(leadership)
            wait_for(leadership.should_stop.is_set, SOON)
            assert leadership.held
            leadership.release()
        theirs.gone()

    def test_one_object_stands_once_at_a_time(self, theirs: Place) -> None:
        def body(leadership: Any) -> Any:
            yield leadership.should_stop

        lead = theirs.front.script(body)
        first, second = (latch(theirs, name) for name in "ab")
        leadership = acquired(first)
        own: list[Callable[[], Any]] = [lambda: first.acquire(timeout=1.0), lambda: first.run(lead)]
        for again in own:
            with pytest.raises(zklock.WouldDeadlock, match=str(leadership.token)):
                again()
        waiting = run(second.acquire)
        theirs.queued(2)
        others: list[Callable[[], Any]] = [second.acquire, lambda: second.run(lead)]
        for again in others:
            with pytest.raises(zklock.ZkLockError, match="already runs or acquires"):
                again()
        second.cancel()
        with pytest.raises(zklock.AcquireCancelled):
            waiting.result(SOON)
        leadership.release()
        running = run(second.run, lead)
        wait_for(lambda: second.is_leader, SOON)
        with pytest.raises(zklock.ZkLockError, match="already runs or acquires"):
            second.acquire()
        second.stop()
        running.result(SOON)
        theirs.gone()

    def test_handing_over(self, theirs: Place) -> None:
        """Nothing is left to release. A leader that is told by ``should_stop`` does, as always."""
        first, second, third = (latch(theirs, name) for name in "abc")
        with first.attempt(timeout=SOON) as leadership:
            with pytest.raises(zklock.NoSuchMember, match="'c'"):
                first.transfer("c")
            assert leadership.held
            assert not leadership.should_stop.is_set()
            behind = []
            for count, each in enumerate((second, third), 2):
                behind.append(run(acquired, each))
                theirs.queued(count)
            chosen = first.transfer("c", timeout=SOON)
            assert chosen.identity == "c"
            wait_for(leadership.should_stop.is_set, SOON)
            leadership.release()
        assert leadership.released
        with pytest.raises(zklock.NotHeld):
            leadership.check()
        later = behind[1].result(SOON)
        assert later.token == chosen.token
        assert not behind[0].done()
        theirs.queued(2)
        later.release()
        behind[0].result(SOON).release()
        with pytest.raises(zklock.NotHeld):
            first.transfer("b")
        theirs.gone()

    def test_who_is_told_of_a_transfer_may_be_quick(self, other: Any, zklock_path: str) -> None:
        """The holder releases before the thread that hands over has another turn."""
        place = Place(Threads(), other, zklock_path)
        first, second = (latch(place, name) for name in "ab")

        class Heeded(threading.Event):
            def set(self) -> None:
                super().set()
                leadership.release()

        leadership = acquired(first)
        leadership.should_stop = Heeded()
        later = run(acquired, second)
        place.queued(2)
        chosen = first.transfer("b", timeout=SOON)
        successor = later.result(SOON)
        assert successor.token == chosen.token
        successor.release()
        place.gone()


class TestLosingIt:
    @LASTING
    def test_its_node_is_deleted(self, theirs: Place) -> None:
        losses = Losses()
        election = latch(theirs, "a", on_lost=losses)
        leadership = acquired(election)
        theirs.client.delete(leadership.path)
        assert losses.one().reason is zklock.LossReason.NODE_DELETED
        wait_for(leadership.should_stop.is_set, SOON)
        assert not leadership.held
        assert not election.is_leader
        with pytest.raises(zklock.LockLost):
            leadership.release()
        later = acquired(election)
        assert later.token > leadership.token
        later.release()
        assert len(losses.losses) == 1
        theirs.gone()


@LASTING
class TestTasks:
    async def test_a_body_of_a_task(self, other: Any, zklock_path: str) -> None:
        seen: list[tuple[bool, bool]] = []

        async def lead(leadership: aio.Leadership) -> None:
            async with leadership:
                assert not leadership.should_stop.is_set()
            assert leadership.should_stop.is_set()
            members = await election.members()
            seen.append((leadership.held, members[0].token == leadership.token))
            election.stop()

        election = aio.LeaderElection(other, zklock_path)
        await election.run(lead, on_error="raise")
        assert seen == [(True, True)]

    async def test_whoever_sees_it_lost_sees_that_it_should_stop(
        self, other: Any, zklock_path: str
    ) -> None:
        """The loop itself may be the first to notice: it looks at the clock, or reads replies."""
        leadership = await aio.LeaderElection(other, zklock_path).acquire()
        assert leadership is not None
        leadership._lose(zklock.LossReason.LEASE_LAPSED, noticed=0.0, lease_end=0.0)
        assert leadership.lost.is_set()
        assert leadership.should_stop.is_set()
        await aside(other.delete, leadership.path)
