"""Members and workers that join, leave and change, as observers are told of them."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import Any

import pytest

import zklock
from tests.contract.fronts import Behind, Place
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, Child
from tests.contract.test_election import crew, others, ours
from zklock.testing import FrameKind, wait_for

__all__ = ["others", "ours"]

Change = zklock.MembershipChange[Any]


def who(members: tuple[Any, ...]) -> list[str]:
    return [each.identity for each in members]


def told(change: Change | None) -> tuple[list[str], list[str], list[str], list[str]]:
    assert change is not None
    return who(change.members), who(change.joined), who(change.left), who(change.changed)


class Eyes:
    """What an iterator has told, put together: it must be what is there."""

    def __init__(self, changes: Any) -> None:
        self.changes = changes
        self.seen: dict[Any, Any] = {}
        self.told = 0

    def look(self) -> dict[Any, Any]:
        """Take what there is, insist that each change fits to the ones before, and return all."""
        while (change := self.changes.next(0.01)) is not None:
            self.take(change)
        return self.seen

    def take(self, change: Change) -> None:
        self.told += 1
        for each in change.left:
            assert self.seen.pop(each.identity) == each
        for each in change.joined:
            assert each.identity not in self.seen
            self.seen[each.identity] = each
        for each in change.changed:
            assert self.seen[each.identity] != each
            self.seen[each.identity] = each
        assert sorted(who(change.members)) == sorted(self.seen)
        assert all(self.seen[each.identity] == each for each in change.members)

    def until(self, names: set[str]) -> None:
        wait_for(
            lambda: set(self.look()) == names and self.told,
            SOON,
            lambda: f"{set(self.seen)}, not {names}",
        )


@LASTING
class TestElection:
    def test_members_come_and_go(self, theirs: Place) -> None:
        watching = theirs.LeaderElection()
        with watching.membership_changes() as changes:
            assert told(changes.next(SOON)) == ([], [], [], [])
            with crew(theirs, "a") as (a,):
                assert told(changes.next(SOON)) == (["a"], ["a"], [], [])
                with crew(theirs, "b") as (b,):
                    assert told(changes.next(SOON)) == (["a", "b"], ["b"], [], [])
                    b.election.set_payload("new")
                    change = changes.next(SOON)
                    assert told(change) == (["a", "b"], [], [], ["b"])
                    assert change is not None
                    assert change.changed[0].payload == b"new"
                    assert changes.next(0.05) is None
                assert told(changes.next(SOON)) == (["a"], [], ["b"], [])
                assert a.leads().held
            assert told(changes.next(SOON)) == ([], [], ["a"], [])
        assert changes.next(0.0) is None

    def test_the_first_tells_all_in_order(self, theirs: Place) -> None:
        names = [f"m{at:02}" for at in range(20)]
        with crew(theirs, *names):
            theirs.client.create(f"{theirs.path}/no-member", b"")
            with theirs.LeaderElection().membership_changes() as changes:
                change = changes.next(SOON)
                assert told(change) == (names, names, [], [])
            assert change is not None
            members = theirs.LeaderElection().members()
            assert list(change.members) == members
            assert [each.holds for each in change.members] == [each.holds for each in members]
            theirs.client.delete(f"{theirs.path}/no-member")

    def test_a_leader_that_steps_back(self, theirs: Place) -> None:
        with crew(theirs, "a", "b") as (a, b):
            a.leads()
            with theirs.LeaderElection().membership_changes() as changes:
                eyes = Eyes(changes)
                eyes.until({"a", "b"})
                old = eyes.seen["a"].token
                a.election.resign()
                b.leads()
                wait_for(lambda: "a" in eyes.look() and eyes.seen["a"].token > old, SOON)
                assert eyes.seen.keys() == {"a", "b"}

    def test_callbacks(self, theirs: Place, caplog: pytest.LogCaptureFixture) -> None:
        heard: list[Change] = []

        def hear(change: Change) -> None:
            heard.append(change)
            raise RuntimeError("an observer that fails")

        election = theirs.LeaderElection()
        for observe in (election.observe, election.observe_membership):
            with pytest.raises(TypeError, match="callback must be callable"):
                observe(None)
        with (
            caplog.at_level(logging.CRITICAL, "zklock"),
            election.observe_membership(hear) as observer,
        ):
            wait_for(lambda: len(heard) == 1, SOON)
            with crew(theirs, "a"):
                wait_for(lambda: len(heard) == 2, SOON)
            wait_for(lambda: len(heard) == 3, SOON)
            observer.close()
            with crew(theirs, "b"):
                pass
        assert [told(each)[0] for each in heard] == [[], ["a"], []]

    def test_wakes_nobody_and_costs_one_read_a_change(self, behind: Behind, theirs: Place) -> None:
        watching = behind(timeout=30.0).LeaderElection()
        names = [f"m{at:02}" for at in range(30)]
        with crew(theirs, *names), watching.membership_changes() as changes:
            eyes = Eyes(changes)
            eyes.until(set(names))
            before = len(behind.proxy.frames)
            with crew(theirs, "late"):
                eyes.until({*names, "late"})
            eyes.until(set(names))
            nodes = [
                frame
                for frame in behind.proxy.frames[before:]
                if frame.kind is FrameKind.REQUEST and "-latch-" in (frame.path or "")
            ]
            assert 1 <= len(nodes) <= 4, nodes


class TestTroubles:
    @LASTING
    @pytest.mark.parametrize("ends", [False, True], ids=["cut", "session"])
    def test_what_happens_while_the_connection_is_cut(
        self, behind: Behind, theirs: Place, zklock_expire_session: Any, ends: bool
    ) -> None:
        far = behind(timeout=30.0)
        with ExitStack() as stack:
            eyes = Eyes(stack.enter_context(far.LeaderElection().membership_changes()))
            leaving = ExitStack()
            leaving.enter_context(crew(theirs, "a", "b"))
            eyes.until({"a", "b"})
            session = far.client.client_id
            behind.proxy.cut()
            leaving.close()
            (late,) = stack.enter_context(crew(theirs, "c"))
            late.election.set_payload("c2")
            for _ in range(3):
                with crew(theirs, "seen by nobody"):
                    pass
            if ends:
                zklock_expire_session(session)
            behind.proxy.restore()
            eyes.until({"c"})
            wait_for(lambda: eyes.look()["c"].payload == b"c2", SOON)

    def test_a_member_that_is_killed(self, zklock_hosts: str, ours: Place) -> None:
        given = {"hosts": zklock_hosts, "path": ours.path, "timeout": 10.0}
        with ours.LeaderElection().membership_changes() as changes:
            eyes = Eyes(changes)
            eyes.until(set())
            with Child("acquire_leadership", **given) as child:
                child.hears()
                eyes.until({"child"})
                child.process.kill()
                eyes.until(set())
            assert eyes.told == 3

    @LASTING
    def test_many_at_a_time_seen_by_a_slow_observer(self, ours: Place, others: Place) -> None:
        gate, entered = threading.Event(), threading.Event()
        heard: list[Change] = []

        def slow(change: Change) -> None:
            heard.append(change)
            entered.set()
            assert gate.wait(SOON)

        with ours.LeaderElection().observe_membership(slow):
            assert entered.wait(SOON)
            for _ in range(3):
                with crew(others, *(f"m{at}" for at in range(10))):
                    pass
            with crew(others, "a", "b"):
                seen = ours.LeaderElection().membership_changes()
                wait_for(lambda: (it := seen.next(0.1)) and who(it.members) == ["a", "b"], SOON)
                seen.close()
                gate.set()
                wait_for(lambda: who(heard[-1].members) == ["a", "b"], SOON)
        assert len(heard) <= 5
        eyes = Eyes(None)
        for change in heard:
            eyes.take(change)

    @LASTING
    def test_the_client_is_stopped(self, mine: Place) -> None:
        election = mine.LeaderElection()
        changes = election.membership_changes()
        assert told(changes.next(SOON)) == ([], [], [], [])
        mine.client.stop()
        with pytest.raises(zklock.ClientClosed):
            changes.next(SOON)
        with pytest.raises(zklock.ClientClosed):
            election.membership_changes()


@LASTING
class TestPool:
    def test_workers_come_change_and_go(self, theirs: Place) -> None:
        first, second = (
            theirs.pool(shards=4, identity=name, payload=name, settle=0.0) for name in "ab"
        )
        watching = theirs.pool()
        with watching.membership_changes() as changes:
            eyes = Eyes(changes)
            eyes.until(set())
            with first:
                eyes.until({"a"})
                assert eyes.seen["a"] == zklock.PoolWorker("a", 1.0, False, b"a")
                with second:
                    eyes.until({"a", "b"})
                    first.set_payload("A2")
                    second.set_capacity(3.0)
                    wait_for(
                        lambda: (
                            eyes.look()["a"].payload == b"A2" and eyes.look()["b"].capacity == 3.0
                        ),
                        SOON,
                    )
                    assert first.drain(SOON)
                    wait_for(lambda: eyes.look()["a"].draining, SOON)
                eyes.until({"a"})
            eyes.until(set())

    def test_callbacks(self, theirs: Place) -> None:
        heard: list[Change] = []
        pool = theirs.pool(shards=1, identity="a")
        with pytest.raises(TypeError, match="callback must be callable"):
            pool.observe_membership(None)
        with pool.observe_membership(heard.append):
            with pool:
                wait_for(lambda: heard and who(heard[-1].members) == ["a"], SOON)
            wait_for(lambda: heard[-1].members == (), SOON)
