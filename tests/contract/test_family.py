"""What each kind of lock promises beyond the plain one, on a real server."""

from __future__ import annotations

import gc
import itertools
import re
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import zklock
from tests.contract.fronts import Behind, Place, Places
from tests.contract.support import (
    SOON,
    Losses,
    gone,
    granted,
    now_of,
    queued,
    reaches,
    results,
    run,
)
from tests.modes import bounded
from tests.stopwatch import Stopwatch
from zklock import LossReason
from zklock._locks.base import LockBase
from zklock.fencing import verify_owner
from zklock.testing import FaultProxy, FrameKind, ZooKeeperServer, expire_session, wait_for
from zklock.token import FencingToken

Connect = Callable[..., Any]


def in_thread(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call on another thread, and wait for what comes of it."""
    return run(call, *args, **kwargs).result(SOON)


def watches(proxy: FaultProxy) -> int:
    """Count the nodes that were read, and so watched, by those who wait."""
    return sum(f.op == "getData" and f.kind is FrameKind.REPLY for f in proxy.frames)


class TestRLock:
    def test_shares_its_grant(self, mine: Place, theirs: Place) -> None:
        lock, rival = mine.RLock(), theirs.Lock()
        with lock as outer:
            with lock as inner:
                assert inner == outer
                assert lock.acquire() == outer
                assert len(mine.nodes()) == 1
                lock.release()
            assert outer.held
            assert rival.acquire(blocking=False) is None
        assert outer.released
        granted(rival).release()

    def test_is_one_threads(self, mine: Place) -> None:
        lock = mine.RLock()
        grant = granted(lock)
        assert in_thread(lock.acquire, blocking=False) is None
        with pytest.raises(zklock.WrongThread):
            in_thread(lock.release)
        waiting = mine.waits(lock, 2)
        lock.release()
        assert waiting.result(SOON).token > grant.token
        waiting.result().release()

    @pytest.mark.hazard("H36")
    def test_is_not_acquired_anew_before_every_use_is_told_of_the_loss(
        self, mine: Place, theirs: Place
    ) -> None:
        lock = mine.RLock()
        grant = granted(lock)
        assert lock.acquire() == lock.acquire() == grant
        theirs.lose(grant)
        for _ in range(3):
            with pytest.raises(zklock.LockLost):
                lock.acquire()
            assert lock.grant == grant
            with pytest.raises(zklock.LockLost):
                lock.release()
        assert theirs.nodes() == []
        assert lock.grant is None
        with lock as again:
            assert again.token > grant.token

    @pytest.mark.hazard("H36")
    def test_is_not_acquired_anew_in_an_outer_body(
        self, client: Any, other: Any, zklock_path: str
    ) -> None:
        lock = zklock.RLock(client, zklock_path)
        with pytest.raises(zklock.LockLost), lock as grant:
            with pytest.raises(zklock.LockLost), lock:
                other.delete(grant.path)
                assert grant.lost.wait(SOON)
            with pytest.raises(zklock.LockLost):
                lock.acquire()
            with pytest.raises(zklock.LockLost):
                zklock.MultiLock([lock]).acquire()
        granted(lock).release()

    def test_can_be_released_by_its_grant(self, mine: Place) -> None:
        lock = mine.RLock()
        first = granted(lock)
        assert lock.acquire() == first
        first.release()
        second = granted(lock)
        assert second.token > first.token
        lock.release()
        with pytest.raises(zklock.NotHeld):
            lock.release()


class TestWaitingForOneself:
    @pytest.mark.hazard("H38")
    @pytest.mark.parametrize("held", ["Lock", "RLock", "WriteLock"])
    @pytest.mark.parametrize("asked", ["Lock", "RLock", "WriteLock"])
    def test_is_refused_at_once(self, mine: Place, held: str, asked: str) -> None:
        first = granted(getattr(mine, held)())
        again = getattr(mine, asked)()
        for call in (again.acquire, again.__enter__, mine.front.MultiLock([again]).acquire):
            with pytest.raises(zklock.WouldDeadlock, match="would deadlock") as caught:
                call()
            assert (caught.value.path, caught.value.token) == (mine.path, first.token)
        assert len(mine.nodes()) == 1
        assert again.acquire(blocking=False) is None
        assert again.acquire(timeout=0.05) is None
        first.release()
        granted(again, timeout=None).release()

    @pytest.mark.hazard("H38")
    def test_is_refused_behind_an_older_grant(self, mine: Place) -> None:
        older, newest = granted(mine.ReadLock()), granted(mine.ReadLock())
        newest.release()
        lock = mine.Lock()
        with pytest.raises(zklock.WouldDeadlock, match=str(older.token)):
            lock.acquire()
        older.release()
        granted(lock).release()

    @pytest.mark.parametrize(
        ("first", "second"),
        [(zklock.WriteLock, zklock.ReadLock), (zklock.ReadLock, zklock.WriteLock)],
    )
    def test_is_not_to_wait_for_what_is_being_withdrawn(
        self, other: Any, zklock_path: str, first: Any, second: Any
    ) -> None:
        """The acquire was interrupted just as it was granted: nobody has got that grant."""
        grant = granted(first(other, zklock_path))
        grant._kept = False

        def withdraw() -> None:
            queued(other, zklock_path, 2)
            grant.abandon()

        withdrawing = run(withdraw)
        granted(second(other, zklock_path)).release()
        withdrawing.result(SOON)

    def test_is_not_what_others_do(self, mine: Place, theirs: Place) -> None:
        lock = mine.Lock()
        first = granted(lock)
        second = mine.waits(lock, 2, timeout=None)
        third = theirs.waits(theirs.Lock(), 3, timeout=None)
        first.release()
        second.result(SOON).release()
        third.result(SOON).release()

    def test_is_not_to_wait_for_whom_the_grant_was_handed_to(
        self, mine: Place, theirs: Place
    ) -> None:
        lock = mine.Lock()

        def work() -> None:
            first = granted(lock)
            in_thread(first.release)
            second = granted(lock, timeout=None)

            def release_once_queued() -> None:
                theirs.queued(2)
                second.release()

            releasing = run(release_once_queued)
            granted(lock).release()
            releasing.result(SOON)

        in_thread(work)

    def test_is_not_to_wait_after_a_loss_nor_to_read_twice(
        self, mine: Place, theirs: Place
    ) -> None:
        lock = mine.Lock()
        theirs.lose(granted(lock))
        granted(lock, timeout=None).release()
        with mine.ReadLock(), mine.ReadLock():
            pass


def refusal(lock: Any) -> zklock.AcquireTimeout:
    """Return the error of a ``with`` that is not granted in time, but had time to look."""

    def look() -> zklock.AcquireTimeout | None:
        with pytest.raises(zklock.AcquireTimeout) as caught:
            lock.__enter__()
        return caught.value if caught.value.behind else None

    return wait_for(look, SOON)


class TestNotInTime:
    def test_is_told_with_place_and_holder(self, mine: Place, theirs: Place) -> None:
        first = granted(theirs.Lock(identity="first"))
        second = theirs.waits(theirs.Lock(identity="second"), 2)
        late = mine.Lock(timeout=0.2)
        error = refusal(late)
        assert (error.ahead, error.behind) == (2, "second")
        assert "with 2 contenders before it, the nearest 'second'" in str(error)
        first.release()
        second.result(SOON)
        error = refusal(late)
        assert (error.ahead, error.behind) == (1, "second")
        assert "held by 'second'" in str(error)
        second.result().release()

    @pytest.mark.parametrize("kept", [False, True])
    def test_is_told_for_a_kept_lock_and_for_several(
        self, mine: Place, theirs: Place, kept: bool
    ) -> None:
        first = granted(theirs.Lock(identity="first"))
        late = mine.Lock(timeout=0.2, keep=5.0)
        error = refusal(late if kept else mine.front.MultiLock([mine.Lock()], timeout=0.2))
        assert (error.ahead, error.behind) == (1, "first")
        assert "held by 'first'" in str(error)
        first.release()
        with late:
            pass

    def test_is_told_without_an_answer(self, behind: Behind) -> None:
        late = behind().Lock(timeout=0.05)
        behind.proxy.hold()
        with pytest.raises(zklock.AcquireTimeout, match=r"within 0\.05 s: try") as caught:
            late.__enter__()
        assert (caught.value.ahead, caught.value.behind) == (None, None)


class TestReadWrite:
    def test_readers_share_and_writers_do_not(self, mine: Place, theirs: Place) -> None:
        one, two = mine.ReadLock(), theirs.ReadLock()
        first, second = granted(one), granted(two)
        assert first.held
        assert second.held
        pending = mine.waits(theirs.WriteLock(), 3)
        assert [each.holds for each in one.contenders()] == [True, True, False]
        first.release()
        mine.queued(2)
        assert not pending.done()
        second.release()
        write = pending.result(SOON)
        assert write.token > second.token > first.token
        assert in_thread(one.acquire, blocking=False) is None
        write.release()

    def test_a_release_wakes_who_can_run_and_nobody_else(
        self, behind: Behind, theirs: Place
    ) -> None:
        """Writer, two readers, a writer, a reader, each behind a proxy that counts events."""
        holder = granted(theirs.WriteLock())
        pending = [
            theirs.waits(getattr(behind(timeout=60.0), kind)(), number)
            for number, kind in enumerate(("ReadLock", "ReadLock", "WriteLock", "ReadLock"), 2)
        ]
        # The last two have several before them, and do not watch their own nodes.
        behind.proxy.wait_until(lambda: watches(behind.proxy) == 2 + 2 + 1 + 1, SOON)

        def told(grant: zklock.Grant) -> int:
            """Count those that were told of its end; a reader here watches its own node, too."""
            events = [frame for frame in behind.proxy.frames if frame.kind is FrameKind.EVENT]
            return sum(frame.path == grant.path for frame in events)

        holder.release()
        one, two = results(pending[:2])
        assert told(holder) == 2
        one.release()
        theirs.queued(3)
        two.release()
        write = pending[2].result(SOON)
        assert told(one) == 1  # itself: the writer watches the nearest before it
        assert told(two) == 2
        assert not pending[3].done()
        write.release()
        pending[3].result(SOON).release()
        assert told(write) == 1

    def test_downgrade_lets_readers_in_and_no_writer(self, mine: Place, theirs: Place) -> None:
        writer = mine.WriteLock()
        grant = granted(writer)
        before = mine.waits(theirs.ReadLock(), 2)
        writing = mine.waits(theirs.WriteLock(), 3)
        behind = mine.waits(theirs.ReadLock(), 4)
        assert writer.downgrade() == grant
        reading = before.result(SOON)
        assert grant.held
        contenders = writer.contenders()
        assert [each.holds for each in contenders] == [True, True, False, False]
        assert contenders[0].identity == grant.identity
        assert writer.downgrade() == grant  # once more changes nothing
        grant.release()
        mine.queued(3)
        assert not writing.done()
        reading.release()
        write = writing.result(SOON)
        assert not behind.done()
        write.release()
        behind.result(SOON).release()

    def test_a_reader_that_does_not_wait_gets_past_a_downgraded_writer(
        self, mine: Place, theirs: Place
    ) -> None:
        writer, reader = mine.WriteLock(), theirs.ReadLock()
        with writer:
            assert reader.acquire(blocking=False) is None
            writer.downgrade()
            grant = reader.acquire(blocking=False)
            assert grant is not None
            assert in_thread(theirs.WriteLock().acquire, blocking=False) is None
        assert grant.held
        reader.release()

    def test_there_is_no_upgrade(self, mine: Place) -> None:
        reader, writer = mine.ReadLock(), mine.WriteLock()
        with reader:
            for options in ({}, {"blocking": False}, {"timeout": 1.0}):
                with pytest.raises(zklock.WouldDeadlock, match="upgrade"):
                    writer.acquire(**options)
            assert len(mine.nodes()) == 1
            assert in_thread(writer.acquire, blocking=False) is None  # another thread may ask
        with writer:
            with pytest.raises(zklock.WouldDeadlock, match="downgrade"):
                reader.acquire()
            writer.downgrade()
            with reader, pytest.raises(zklock.WouldDeadlock, match="upgrade"):
                writer.acquire()
        mine.gone()

    def test_downgrade_needs_the_lock(self, mine: Place, theirs: Place) -> None:
        writer = mine.WriteLock()
        with pytest.raises(zklock.NotHeld):
            writer.downgrade()
        grant = granted(writer)
        with pytest.raises(zklock.WrongThread):
            in_thread(writer.downgrade)
        theirs.client.delete(grant.path)
        with pytest.raises(zklock.LockLost):
            writer.downgrade()

    def test_many_of_both_kinds(self, places: Places) -> None:
        """Readers and writers of three sessions: nobody beside a writer, everybody served."""
        guard, inside = threading.Lock(), {True: 0, False: 0}
        tokens: list[FencingToken] = []

        def work(place: Place, seed: int) -> None:
            for at in range(30):
                write = (seed + at) % 3 == 0
                kind = place.WriteLock if write else place.ReadLock
                with kind(timeout=2 * SOON) as grant:
                    with guard:
                        inside[write] += 1
                        assert inside[True] <= 1
                        assert not (inside[True] and inside[False])
                        if write:
                            tokens.append(grant.token)
                    if write and at % 2:
                        assert grant.held
                    with guard:
                        inside[write] -= 1

        results([run(work, each, seed) for seed, each in enumerate(places(3) * 3)], 4 * SOON)
        assert tokens == sorted(tokens)


class TestSemaphore:
    def test_gives_so_many_permits(self, mine: Place, theirs: Place) -> None:
        one, two = mine.Semaphore(limit=3), theirs.Semaphore(limit=3)
        pair = granted(one, permits=2)
        assert len(pair.tokens) == 2
        assert pair.token == max(pair.tokens)
        single = granted(two)
        assert single.tokens == (single.token,)
        assert single.token > pair.token
        assert two.acquire(blocking=False) is None
        assert one.acquire(timeout=0.2) is None
        pending = mine.waits(two, 1, "/locks", permits=2)
        single.release()
        mine.queued(4, "/leases")  # two of the holder's, two of who waits
        assert not pending.done()
        one.release()
        again = pending.result(SOON)
        assert again.tokens[0] > single.token
        again.release()
        mine.gone("/leases")
        mine.gone("/locks")

    def test_is_fair_to_those_who_want_many(self, mine: Place, theirs: Place) -> None:
        semaphore = mine.Semaphore(limit=2)
        first, second = granted(semaphore), granted(semaphore)
        many = mine.waits(theirs.Semaphore(limit=2), 1, "/locks", permits=2)
        late = mine.waits(semaphore, 2, "/locks")
        first.release()
        mine.queued(3, "/leases")
        assert not late.done()
        second.release()
        both = many.result(SOON)
        assert not late.done()
        both.release()
        late.result(SOON).release()

    def test_two_that_want_several_do_not_wait_for_each_other(self, places: Places) -> None:
        guard, out = threading.Lock(), [0]

        def work(place: Place, permits: int) -> None:
            semaphore = place.Semaphore(limit=4)
            for _ in range(15):
                granted(semaphore, timeout=2 * SOON, permits=permits)
                with guard:
                    out[0] += permits
                    assert out[0] <= 4
                with guard:
                    out[0] -= permits
                semaphore.release()

        wanted = zip(places(3) * 2, itertools.cycle((3, 2, 1, 4)))
        results([run(work, *each) for each in wanted], 4 * SOON)

    def test_a_permit_that_is_given_back_wakes_one(self, behind: Behind, theirs: Place) -> None:
        semaphore = theirs.Semaphore(limit=2)
        held = [granted(semaphore), granted(semaphore)]

        def answered() -> bool:
            return bool(behind.proxy.counts.requests == behind.proxy.counts.replies)

        def told() -> set[int]:
            events = [f for f in behind.proxy.frames if f.kind is FrameKind.EVENT]
            return {frame.connection for frame in events}

        pending = [
            theirs.waits(behind(timeout=60.0).Semaphore(limit=2), number, "/locks")
            for number in range(1, 5)
        ]
        theirs.queued(3, "/leases")
        behind.proxy.wait_until(answered, SOON)
        assert told() == set()
        held[0].release()
        pending[0].result(SOON)
        theirs.queued(3, "/leases")
        theirs.queued(3, "/locks")
        behind.proxy.wait_until(answered, SOON)
        # The one that was granted, and the next, which is the first in the queue now.
        assert len(told()) == 2
        assert not any(each.done() for each in pending[1:])
        held[1].release()
        for waiting in pending:
            waiting.result(SOON).release()

    def test_keeps_its_limit(self, mine: Place, theirs: Place) -> None:
        mine.Semaphore(limit=2).acquire()
        assert theirs.client.get(mine.path)[0] == b"2"
        for limit in (1, 3):
            with pytest.raises(zklock.LimitMismatch, match="stored limit is 2") as caught:
                theirs.Semaphore(limit=limit).acquire()
            assert (caught.value.kept, caught.value.path) == (2, mine.path)
        with pytest.raises(zklock.LimitMismatch, match="never"):
            theirs.Semaphore(limit=None).acquire(permits=3)
        assert len(theirs.nodes("/leases")) == 1
        theirs.gone("/locks")
        granted(theirs.Semaphore(limit=None))

    def test_needs_a_limit(self, mine: Place, other: Any) -> None:
        with pytest.raises(zklock.LimitMismatch, match="no limit"):
            mine.Semaphore(limit=None).acquire()
        assert other.exists(mine.path) is None
        other.create(mine.path, b"zwei", makepath=True)
        with pytest.raises(zklock.ZkLockError, match="not a semaphore's"):
            mine.Semaphore(limit=2).acquire()
        mine.gone("/locks")

    def test_changes_its_limit(self, mine: Place, theirs: Place) -> None:
        """One that goes by what is kept still does when it has changed that."""
        semaphore, free = mine.Semaphore(limit=1), theirs.Semaphore(limit=None)
        first = granted(semaphore)
        pending = mine.waits(free, 2, "/leases")
        semaphore.set_limit(2)
        assert semaphore.limit == 2
        second = pending.result(SOON)
        semaphore.set_limit(1)
        assert free.acquire(blocking=False) is None
        assert second.held  # nothing is taken away
        second.release()
        first.release()
        granted(semaphore).release()
        free.set_limit(2)
        mine.Semaphore(limit=None).set_limit(3)
        assert free.limit is None
        granted(free, permits=3).release()

    def test_is_lost_as_a_whole(self, mine: Place, theirs: Place) -> None:
        losses = Losses()
        semaphore = mine.Semaphore(limit=3, on_lost=losses)
        grant = granted(semaphore, permits=3)
        nodes = theirs.queued(3, "/leases")
        theirs.client.delete(f"{mine.path}/leases/{nodes[1]}")
        with pytest.raises(zklock.LockLost):
            grant.verify(SOON)
        assert losses.one().reason is LossReason.NODE_DELETED
        theirs.gone("/leases")
        with pytest.raises(zklock.LockLost):
            semaphore.release()
        granted(semaphore, blocking=False, timeout=None, permits=3).release()

    def test_tells_who_has_permits_and_who_waits(self, mine: Place, theirs: Place) -> None:
        one = mine.Semaphore(limit=1, identity="one")
        assert (one.contenders(), one.holder()) == ([], None)
        grant = granted(one)
        pending = mine.waits(theirs.Semaphore(limit=1, identity="two"), 2, "/leases")
        having, waiting = one.contenders()
        assert (having.identity, having.token, having.holds) == ("one", grant.token, True)
        assert (waiting.identity, waiting.holds, waiting.token) == ("two", False, None)
        assert one.holder() == having
        grant.release()
        pending.result(SOON).release()

    def test_one_that_gathers_is_thrown_out_by_an_operator(
        self, mine: Place, theirs: Place
    ) -> None:
        held = granted(theirs.Semaphore(limit=1))
        pending = theirs.waits(mine.Semaphore(limit=1), 1, "/locks")
        (node,) = theirs.nodes("/locks")
        theirs.queued(2, "/leases")
        theirs.client.delete(f"{mine.path}/locks/{node}")
        wait_for(lambda: theirs.nodes("/locks") not in ([], [node]), SOON, "it queues again")
        theirs.queued(2, "/leases")
        assert not pending.done()
        held.release()
        pending.result(SOON).release()

    @pytest.mark.parametrize("number", [0, -1, True, 1.5, "2"])
    def test_bad_limits_and_permits(self, mine: Place, number: Any) -> None:
        bad: list[Callable[[], Any]] = [
            lambda: mine.Semaphore(limit=number),
            lambda: mine.Semaphore(limit=1).set_limit(number),
            lambda: mine.Semaphore(limit=2).acquire(permits=number),
        ]
        for call, what in zip(bad, ("limit", "limit", "permits"), strict=True):
            with pytest.raises((TypeError, ValueError), match=what):
                call()
        with pytest.raises(ValueError, match="permits"):
            mine.Semaphore(limit=2).acquire(permits=3)
        with pytest.raises(ValueError, match="limit"):
            mine.Semaphore(limit=1, tidy=True)
        assert mine.client.exists(mine.path) is None


AT = ["/c", "/a", "/b"]
"""Where the locks of a ``MultiLock`` are, not in their order."""


def several(place: Place, at: list[str] = AT, **options: Any) -> Any:
    """Return a lock of several plain ones."""
    return place.front.MultiLock([place.Lock(each) for each in at], **options)


def all_gone(place: Place, at: list[str] = AT) -> None:
    for each in at:
        place.gone(each)


class TestMultiLock:
    def test_of_a_client_that_was_stopped(self, other: Any, zklock_path: str) -> None:
        locks = [zklock.Lock(other, zklock_path)]
        other.stop()
        with pytest.raises(zklock.ClientClosed):
            zklock.MultiLock(locks)

    def test_all_of_them(self, mine: Place, theirs: Place) -> None:
        multi = several(mine)
        paths = [mine.path + each for each in sorted(AT)]
        assert multi.paths == paths
        with multi as grant:
            assert (grant.held, multi.held, multi.grant) == (True, True, grant)
            assert list(grant.tokens) == paths
            assert 0 < grant.remaining() <= 10.0
            grant.check()
            grant.verify(SOON)
            for each in AT:
                assert theirs.Lock(each).acquire(blocking=False) is None
        assert (grant.held, multi.held, multi.grant) == (False, False, None)
        for each in AT:
            granted(theirs.Lock(each)).release()
        with pytest.raises(zklock.NotHeld):
            multi.release()

    def test_or_none(self, mine: Place, theirs: Place) -> None:
        last = granted(theirs.Lock("/c"))
        multi = several(mine, timeout=0.3)
        assert multi.acquire(blocking=False) is None
        started = time.monotonic()
        assert multi.acquire() is None
        assert 0.3 <= time.monotonic() - started < SOON
        with pytest.raises(zklock.AcquireTimeout):
            multi.__enter__()
        all_gone(theirs, ["/a", "/b"])
        theirs.queued(1, "/c")
        last.release()
        with multi:
            pass

    def test_in_one_order(self, places: Places) -> None:
        def work(place: Place, order: tuple[str, ...]) -> None:
            multi = several(place, [*order])
            for _ in range(20):
                granted(multi, timeout=2 * SOON)
                multi.release()

        orders = zip(places(3) * 2, itertools.permutations(AT), strict=True)
        results([run(work, *each) for each in orders], 4 * SOON)

    def test_of_any_kinds_and_clients(self, mine: Place, theirs: Place) -> None:
        kinds = [mine.ReadLock("/a"), theirs.WriteLock("/b"), mine.Semaphore("/c", limit=2)]
        with theirs.ReadLock("/a"), mine.front.MultiLock(kinds) as grant:
            assert grant.held
        outer = mine.RLock("/b")
        with outer as held:
            with mine.front.MultiLock([outer, mine.Lock("/a")]):
                pass
            assert held.held

    def test_tells_once_which_was_lost(self, mine: Place, theirs: Place) -> None:
        losses, late = Losses(), Losses()
        multi = several(mine, on_lost=losses)
        grant: Any = granted(multi)
        theirs.client.delete(grant.grants[1].path)
        assert grant.lost.wait(SOON)
        assert grant.grants[1] == losses.one().grant
        assert not grant.held
        assert grant.grants[0].held
        with pytest.raises(zklock.LockLost, match=grant.grants[1].lock_path):
            grant.check()
        grant.add_lost_callback(late)
        assert late.one() == losses.one()
        theirs.lose(grant.grants[0])
        with pytest.raises(zklock.LockLost):
            multi.release()
        all_gone(theirs)
        assert len(losses.losses) == 1

    def test_a_loss_while_waiting_is_made_good(self, mine: Place, theirs: Place) -> None:
        last = granted(theirs.Lock("/c"))
        pending = theirs.waits(several(mine), 2, "/c", timeout=None)
        (node,) = wait_for(lambda: theirs.nodes("/a"), SOON)
        reaches(mine.client, now_of(mine.client) + 3.0)  # it watches its node by now
        theirs.client.delete(f"{mine.path}/a/{node}")
        last.release()
        grant = pending.result(SOON)
        assert grant.held
        assert theirs.nodes("/a") != [node]
        grant.release()

    @pytest.mark.hazard("H36")
    def test_a_re_entrant_lock_that_is_lost_while_waiting_is_not_made_good(
        self, mine: Place, theirs: Place
    ) -> None:
        last = granted(theirs.Lock("/c"))
        outer = mine.RLock("/a")
        multi = mine.front.MultiLock([outer, mine.Lock("/c")])

        def work() -> None:
            granted(outer)
            multi.acquire(timeout=SOON)

        pending = run(work)
        theirs.queued(2, "/c")
        theirs.lose(outer.grant)
        last.release()
        with pytest.raises(zklock.LockLost):
            pending.result(SOON)
        all_gone(theirs)

    def test_within_itself(self, mine: Place) -> None:
        multi = mine.front.MultiLock([mine.RLock(each) for each in AT])
        with multi as outer:
            inner = multi.acquire()
            assert multi.grant == inner
            inner.release()
            assert (inner.held, inner.remaining(), outer.held) == (False, 0.0, True)
            assert multi.grant == outer
            with pytest.raises(zklock.NotHeld, match="acquire again"):
                inner.release()
            with pytest.raises(zklock.NotHeld, match="acquire again"):
                inner.check()
            with multi as third:
                assert multi.acquire() is not None
                multi.release()
                assert third.held
            assert outer.held
        all_gone(mine)

    @pytest.mark.parametrize("one_is_held", [False, True])
    def test_keeps_nothing_that_is_over(self, mine: Place, one_is_held: bool) -> None:
        held = mine.RLock("/a")
        outer = granted(held) if one_is_held else None
        multi = mine.front.MultiLock([held, mine.Lock("/b")])

        def over() -> weakref.ref[Any]:
            grant = granted(multi)
            grant.release()
            return weakref.ref(vars(grant).get("_grant", grant))

        known = [over() for _ in range(20)]
        assert multi.grant is None
        over()
        gc.collect()
        assert [each() for each in known] == [None] * 20
        if outer is not None:
            assert outer.held
            outer.release()

    def test_of_which_nothing_is_heard_after_the_release(self, mine: Place, theirs: Place) -> None:
        losses, late = Losses(), Losses()
        outer = mine.RLock()
        grant = granted(outer)
        mine.front.MultiLock([outer], on_lost=losses).acquire().release()
        grant.add_lost_callback(late)
        theirs.client.delete(grant.path)
        late.one()
        assert not losses.losses

    def test_of_two_chroots(self, front: Any, zklock_connect: Connect, theirs: Place) -> None:
        hosts = "{}:{}".format(*theirs.client.hosts[0])
        for below in "ab":
            theirs.client.ensure_path(f"{theirs.path}/{below}")
        first, second = (zklock_connect(f"{hosts}{theirs.path}/{each}") for each in "ab")
        inside = front.MultiLock([front.Lock(first, "/2"), front.Lock(second, "/1")])
        outside = several(theirs, ["/b/1", "/a/2"])
        assert inside.paths == ["/2", "/1"]

        def work(multi: Any) -> None:
            for _ in range(20):
                granted(multi).verify()
                multi.release()

        results([run(work, multi) for multi in (inside, outside)], 2 * SOON)
        all_gone(theirs, ["/a/2", "/b/1"])
        with pytest.raises(ValueError, match="twice"):
            front.MultiLock([front.Lock(first, "/2"), theirs.Lock("/a/2")])
        with front.MultiLock([front.Lock(first, "/1"), front.Lock(second, "/1")]) as grant:
            assert [each.lock_path for each in grant.grants] == ["/1", "/1"]
            with pytest.raises(ValueError, match="grants"):
                _ = grant.tokens

    def test_of_one_path_on_two_ensembles(
        self, front: Any, zklock_connect: Connect, other: Any, zklock_path: str
    ) -> None:
        with ZooKeeperServer() as server:
            here, there = zklock_connect(), zklock_connect(server.hosts)
            clients = [(here, there), (other, zklock_connect(server.hosts))]
            multis = [
                front.MultiLock([front.Lock(each, zklock_path) for each in two]) for two in clients
            ]

            def work(multi: Any) -> None:
                for _ in range(10):
                    grant: Any = granted(multi)
                    assert len({each.session_id for each in grant.grants}) == 2
                    multi.release()

            results([run(work, multi) for multi in multis], 2 * SOON)
            for client in (here, there):
                gone(client, zklock_path)

    @pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0.3}], ids=str)
    def test_of_an_ensemble_that_does_not_answer(
        self, behind: Behind, theirs: Place, how: dict[str, Any]
    ) -> None:
        multi = theirs.front.MultiLock([theirs.Lock(), behind(timeout=30.0).Lock()])
        behind.proxy.hold(to_server=False)
        with Stopwatch() as watch:
            assert multi.acquire(**how) is None
        assert watch.awake < bounded(2.0)

    @pytest.mark.parametrize("clients", [1, 2])
    def test_is_cancelled_just_before_it_waits(
        self, places: Places, theirs: Place, monkeypatch: pytest.MonkeyPatch, clients: int
    ) -> None:
        held = granted(theirs.Lock("/c"))
        mine, *_, last = places(clients) * 2
        multi = mine.front.MultiLock([mine.Lock("/a"), mine.Lock("/b"), last.Lock("/c")])
        inner = vars(multi).get("_lock", multi)
        check = LockBase._check_own

        def cancelling(lock: LockBase[Any], *, waits: bool) -> None:
            check(lock, waits=waits)
            if lock.path == held.lock_path:
                inner.cancel()

        monkeypatch.setattr(LockBase, "_check_own", cancelling)
        with pytest.raises(zklock.AcquireCancelled):
            in_thread(multi.acquire)
        monkeypatch.undo()
        theirs.gone("/a")
        theirs.queued(1, "/c")
        held.release()

    def test_is_given_back_without_waiting_in_between(self, behind: Behind, theirs: Place) -> None:
        kinds = {"/0": "Lock", "/1": "ReadLock", "/2": "WriteLock", "/3": "RLock", "/4": "Lock"}
        far = behind(timeout=60.0)
        multi = far.front.MultiLock([getattr(far, kind)(at) for at, kind in kinds.items()])
        grant = multi.acquire()
        for at, each in zip(kinds, grant.grants, strict=True):
            (contender,) = theirs.Lock(at).contenders()
            assert (contender.path, contender.token) == (each.path, each.token)
            assert contender.session_id == each.session_id
        mark = behind.proxy.mark()
        behind.proxy.hold(to_server=False)
        releasing = run(grant.release)

        def asked() -> int:
            since = (it for it in behind.proxy.frames if it.number > mark)
            return sum(it.op == "delete" and it.kind is FrameKind.REQUEST for it in since)

        wait_for(lambda: asked() == 5, SOON)
        behind.proxy.release()
        releasing.result(SOON)
        all_gone(theirs, [*kinds])

    @pytest.mark.parametrize("how", [{"blocking": False}, {}], ids=str)
    def test_asks_for_one_after_the_other(self, behind: Behind, how: dict[str, Any]) -> None:
        """It asks for the next one when it has got one: of those that do not wait, one gets all."""
        multi = several(behind(timeout=60.0))
        multi.acquire().release()
        mark = behind.proxy.mark()
        multi.acquire(**how).release()
        frames = [it for it in behind.proxy.frames if it.number > mark and it.op == "create2"]
        assert [it.kind for it in frames] == [FrameKind.REQUEST, FrameKind.REPLY] * 3

    def test_waits_with_nothing_behind_the_one_that_it_waits_for(
        self, mine: Place, theirs: Place
    ) -> None:
        middle = granted(theirs.Lock("/b"))
        pending = theirs.waits(several(mine), 2, "/b")
        theirs.queued(1, "/a")
        theirs.gone("/c")
        own = theirs.queued(2, "/b")[1]
        granted(theirs.Lock("/c")).release()
        middle.release()
        grant = pending.result(SOON)
        assert grant.grants[1].path == f"{mine.path}/b/{own}"
        grant.release()

    def test_of_many_tidies_their_paths_up(self, client: Any, other: Any, zklock_path: str) -> None:
        paths = [f"{zklock_path}/{number:03}" for number in range(150)]
        held = granted(zklock.Lock(other, paths[140]))
        multi = zklock.MultiLock([zklock.Lock(client, path, tidy=True) for path in paths])
        assert multi.acquire(blocking=False) is None
        held.release()
        assert len(granted(multi, timeout=2 * SOON).tokens) == 150
        multi.release()
        gone(other, zklock_path)

    @pytest.mark.parametrize("of", ["all", "one"])
    def test_is_cancelled_before_there_is_an_answer(
        self, behind: Behind, theirs: Place, of: str
    ) -> None:
        far = behind(timeout=60.0)
        locks = [far.Lock(each) for each in AT]
        multi = far.front.MultiLock(locks)
        with multi:
            pass
        behind.proxy.hold(to_server=False)
        mark = behind.proxy.mark()
        pending = run(multi.acquire)
        behind.proxy.wait_for_frame(lambda it: it.op == "getChildren2", SOON, since=mark)
        (multi if of == "all" else locks[1]).cancel()
        with pytest.raises(zklock.AcquireCancelled):
            pending.result(SOON)
        behind.proxy.release()
        all_gone(theirs)
        with multi:
            pass

    def test_bad_input(self, mine: Place) -> None:
        make, lock = mine.front.MultiLock, mine.Lock()
        bad: list[tuple[Callable[[], Any], type[Exception], str]] = [
            (lambda: make([]), ValueError, "at least one"),
            (lambda: make([lock, mine.ReadLock()]), ValueError, "twice"),
            (lambda: make([lock, mine.path]), TypeError, "not one of"),
            (lambda: make([lock], on_lost=1), TypeError, "callable"),
            (lambda: make([lock], timeout=-1), ValueError, "must be 0 seconds or more, not -1"),
            (lambda: make([lock]).acquire(blocking=False, timeout=1), ValueError, "timeout"),
            (lambda: make([lock]).acquire(5), TypeError, "not 5: pass seconds as timeout="),
        ]
        for call, error, said in bad:
            with pytest.raises(error, match=said):
                call()
        assert mine.client.exists(mine.path) is None


class TestReleaseRequests:
    def test_nothing_is_taken_by_force(self, mine: Place, theirs: Place) -> None:
        asked: list[zklock.Grant] = []
        lock = mine.Lock(identity="me", on_release_requested=asked.append)
        grant = granted(lock)
        for count in (1, 2):
            theirs.Lock().request_release()
            wait_for(lambda: len(asked) == count, SOON, lambda: f"{count} requests")  # noqa: B023
        theirs.client.set(grant.path, b"__REVOKE__")  # in Curator's words
        wait_for(lambda: len(asked) == 3, SOON, "Curator's request")
        assert grant.held
        grant.verify(SOON)
        grant.release()

    def test_all_readers_are_asked_and_who_waits_is_not(self, mine: Place, theirs: Place) -> None:
        grants = [granted(mine.ReadLock()), granted(theirs.ReadLock())]
        pending = theirs.waits(theirs.WriteLock(), 3)
        asked = mine.ReadLock().request_release()
        assert [one.path for one in asked] == [grant.path for grant in grants]
        for grant in grants:
            grant.release()
        pending.result(SOON).release()


class TestBreaking:
    def test_only_who_was_meant(self, mine: Place, theirs: Place) -> None:
        lock = mine.Lock(identity="me")
        old = granted(lock)
        lock.release()
        grant = granted(lock)
        waiting = theirs.waits(theirs.Lock(), 2)
        late = next(one for one in lock.contenders() if not one.holds)
        for token in (old.token, late.token):
            with pytest.raises(zklock.NotOwner) as caught:
                theirs.Lock().break_lock(token)
            assert caught.value.holder == "me"
        grant.verify(SOON)
        grant.release()
        waiting.result(SOON).release()

    def test_the_next_one_is_granted(self, mine: Place, theirs: Place) -> None:
        semaphore = mine.Semaphore(limit=1)
        grant = granted(semaphore)
        pending = theirs.waits(theirs.Semaphore(limit=1), 2, "/leases")
        assert semaphore.break_lock() is not None
        assert pending.result(SOON).token > grant.token
        assert grant.lost.wait(SOON)
        pending.result().release()


def end_without_release(mine: Place, theirs: Place, at: str = "") -> None:
    grant = granted(mine.Lock(at, track_abandoned=True))
    theirs.Lock(at).break_lock()
    assert grant.lost.wait(SOON)


class TestAbandoned:
    def test_is_not_known_without_being_asked_for(self, mine: Place) -> None:
        with mine.Lock() as grant:
            assert grant.abandoned is None
        assert mine.client.get(mine.path)[0] == b""

    @pytest.mark.parametrize("end", ["expired", "broken"])
    def test_after_an_end_without_release(self, mine: Place, theirs: Place, end: str) -> None:
        lock, after = mine.Lock(track_abandoned=True), theirs.Lock(track_abandoned=True)
        for each in (lock, lock):
            with each as grant:
                assert grant.abandoned is False
                # Those who gave up change nothing.
                assert after.acquire(blocking=False) is None
                assert after.acquire(timeout=0.2) is None
        lost = granted(lock)
        after.break_lock() if end == "broken" else expire_session(mine.client)
        with after as found:
            assert found.abandoned is True
        with after as clean:
            assert clean.abandoned is False
        assert lost.lost.wait(SOON)

    @pytest.mark.parametrize("kind", ["Lock", "RLock"])
    def test_is_told_to_who_gets_it(self, mine: Place, theirs: Place, kind: str) -> None:
        """A ``MultiLock`` that gets one lock, and not the next, gives back what nobody has seen."""
        end_without_release(mine, theirs, "/a")
        lock = getattr(mine, kind)("/a", track_abandoned=True)
        both = mine.front.MultiLock([lock, mine.Lock("/b")])
        with theirs.Lock("/b"):
            assert both.acquire(timeout=0.2) is None
            theirs.gone("/a")
            with lock as grant:
                assert grant.abandoned is True
        with both as grants:
            assert grants.grants[0].abandoned is False

    def test_is_not_told_again_after_one_use_of_several(self, mine: Place, theirs: Place) -> None:
        end_without_release(mine, theirs, "/a")
        lock = mine.RLock("/a", track_abandoned=True)
        with theirs.Lock("/b"), lock as grant:
            assert grant.abandoned is True
            both = mine.front.MultiLock([lock, mine.Lock("/b")])
            assert both.acquire(timeout=0.2) is None
            assert grant.held
        with theirs.Lock("/a", track_abandoned=True) as grant:
            assert grant.abandoned is False

    def test_is_not_kept_in_somebody_elses_data(self, mine: Place, other: Any) -> None:
        other.create(mine.path, b"precious")
        with pytest.raises(zklock.ZkLockError, match="data"):
            mine.Lock(track_abandoned=True).acquire()
        mine.gone()
        mine.Lock().acquire().release()
        assert other.get(mine.path)[0] == b"precious"

    def test_the_next_grant_is_delayed(self, mine: Place, theirs: Place) -> None:
        lock, rival = mine.Lock(lock_delay=0.5), theirs.Lock(lock_delay=0.5)
        granted(lock)
        pending = theirs.waits(rival, 2)
        started = time.monotonic()
        rival.break_lock()
        assert rival.acquire(blocking=False) is None
        grant = pending.result(SOON)
        assert time.monotonic() - started >= 0.5
        assert (grant.abandoned, grant.held) == (True, True)
        grant.release()
        wait_for(lambda: not lock.held, SOON, "the broken holder is told")
        for each in (rival, lock):
            with each as clean:
                assert clean.abandoned is False

    @pytest.mark.parametrize("patience", [0, 0.2])
    def test_the_delay_ends_for_those_who_do_not_wait_so_long(
        self, mine: Place, theirs: Place, patience: float
    ) -> None:
        end_without_release(mine, theirs)
        began = now_of(theirs.client)
        grant = wait_for(lambda: theirs.Lock(lock_delay=0.7).acquire(timeout=patience), SOON)
        assert now_of(theirs.client) - began >= 0.699  # the server counts milliseconds
        assert grant.abandoned is True
        grant.release()
        with theirs.Lock(lock_delay=0.7) as clean:
            assert clean.abandoned is False

    @pytest.mark.parametrize("delay", [-1, float("inf"), float("nan"), True, "1"])
    def test_bad_delays(self, mine: Place, delay: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="lock_delay"):
            mine.Lock(lock_delay=delay)

    def test_costs_plain_locks_nothing(self, behind: Behind) -> None:
        proxy, far = behind.proxy, behind(timeout=60.0)
        with far.Lock():
            proxy.wait_for_frame(lambda f: f.kind is FrameKind.REPLY and f.op == "multi", SOON)
        costs = []
        for track in (False, True):
            before = proxy.counts.requests
            with far.Lock(track_abandoned=track):
                pass
            proxy.wait_until(lambda: proxy.counts.requests == proxy.counts.replies, SOON)
            costs.append(proxy.counts.requests - before)
        assert costs == [3, 5]


class TestTidy:
    def test_leaves_nothing_but_what_others_need(self, mine: Place, theirs: Place) -> None:
        lock = mine.Lock(tidy=True)
        tokens = []
        for _ in range(3):
            with lock as grant:
                tokens.append(grant.token)
            assert mine.client.exists(mine.path) is None
        assert tokens == sorted(set(tokens))
        with lock:
            pending = theirs.waits(theirs.Lock(), 2)
        with pending.result(SOON):
            assert mine.Lock(tidy=True).acquire(blocking=False) is None
        assert theirs.client.exists(mine.path) is not None  # who gives up tidies nothing

    @pytest.mark.parametrize("track", [False, True])
    def test_no_error_reaches_anybody(self, places: Places, track: bool) -> None:
        tokens: list[FencingToken] = []

        def work(place: Place, tidy: bool) -> None:
            lock = place.Lock(tidy=tidy, track_abandoned=track, timeout=2 * SOON)
            for _ in range(25):
                with lock as grant:
                    assert not grant.abandoned
                    tokens.append(grant.token)

        results([run(work, place, at != 3) for at, place in enumerate(places(4))], 4 * SOON)
        assert len(tokens) == 100
        assert tokens == sorted(set(tokens))


BAD_OPTIONS: dict[str, list[Any]] = {
    "identity": ["", b"x", 3, "a\0b", "x" * 5000, "ö" * 2049, "\ud800"],
    "timeout": [-1, "1", float("nan"), True],
    "on_lost": [1, "print"],
    "on_suspended": [0.5, 1],
    "on_release_requested": [1],
    "session_timeout": [0, -4, "4"],
    "lease_fraction": [0, 0.1, 0.9, float("nan"), True],
    "naming": ["java", 1],
}


@pytest.mark.parametrize("kind", ["Lock", "RLock", "ReadLock", "WriteLock", "Semaphore"])
class TestEveryKind:
    def test_bad_input_is_refused_at_once(
        self, front: Any, client: Any, zklock_path: str, kind: str
    ) -> None:
        make = partial(getattr(front, kind), client, **limited(kind))
        for path in ("", "relative", "/", f"{zklock_path}/", f"{zklock_path}/../x"):
            with pytest.raises(ValueError, match="path"):
                make(path)
        for name, values in BAD_OPTIONS.items():
            for value in values:
                with pytest.raises((TypeError, ValueError), match=name):
                    make(zklock_path, **{name: value})
        with pytest.raises(TypeError, match="path"):
            make(None)
        with pytest.raises(ValueError, match="tidy"):
            make(zklock_path, naming="kazoo", tidy=True)
        with pytest.raises(TypeError):
            make(zklock_path, nonsense=1)
        assert client.exists(zklock_path) is None

    def test_names_for_kazoo(self, mine: Place, theirs: Place, kind: str) -> None:
        make = getattr(mine, kind)
        if kind == "Semaphore":
            with pytest.raises(ValueError, match="does not work with this one"):
                make(limit=1, naming="kazoo")
            return
        lock = make(naming="kazoo")
        with lock as grant:
            (name,) = theirs.nodes()
            assert re.search("__r?lock__[0-9]{10}$", name)
            assert grant.path == f"{mine.path}/{name}"
            pending = mine.waits(theirs.WriteLock(naming="kazoo"), 2)
            assert [each.holds for each in lock.contenders()] == [True, False]
        pending.result(SOON).release()
        theirs.gone()

    def test_a_session_that_ends_is_told_of(self, mine: Place, theirs: Place, kind: str) -> None:
        losses = Losses()
        lock = getattr(mine, kind)(on_lost=losses, **limited(kind))
        with pytest.raises(zklock.LockLost), lock as grant:
            expire_session(mine.client)
            assert grant.lost.wait(SOON)
        loss = losses.one()
        # ZooKeeper deletes the nodes first; who watches them can be told of that alone.
        assert loss.reason in {LossReason.SESSION_EXPIRED, LossReason.NODE_DELETED}
        assert (loss.grant, grant.held, grant.remaining()) == (grant, False, 0.0)
        with getattr(theirs, kind)(**limited(kind)) as after:
            assert after.token > grant.token
        with lock as again:
            assert again.session_id not in {0, grant.session_id}
        assert len(losses.losses) == 1


def limited(kind: str) -> dict[str, Any]:
    return {"limit": 1} if kind == "Semaphore" else {}


class TestVerifyOwner:
    def test_knows_every_kind(self, mine: Place, theirs: Place) -> None:
        verify = partial(verify_owner, theirs.client, mine.path)
        writer = mine.WriteLock()
        grant = granted(writer)
        pending = mine.waits(theirs.ReadLock(), 2)
        later = writer.contenders()[1].token
        assert later is not None
        assert verify(grant).path == grant.path
        with pytest.raises(zklock.NotOwner):
            verify(later)
        writer.downgrade()
        reading = pending.result(SOON)
        for each in (grant, reading):
            assert verify(each).path == each.path
        grant.release()
        assert verify(reading).path == reading.path
        reading.release()
        with pytest.raises(zklock.NotOwner):
            verify(reading)

    def test_knows_permits(self, mine: Place, theirs: Place) -> None:
        verify = partial(verify_owner, theirs.client, mine.path, limit=2)
        semaphore = mine.Semaphore(limit=2)
        first, second = granted(semaphore), granted(semaphore)
        for each in (first, second):
            assert verify(each).path == each.path
        first.release()
        with pytest.raises(zklock.NotOwner):
            verify(first)
        assert verify(second).path == second.path
        second.release()
