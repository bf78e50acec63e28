"""What each kind of lock promises beyond the plain one, on a real server."""

from __future__ import annotations

import gc
import itertools
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from kazoo.security import make_acl, make_digest_acl

import zklock
from tests.contract.support import (
    SOON,
    Losses,
    children,
    gone,
    granted,
    now_of,
    queued,
    reaches,
    run,
)
from tests.modes import bounded
from tests.stopwatch import Stopwatch
from zklock._locks.base import LockBase
from zklock.fencing import verify_owner
from zklock.testing import FaultProxy, FrameKind, ZooKeeperServer, expire_session, wait_for
from zklock.token import FencingToken

Connect = Callable[..., Any]


@pytest.fixture
def client(zklock_connect: Connect) -> Any:
    return zklock_connect()


def in_thread(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call on another thread, and wait for what comes of it."""
    return run(call, *args, **kwargs).result(SOON)


def waits(pending: Future[Any], client: Any, path: str, count: int) -> None:
    """Insist that it is queued, as the ``count``-th, and not granted."""
    queued(client, path, count)
    assert not pending.done()


def watches(proxy: FaultProxy) -> int:
    """Count the nodes that were read, and so watched, by those who wait."""
    return sum(f.op == "getData" and f.kind is FrameKind.REPLY for f in proxy.frames)


class TestRLock:
    def test_shares_its_grant(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        lock = z.RLock(client, zklock_path)
        rival = z.Lock(other, zklock_path)
        with lock as outer:
            with lock as inner:
                assert inner == outer
                assert lock.acquire() == outer
                assert len(children(other, zklock_path)) == 1
                lock.release()
            assert outer.held
            assert rival.acquire(blocking=False) is None
        assert outer.released
        granted(rival).release()

    def test_is_one_threads(self, z: Any, client: Any, zklock_path: str) -> None:
        lock = z.RLock(client, zklock_path)
        grant = granted(lock)
        assert in_thread(lock.acquire, blocking=False) is None
        with pytest.raises(zklock.WrongThread):
            in_thread(lock.release)
        waiting = run(granted, lock)
        waits(waiting, client, zklock_path, 2)
        lock.release()
        assert waiting.result(SOON).token > grant.token
        waiting.result().release()

    @pytest.mark.hazard("H36")
    def test_is_not_acquired_anew_before_every_use_is_told_of_the_loss(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        lock = z.RLock(client, zklock_path)
        grant = granted(lock)
        assert lock.acquire() == grant
        assert lock.acquire() == grant
        other.delete(grant.path)
        assert grant.lost.wait(SOON)
        for _ in range(3):
            with pytest.raises(zklock.LockLost):
                lock.acquire()
            assert lock.grant == grant
            with pytest.raises(zklock.LockLost):
                lock.release()
        assert children(other, zklock_path) == []
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

    def test_can_be_released_by_its_grant(self, z: Any, client: Any, zklock_path: str) -> None:
        lock = z.RLock(client, zklock_path)
        first = granted(lock)
        assert lock.acquire() == first
        first.release()
        second = granted(lock)
        assert second.token > first.token
        lock.release()
        with pytest.raises(zklock.NotHeld):
            lock.release()


def plain(z: Any, client: Any, path: str) -> Any:
    return z.Lock(client, path)


def re_entrant(z: Any, client: Any, path: str) -> Any:
    return z.RLock(client, path)


def writing(z: Any, client: Any, path: str) -> Any:
    return z.WriteLock(client, path)


Kind = Callable[[Any, Any, str], Any]


class TestWaitingForOneself:
    @pytest.mark.hazard("H38")
    @pytest.mark.parametrize("held", [plain, re_entrant, writing])
    @pytest.mark.parametrize("asked", [plain, re_entrant, writing])
    def test_is_refused_at_once(
        self, z: Any, client: Any, other: Any, zklock_path: str, held: Kind, asked: Kind
    ) -> None:
        first = granted(held(z, client, zklock_path))
        again = asked(z, client, zklock_path)
        for call in (again.acquire, again.__enter__, z.MultiLock([again]).acquire):
            with pytest.raises(zklock.WouldDeadlock, match="would deadlock") as caught:
                call()
            assert (caught.value.path, caught.value.token) == (zklock_path, first.token)
        assert len(children(other, zklock_path)) == 1
        assert again.acquire(blocking=False) is None
        assert again.acquire(timeout=0.05) is None
        first.release()
        granted(again, timeout=None).release()

    @pytest.mark.hazard("H38")
    def test_is_refused_behind_an_older_grant(self, z: Any, client: Any, zklock_path: str) -> None:
        older, newest = (granted(z.ReadLock(client, zklock_path)) for _ in range(2))
        newest.release()
        lock = z.Lock(client, zklock_path)
        with pytest.raises(zklock.WouldDeadlock, match=str(older.token)):
            lock.acquire()
        older.release()
        granted(lock).release()

    def test_is_not_what_others_do(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        lock = z.Lock(client, zklock_path)
        first = granted(lock)
        waiting = [run(lock.acquire), run(z.Lock(other, zklock_path).acquire)]
        queued(other, zklock_path, 3)
        first.release()
        for _ in waiting:
            wait_for(lambda: any(each.done() for each in waiting), SOON)
            (next_one,) = [each for each in waiting if each.done()]
            waiting.remove(next_one)
            next_one.result().release()

    def test_is_not_to_wait_for_whom_the_grant_was_handed_to(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        lock = z.Lock(client, zklock_path)

        def work() -> None:
            first = granted(lock)
            in_thread(first.release)
            second = granted(lock, timeout=None)

            def release_once_queued() -> None:
                queued(other, zklock_path, 2)
                second.release()

            releasing = run(release_once_queued)
            granted(lock).release()
            releasing.result(SOON)

        in_thread(work)

    def test_is_not_to_wait_after_a_loss(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        lock = z.Lock(client, zklock_path)
        first = granted(lock)
        other.delete(first.path)
        assert first.lost.wait(SOON)
        granted(lock, timeout=None).release()

    def test_is_not_to_read_twice(self, z: Any, client: Any, zklock_path: str) -> None:
        first, second = (z.ReadLock(client, zklock_path) for _ in "ab")
        with first, second:
            pass


def refusal(lock: Any) -> zklock.AcquireTimeout:
    """Return the error of a ``with`` that is not granted in time, but had time to look."""

    def look() -> zklock.AcquireTimeout | None:
        with pytest.raises(zklock.AcquireTimeout) as caught:
            lock.__enter__()
        return caught.value if caught.value.behind else None

    return wait_for(look, SOON)


class TestNotInTime:
    def test_is_told_with_place_and_holder(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        first = granted(z.Lock(other, zklock_path, identity="first"))
        second = run(granted, z.Lock(other, zklock_path, identity="second"))
        late = z.Lock(client, zklock_path, timeout=0.2)
        waits(second, client, zklock_path, 2)
        error = refusal(late)
        assert (error.ahead, error.behind) == (2, "second")
        assert "with 2 contenders before it, the nearest 'second'" in str(error)
        first.release()
        second.result(SOON)
        error = refusal(late)
        assert (error.ahead, error.behind) == (1, "second")
        assert "held by 'second'" in str(error)
        second.result().release()

    def test_is_told_without_an_answer(
        self, z: Any, zklock_proxy: FaultProxy, zklock_connect: Connect, zklock_path: str
    ) -> None:
        late = z.Lock(zklock_connect(zklock_proxy.hosts), zklock_path, timeout=0.05)
        zklock_proxy.hold()
        with pytest.raises(zklock.AcquireTimeout, match=r"within 0\.05 s: try") as caught:
            late.__enter__()
        assert (caught.value.ahead, caught.value.behind) == (None, None)


class TestReadWrite:
    def test_readers_share_and_writers_do_not(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        one, two = (z.ReadLock(each, zklock_path) for each in (client, other))
        writer = z.WriteLock(other, zklock_path)
        first = granted(one)
        second = granted(two)
        assert first.held
        assert second.held
        pending = run(granted, writer)
        waits(pending, client, zklock_path, 3)
        assert [each.holds for each in one.contenders()] == [True, True, False]
        first.release()
        queued(client, zklock_path, 2)
        assert not pending.done()
        second.release()
        write = pending.result(SOON)
        assert write.token > second.token > first.token
        assert in_thread(one.acquire, blocking=False) is None
        write.release()

    def test_a_reader_queues_behind_an_earlier_writer(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        reader = z.ReadLock(client, zklock_path)
        first = granted(reader)
        writing = run(granted, z.WriteLock(other, zklock_path))
        waits(writing, client, zklock_path, 2)
        late = run(granted, z.ReadLock(other, zklock_path))
        waits(late, client, zklock_path, 3)
        first.release()
        write = writing.result(SOON)
        assert not late.done()
        write.release()
        late.result(SOON).release()

    def test_a_release_wakes_who_can_run_and_nobody_else(
        self,
        z: Any,
        zklock_proxy: FaultProxy,
        zklock_connect: Connect,
        other: Any,
        zklock_path: str,
    ) -> None:
        """Writer, two readers, a writer, a reader, each behind a proxy that counts events."""
        kinds = [z.ReadLock, z.ReadLock, z.WriteLock, z.ReadLock]
        holder = granted(z.WriteLock(other, zklock_path))
        proxy = zklock_proxy
        clients = [zklock_connect(proxy.hosts, timeout=60.0) for _ in kinds]
        pending = []
        for number, (kind, each) in enumerate(zip(kinds, clients, strict=True)):
            pending.append(run(granted, kind(each, zklock_path)))
            queued(other, zklock_path, 2 + number)
        # The last two have several before them, and do not watch their own nodes.
        proxy.wait_until(lambda: watches(proxy) == 2 + 2 + 1 + 1, SOON)

        def told(grant: zklock.Grant) -> int:
            """Count those that were told of its end; a reader here watches its own node, too."""
            events = [frame for frame in proxy.frames if frame.kind is FrameKind.EVENT]
            return sum(frame.path == grant.path for frame in events)

        holder.release()
        one, two = (each.result(SOON) for each in pending[:2])
        assert told(holder) == 2
        one.release()
        queued(other, zklock_path, 3)
        two.release()
        write = pending[2].result(SOON)
        assert told(one) == 1  # itself: the writer watches the nearest before it
        assert told(two) == 2
        assert not pending[3].done()
        write.release()
        pending[3].result(SOON).release()
        assert told(write) == 1

    def test_downgrade_lets_readers_in_and_no_writer(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        writer = z.WriteLock(client, zklock_path)
        grant = granted(writer)
        before = run(granted, z.ReadLock(other, zklock_path))
        waits(before, client, zklock_path, 2)
        writing = run(granted, z.WriteLock(other, zklock_path))
        waits(writing, client, zklock_path, 3)
        behind = run(granted, z.ReadLock(other, zklock_path))
        waits(behind, client, zklock_path, 4)
        assert writer.downgrade() == grant
        reading = before.result(SOON)
        assert grant.held
        assert [each.holds for each in writer.contenders()] == [True, True, False, False]
        identities = [each.identity for each in writer.contenders()]
        assert identities[0] == grant.identity
        assert writer.downgrade() == grant  # once more changes nothing
        grant.release()
        queued(client, zklock_path, 3)
        assert not writing.done()
        reading.release()
        write = writing.result(SOON)
        assert not behind.done()
        write.release()
        behind.result(SOON).release()

    def test_a_reader_that_does_not_wait_gets_past_a_downgraded_writer(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        writer = z.WriteLock(client, zklock_path)
        reader = z.ReadLock(other, zklock_path)
        with writer:
            assert reader.acquire(blocking=False) is None
            writer.downgrade()
            grant = reader.acquire(blocking=False)
            assert grant is not None
            assert z.WriteLock(other, zklock_path + "x").acquire(blocking=False) is not None
            assert in_thread(z.WriteLock(other, zklock_path).acquire, blocking=False) is None
        assert grant.held
        reader.release()
        other.delete(zklock_path + "x", recursive=True)

    def test_there_is_no_upgrade(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        reader = z.ReadLock(client, zklock_path)
        writer = z.WriteLock(client, zklock_path)
        with reader:
            for options in ({}, {"blocking": False}, {"timeout": 1.0}):
                with pytest.raises(zklock.WouldDeadlock, match="upgrade"):
                    writer.acquire(**options)
            assert len(children(other, zklock_path)) == 1
            assert in_thread(writer.acquire, blocking=False) is None  # another thread may ask
        with writer:
            with pytest.raises(zklock.WouldDeadlock, match="downgrade"):
                reader.acquire()
            writer.downgrade()
            with reader, pytest.raises(zklock.WouldDeadlock, match="upgrade"):
                writer.acquire()
        gone(other, zklock_path)

    def test_downgrade_needs_the_lock(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        writer = z.WriteLock(client, zklock_path)
        with pytest.raises(zklock.NotHeld):
            writer.downgrade()
        grant = granted(writer)
        with pytest.raises(zklock.WrongThread):
            in_thread(writer.downgrade)
        other.delete(grant.path)
        with pytest.raises(zklock.LockLost):
            writer.downgrade()

    def test_many_of_both_kinds(self, z: Any, zklock_connect: Connect, zklock_path: str) -> None:
        """Readers and writers of three sessions: nobody beside a writer, everybody served."""
        guard, inside = threading.Lock(), {"readers": 0, "writers": 0}
        tokens: list[FencingToken] = []

        def work(client: Any, seed: int) -> None:
            for at in range(30):
                write = (seed + at) % 3 == 0
                kind = z.WriteLock if write else z.ReadLock
                with kind(client, zklock_path, timeout=2 * SOON) as grant:
                    with guard:
                        inside["writers" if write else "readers"] += 1
                        assert inside["writers"] <= 1
                        assert not (inside["writers"] and inside["readers"])
                        if write:
                            tokens.append(grant.token)
                    if write and at % 2:
                        assert grant.held
                    with guard:
                        inside["writers" if write else "readers"] -= 1

        clients = [zklock_connect() for _ in range(3)]
        running = [run(work, each, seed) for seed, each in enumerate(clients * 3)]
        for each in running:
            each.result(4 * SOON)
        assert tokens == sorted(tokens)


class TestSemaphore:
    def test_gives_so_many_permits(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        one, two = (z.Semaphore(each, zklock_path, limit=3) for each in (client, other))
        pair = one.acquire(permits=2)
        assert pair is not None
        assert len(pair.tokens) == 2
        assert pair.token == max(pair.tokens)
        single = granted(two)
        assert single.tokens == (single.token,)
        assert single.token > pair.token
        assert two.acquire(blocking=False) is None
        assert one.acquire(timeout=0.2) is None
        pending = run(two.acquire, timeout=SOON, permits=2)
        waits(pending, client, f"{zklock_path}/locks", 1)
        single.release()
        queued(client, f"{zklock_path}/leases", 4)  # two of the holder's, two of who waits
        assert not pending.done()
        one.release()
        again = pending.result(SOON)
        assert again is not None
        assert again.tokens[0] > single.token
        again.release()
        gone(client, f"{zklock_path}/leases")
        gone(client, f"{zklock_path}/locks")

    def test_is_fair_to_those_who_want_many(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        semaphore = z.Semaphore(client, zklock_path, limit=2)
        first, second = granted(semaphore), granted(semaphore)
        many = run(z.Semaphore(other, zklock_path, limit=2).acquire, timeout=SOON, permits=2)
        waits(many, client, f"{zklock_path}/locks", 1)
        late = run(granted, semaphore)
        waits(late, client, f"{zklock_path}/locks", 2)
        first.release()
        queued(client, f"{zklock_path}/leases", 3)
        assert not late.done()
        second.release()
        both = many.result(SOON)
        assert both is not None
        assert not late.done()
        both.release()
        late.result(SOON).release()

    def test_two_that_want_several_do_not_wait_for_each_other(
        self, z: Any, zklock_connect: Connect, zklock_path: str
    ) -> None:
        guard, out = threading.Lock(), [0]

        def work(client: Any, permits: int) -> None:
            semaphore = z.Semaphore(client, zklock_path, limit=4)
            for _ in range(15):
                grant = semaphore.acquire(timeout=2 * SOON, permits=permits)
                assert grant is not None
                with guard:
                    out[0] += permits
                    assert out[0] <= 4
                with guard:
                    out[0] -= permits
                semaphore.release()

        clients = [zklock_connect() for _ in range(3)]
        running = [
            run(work, each, permits)
            for each, permits in zip(clients * 2, itertools.cycle((3, 2, 1, 4)))
        ]
        for each in running:
            each.result(4 * SOON)

    def test_a_permit_that_is_given_back_wakes_one(
        self,
        z: Any,
        zklock_proxy: FaultProxy,
        zklock_connect: Connect,
        other: Any,
        zklock_path: str,
    ) -> None:
        semaphore = z.Semaphore(other, zklock_path, limit=2)
        held = [granted(semaphore), granted(semaphore)]
        proxy = zklock_proxy
        clients = [zklock_connect(proxy.hosts, timeout=60.0) for _ in range(4)]
        pending = []
        for number, each in enumerate(clients):
            pending.append(run(granted, z.Semaphore(each, zklock_path, limit=2)))
            queued(other, f"{zklock_path}/locks", 1 + number)
        queued(other, f"{zklock_path}/leases", 3)
        proxy.wait_until(lambda: proxy.counts.requests == proxy.counts.replies, SOON)
        events = len([f for f in proxy.frames if f.kind is FrameKind.EVENT])
        assert events == 0
        held[0].release()
        pending[0].result(SOON)
        queued(other, f"{zklock_path}/leases", 3)
        queued(other, f"{zklock_path}/locks", 3)
        proxy.wait_until(lambda: proxy.counts.requests == proxy.counts.replies, SOON)
        connections = {f.connection for f in proxy.frames if f.kind is FrameKind.EVENT}
        # The one that was granted, and the next, which is the first in the queue now.
        assert len(connections) == 2
        assert not any(each.done() for each in pending[1:])
        held[1].release()
        for waiting in pending:
            waiting.result(SOON).release()

    def test_keeps_its_limit(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        z.Semaphore(client, zklock_path, limit=2).acquire()
        assert other.get(zklock_path)[0] == b"2"
        for limit in (1, 3):
            with pytest.raises(zklock.LimitMismatch, match="stored limit is 2") as caught:
                z.Semaphore(other, zklock_path, limit=limit).acquire()
            assert (caught.value.kept, caught.value.path) == (2, zklock_path)
        with pytest.raises(zklock.LimitMismatch, match="never"):
            z.Semaphore(other, zklock_path, limit=None).acquire(permits=3)
        assert len(children(other, f"{zklock_path}/leases")) == 1
        gone(other, f"{zklock_path}/locks")
        granted(z.Semaphore(other, zklock_path, limit=None))

    def test_needs_a_limit(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        with pytest.raises(zklock.LimitMismatch, match="no limit"):
            z.Semaphore(client, zklock_path, limit=None).acquire()
        assert other.exists(zklock_path) is None
        other.create(zklock_path, b"zwei", makepath=True)
        with pytest.raises(zklock.ZkLockError, match="not a semaphore's"):
            z.Semaphore(client, zklock_path, limit=2).acquire()
        gone(other, f"{zklock_path}/locks")

    def test_changes_its_limit(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        semaphore = z.Semaphore(client, zklock_path, limit=1)
        first = granted(semaphore)
        free = z.Semaphore(other, zklock_path, limit=None)
        pending = run(granted, free)
        queued(client, f"{zklock_path}/leases", 2)
        assert not pending.done()
        semaphore.set_limit(2)
        assert semaphore.limit == 2
        second = pending.result(SOON)
        semaphore.set_limit(1)
        assert free.acquire(blocking=False) is None
        assert second.held  # nothing is taken away
        second.release()
        first.release()
        granted(semaphore).release()

    def test_that_goes_by_what_is_kept_still_does_when_it_has_changed_that(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        z.Semaphore(other, zklock_path, limit=1).acquire().release()
        free = z.Semaphore(client, zklock_path, limit=None)
        free.set_limit(2)
        z.Semaphore(other, zklock_path, limit=None).set_limit(3)
        assert free.limit is None
        grant = free.acquire(permits=3)
        assert grant is not None
        grant.release()

    def test_is_lost_as_a_whole(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        losses = Losses()
        semaphore = z.Semaphore(client, zklock_path, limit=3, on_lost=losses)
        grant = semaphore.acquire(permits=3)
        assert grant is not None
        nodes = queued(other, f"{zklock_path}/leases", 3)
        other.delete(f"{zklock_path}/leases/{nodes[1]}")
        with pytest.raises(zklock.LockLost):
            grant.verify(SOON)
        assert losses.one().reason is zklock.LossReason.NODE_DELETED
        gone(other, f"{zklock_path}/leases")
        with pytest.raises(zklock.LockLost):
            semaphore.release()
        again = semaphore.acquire(blocking=False, permits=3)
        assert again is not None
        again.release()

    def test_a_session_that_ends_gives_its_permits_back(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        semaphore = z.Semaphore(other, zklock_path, limit=2)
        lost = z.Semaphore(client, zklock_path, limit=2).acquire(permits=2)
        assert lost is not None
        pending = run(granted, semaphore)
        waits(pending, client, f"{zklock_path}/locks", 1)
        expire_session(client)
        grant = pending.result(SOON)
        assert grant.token > lost.token
        assert lost.lost.wait(SOON)
        grant.release()

    def test_tells_who_has_permits_and_who_waits(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        one = z.Semaphore(client, zklock_path, limit=1, identity="one")
        two = z.Semaphore(other, zklock_path, limit=1, identity="two")
        assert (one.contenders(), one.holder()) == ([], None)
        grant = granted(one)
        pending = run(granted, two)
        queued(client, f"{zklock_path}/leases", 2)
        having, waiting = one.contenders()
        assert (having.identity, having.token, having.holds) == ("one", grant.token, True)
        assert (waiting.identity, waiting.holds, waiting.token) == ("two", False, None)
        assert one.holder() == having
        grant.release()
        pending.result(SOON).release()

    def test_one_that_gathers_is_thrown_out_by_an_operator(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        held = granted(z.Semaphore(other, zklock_path, limit=1))
        pending = run(granted, z.Semaphore(client, zklock_path, limit=1))
        (node,) = queued(other, f"{zklock_path}/locks", 1)
        queued(other, f"{zklock_path}/leases", 2)
        other.delete(f"{zklock_path}/locks/{node}")
        wait_for(
            lambda: children(other, f"{zklock_path}/locks") not in ([], [node]),
            SOON,
            lambda: "it did not queue again",
        )
        queued(other, f"{zklock_path}/leases", 2)
        assert not pending.done()
        held.release()
        pending.result(SOON).release()

    @pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
    def test_bad_limits(self, z: Any, client: Any, zklock_path: str, limit: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="limit"):
            z.Semaphore(client, zklock_path, limit=limit)
        with pytest.raises((TypeError, ValueError), match="limit"):
            z.Semaphore(client, zklock_path, limit=1).set_limit(limit)
        assert client.exists(zklock_path) is None

    @pytest.mark.parametrize("permits", [0, -1, True, 1.5, "2", 3])
    def test_bad_permits(self, z: Any, client: Any, zklock_path: str, permits: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="permits"):
            z.Semaphore(client, zklock_path, limit=2).acquire(permits=permits)
        assert client.exists(zklock_path) is None

    def test_is_not_tidied(self, z: Any, client: Any, zklock_path: str) -> None:
        with pytest.raises(ValueError, match="limit"):
            z.Semaphore(client, zklock_path, limit=1, tidy=True)


@pytest.fixture
def paths(zklock_path: str, client: Any) -> Iterator[list[str]]:
    yield [f"{zklock_path}/{name}" for name in "cab"]
    if client.exists(zklock_path):
        client.delete(zklock_path, recursive=True)


class TestMultiLock:
    def test_all_of_them(self, z: Any, client: Any, other: Any, paths: list[str]) -> None:
        multi = z.MultiLock([z.Lock(client, path) for path in paths])
        assert multi.paths == sorted(paths)
        with multi as grant:
            assert (grant.held, multi.held, multi.grant) == (True, True, grant)
            assert list(grant.tokens) == sorted(paths)
            assert 0 < grant.remaining() <= 10.0
            grant.check()
            grant.verify(SOON)
            for path in paths:
                assert z.Lock(other, path).acquire(blocking=False) is None
        assert (grant.held, multi.held, multi.grant) == (False, False, None)
        for path in paths:
            granted(z.Lock(other, path)).release()
        with pytest.raises(zklock.NotHeld):
            multi.release()

    def test_or_none(self, z: Any, client: Any, other: Any, paths: list[str]) -> None:
        last = granted(z.Lock(other, max(paths)))
        multi = z.MultiLock([z.Lock(client, path) for path in paths], timeout=0.3)
        assert multi.acquire(blocking=False) is None
        started = time.monotonic()
        assert multi.acquire() is None
        assert 0.3 <= time.monotonic() - started < SOON
        with pytest.raises(zklock.AcquireTimeout):
            multi.__enter__()
        for path in sorted(paths)[:-1]:
            gone(other, path)
        queued(other, max(paths), 1)
        last.release()
        with multi:
            pass

    def test_in_one_order(self, z: Any, zklock_connect: Connect, paths: list[str]) -> None:
        def work(client: Any, order: list[str]) -> None:
            multi = z.MultiLock([z.Lock(client, path) for path in order])
            for _ in range(20):
                grant = multi.acquire(timeout=2 * SOON)
                assert grant is not None
                multi.release()

        clients = [zklock_connect() for _ in range(3)]
        orders = itertools.permutations(paths)
        running = [run(work, *each) for each in zip(clients * 2, orders, strict=True)]
        for each in running:
            each.result(4 * SOON)

    def test_of_any_kinds_and_clients(
        self, z: Any, client: Any, other: Any, paths: list[str]
    ) -> None:
        read, write, permit = paths
        reader = z.ReadLock(client, read)
        with (
            z.ReadLock(other, read),
            z.MultiLock(
                [reader, z.WriteLock(other, write), z.Semaphore(client, permit, limit=2)]
            ) as grant,
        ):
            assert grant.held
        outer = z.RLock(client, write)
        with outer as held:
            with z.MultiLock([outer, z.Lock(client, read)]):
                pass
            assert held.held

    def test_tells_once_which_was_lost(
        self, z: Any, client: Any, other: Any, paths: list[str]
    ) -> None:
        losses, late = Losses(), Losses()
        multi = z.MultiLock([z.Lock(client, path) for path in paths], on_lost=losses)
        grant = multi.acquire()
        assert grant is not None
        other.delete(grant.grants[1].path)
        assert grant.lost.wait(SOON)
        assert grant.grants[1] == losses.one().grant
        assert not grant.held
        assert grant.grants[0].held
        with pytest.raises(zklock.LockLost, match=grant.grants[1].lock_path):
            grant.check()
        grant.add_lost_callback(late)
        assert late.one() == losses.one()
        other.delete(grant.grants[0].path)
        assert grant.grants[0].lost.wait(SOON)
        with pytest.raises(zklock.LockLost):
            multi.release()
        for path in paths:
            gone(other, path)
        assert len(losses.losses) == 1

    def test_a_loss_while_waiting_is_made_good(
        self, z: Any, client: Any, other: Any, paths: list[str]
    ) -> None:
        last = granted(z.Lock(other, max(paths)))
        pending = run(z.MultiLock([z.Lock(client, path) for path in paths]).acquire)
        waits(pending, other, max(paths), 2)
        (node,) = wait_for(lambda: children(other, min(paths)), SOON)
        reaches(client, now_of(client) + 3.0)  # it watches its node by now
        other.delete(f"{min(paths)}/{node}")
        last.release()
        grant = pending.result(SOON)
        assert grant is not None
        assert grant.held
        assert children(other, min(paths)) != [node]
        grant.release()

    @pytest.mark.hazard("H36")
    def test_a_re_entrant_lock_that_is_lost_while_waiting_is_not_made_good(
        self, z: Any, client: Any, other: Any, paths: list[str]
    ) -> None:
        last = granted(z.Lock(other, max(paths)))
        outer = z.RLock(client, min(paths))
        multi = z.MultiLock([outer, z.Lock(client, max(paths))])

        def work() -> None:
            granted(outer)
            multi.acquire(timeout=SOON)

        pending = run(work)
        waits(pending, other, max(paths), 2)
        (node,) = children(other, min(paths))
        other.delete(f"{min(paths)}/{node}")
        assert outer.grant.lost.wait(SOON)
        last.release()
        with pytest.raises(zklock.LockLost):
            pending.result(SOON)
        for path in paths:
            gone(other, path)

    def test_within_itself(self, z: Any, client: Any, other: Any, paths: list[str]) -> None:
        multi = z.MultiLock([z.RLock(client, path) for path in paths])
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
        for path in paths:
            gone(other, path)

    def test_keeps_nothing_that_is_over(self, client: Any, paths: list[str]) -> None:
        multi = zklock.MultiLock([zklock.Lock(client, path) for path in paths])

        def over() -> weakref.ref[zklock.MultiGrant]:
            grant = multi.acquire()
            assert grant is not None
            grant.release()
            return weakref.ref(grant)

        known = [over() for _ in range(20)]
        assert multi.grant is None
        over()
        gc.collect()
        assert [each() for each in known] == [None] * 20

    def test_leaves_nothing_in_what_is_held_on(self, client: Any, paths: list[str]) -> None:
        held = zklock.RLock(client, paths[0])
        outer = held.acquire()
        assert outer is not None
        multi = zklock.MultiLock([held, zklock.Lock(client, paths[1])])

        def over() -> weakref.ref[zklock.MultiGrant]:
            grant = multi.acquire()
            assert grant is not None
            grant.release()
            return weakref.ref(grant)

        known = over()
        assert multi.grant is None
        over()
        gc.collect()
        assert known() is None
        assert outer.held
        outer.release()

    def test_of_which_nothing_is_heard_after_the_release(
        self, z: Any, client: Any, other: Any, paths: list[str]
    ) -> None:
        losses, late = Losses(), Losses()
        outer = z.RLock(client, paths[0])
        grant = granted(outer)
        inner = z.MultiLock([outer], on_lost=losses).acquire()
        inner.release()
        grant.add_lost_callback(late)
        other.delete(grant.path)
        late.one()
        assert not losses.losses

    def test_of_one_chroot(
        self, z: Any, zklock_connect: Connect, zklock_hosts: str, other: Any, zklock_path: str
    ) -> None:
        for name in "12":
            other.ensure_path(f"{zklock_path}/root/{name}")
        client = zklock_connect(f"{zklock_hosts}{zklock_path}/root")
        grant = z.MultiLock([z.Lock(client, "/1"), z.Lock(client, "/2")]).acquire(timeout=SOON)
        assert [one.path.partition("/_c_")[0] for one in grant.grants] == ["/1", "/2"]
        grant.verify()
        grant.release()
        for name in "12":
            gone(other, f"{zklock_path}/root/{name}")

    def test_of_two_chroots(
        self, z: Any, zklock_connect: Connect, zklock_hosts: str, other: Any, zklock_path: str
    ) -> None:
        for below in "ab":
            other.ensure_path(f"{zklock_path}/{below}")
        first, second = (zklock_connect(f"{zklock_hosts}{zklock_path}/{each}") for each in "ab")
        inside = z.MultiLock([z.Lock(first, "/2"), z.Lock(second, "/1")])
        outside = z.MultiLock(
            [z.Lock(other, f"{zklock_path}/b/1"), z.Lock(other, f"{zklock_path}/a/2")]
        )
        assert inside.paths == ["/2", "/1"]

        def work(multi: Any) -> None:
            for _ in range(20):
                assert multi.acquire(timeout=SOON) is not None
                multi.release()

        for each in [run(work, multi) for multi in (inside, outside)]:
            each.result(2 * SOON)
        for path in ("a/2", "b/1"):
            gone(other, f"{zklock_path}/{path}")
        with pytest.raises(ValueError, match="twice"):
            z.MultiLock([z.Lock(first, "/2"), z.Lock(other, f"{zklock_path}/a/2")])
        with z.MultiLock([z.Lock(first, "/1"), z.Lock(second, "/1")]) as grant:
            assert [each.lock_path for each in grant.grants] == ["/1", "/1"]
            with pytest.raises(ValueError, match="grants"):
                _ = grant.tokens

    def test_of_one_path_on_two_ensembles(
        self, z: Any, zklock_connect: Connect, other: Any, zklock_path: str
    ) -> None:
        with ZooKeeperServer() as server:
            here, there = zklock_connect(), zklock_connect(server.hosts)
            clients = [(here, there), (other, zklock_connect(server.hosts))]
            multis = [z.MultiLock([z.Lock(each, zklock_path) for each in two]) for two in clients]

            def work(multi: Any) -> None:
                for _ in range(10):
                    grant = multi.acquire(timeout=SOON)
                    assert grant is not None
                    assert len({each.session_id for each in grant.grants}) == 2
                    multi.release()

            for each in [run(work, multi) for multi in multis]:
                each.result(2 * SOON)
            for client in (here, there):
                gone(client, zklock_path)

    @pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0.3}], ids=str)
    def test_of_an_ensemble_that_does_not_answer(
        self,
        z: Any,
        zklock_proxy: FaultProxy,
        zklock_connect: Connect,
        other: Any,
        zklock_path: str,
        how: dict[str, Any],
    ) -> None:
        silent = zklock_connect(zklock_proxy.hosts, timeout=30.0)
        multi = z.MultiLock([z.Lock(other, zklock_path), z.Lock(silent, zklock_path)])
        zklock_proxy.hold(to_server=False)
        with Stopwatch() as watch:
            assert multi.acquire(**how) is None
        assert watch.awake < bounded(2.0)

    def test_is_cancelled(self, z: Any, client: Any, other: Any, paths: list[str]) -> None:
        last = granted(z.Lock(other, max(paths)))
        multi = z.MultiLock([z.Lock(client, path) for path in paths])
        pending = run(multi.acquire)
        waits(pending, other, max(paths), 2)
        multi.cancel()
        with pytest.raises(zklock.AcquireCancelled):
            pending.result(SOON)
        gone(other, min(paths))
        last.release()

    @pytest.mark.parametrize("clients", ["one", "two"])
    def test_is_cancelled_just_before_it_waits(
        self,
        z: Any,
        client: Any,
        other: Any,
        zklock_connect: Connect,
        paths: list[str],
        monkeypatch: pytest.MonkeyPatch,
        clients: str,
    ) -> None:
        first, last = sorted(paths)[0], max(paths)
        held = granted(z.Lock(other, last))
        locks = [z.Lock(client, path) for path in paths if path != last]
        locks.append(z.Lock(client if clients == "one" else zklock_connect(), last))
        multi = z.MultiLock(locks)
        inner = vars(multi).get("_lock", multi)
        check = LockBase._check_own

        def cancelling(lock: LockBase[Any], *, waits: bool) -> None:
            check(lock, waits=waits)
            if lock.path == last:
                inner.cancel()

        monkeypatch.setattr(LockBase, "_check_own", cancelling)
        pending = run(multi.acquire)
        with pytest.raises(zklock.AcquireCancelled):
            pending.result(SOON)
        monkeypatch.undo()
        gone(other, first)
        queued(other, last, 1)
        held.release()

    def test_is_given_back_without_waiting_in_between(
        self,
        z: Any,
        zklock_proxy: FaultProxy,
        zklock_connect: Connect,
        other: Any,
        zklock_path: str,
    ) -> None:
        paths = [f"{zklock_path}/{number}" for number in range(5)]
        kinds = [z.Lock, z.ReadLock, z.WriteLock, z.RLock, z.Lock]
        client = zklock_connect(zklock_proxy.hosts, timeout=60.0)
        multi = z.MultiLock([kind(client, each) for kind, each in zip(kinds, paths, strict=True)])
        grant = multi.acquire()
        for path, each in zip(paths, grant.grants, strict=True):
            (contender,) = z.Lock(other, path).contenders()
            assert (contender.path, contender.token) == (each.path, each.token)
            assert contender.session_id == each.session_id
        mark = zklock_proxy.mark()
        zklock_proxy.hold(to_server=False)
        releasing = run(grant.release)

        def asked() -> int:
            since = (it for it in zklock_proxy.frames if it.number > mark)
            return sum(it.op == "delete" and it.kind is FrameKind.REQUEST for it in since)

        wait_for(lambda: asked() == 5, SOON)
        zklock_proxy.release()
        releasing.result(SOON)
        for path in paths:
            gone(other, path)

    @pytest.mark.parametrize("how", [{"blocking": False}, {}], ids=str)
    def test_asks_for_one_after_the_other(
        self,
        z: Any,
        zklock_proxy: FaultProxy,
        zklock_connect: Connect,
        zklock_path: str,
        how: dict[str, Any],
    ) -> None:
        """It asks for the next one when it has got one: of those that do not wait, one gets all."""
        paths = [f"{zklock_path}/{number}" for number in range(3)]
        client = zklock_connect(zklock_proxy.hosts, timeout=60.0)
        multi = z.MultiLock([z.Lock(client, each) for each in paths])
        multi.acquire().release()
        mark = zklock_proxy.mark()
        multi.acquire(**how).release()
        frames = [it for it in zklock_proxy.frames if it.number > mark and it.op == "create2"]
        assert [it.kind for it in frames] == [FrameKind.REQUEST, FrameKind.REPLY] * 3

    def test_waits_with_nothing_behind_the_one_that_it_waits_for(
        self, z: Any, client: Any, other: Any, paths: list[str]
    ) -> None:
        first, second, third = sorted(paths)
        middle = granted(z.Lock(other, second))
        pending = run(z.MultiLock([z.Lock(client, path) for path in paths]).acquire)
        waits(pending, other, second, 2)
        queued(other, first, 1)
        gone(other, third)
        queued(other, second, 2)
        mine = children(other, second)[1]
        granted(z.Lock(other, third)).release()
        middle.release()
        grant = pending.result(SOON)
        assert grant.grants[1].path == f"{second}/{mine}"
        grant.release()

    def test_of_many(self, client: Any, other: Any, zklock_path: str) -> None:
        paths = [f"{zklock_path}/{number:03}" for number in range(150)]
        held = granted(zklock.Lock(other, paths[140]))
        multi = zklock.MultiLock([zklock.Lock(client, path) for path in paths])
        assert multi.acquire(blocking=False) is None
        held.release()
        grant = multi.acquire(timeout=2 * SOON)
        assert grant is not None
        assert len(grant.tokens) == 150
        multi.release()
        for path in paths:
            gone(other, path)

    @pytest.mark.parametrize("of", ["all", "one"])
    def test_is_cancelled_before_there_is_an_answer(
        self,
        z: Any,
        zklock_proxy: FaultProxy,
        zklock_connect: Connect,
        other: Any,
        paths: list[str],
        of: str,
    ) -> None:
        client = zklock_connect(zklock_proxy.hosts, timeout=60.0)
        for path in paths:
            other.ensure_path(path)
        locks = [z.Lock(client, path) for path in paths]
        multi = z.MultiLock(locks)
        with multi:
            pass
        zklock_proxy.hold(to_server=False)
        mark = zklock_proxy.mark()
        pending = run(multi.acquire)
        zklock_proxy.wait_for_frame(lambda it: it.op == "getChildren2", SOON, since=mark)
        (multi if of == "all" else locks[1]).cancel()
        with pytest.raises(zklock.AcquireCancelled):
            pending.result(SOON)
        zklock_proxy.release()
        for path in paths:
            gone(other, path)
        with multi:
            pass

    def test_keeps_to_the_acls_of_its_client(
        self, z: Any, zklock_connect: Connect, other: Any, paths: list[str]
    ) -> None:
        acl = [make_digest_acl("owner", "secret", all=True)]
        client = zklock_connect(default_acl=acl, auth_data=[("digest", "owner:secret")])
        for path in paths:
            other.ensure_path(path)
        multi = z.MultiLock([z.Lock(client, path) for path in paths])
        for _ in range(2):  # the first heartbeat must have been answered
            with multi as grant:
                for each in grant.grants:
                    assert client.get_acls(each.path)[0] == acl
                grant.verify(SOON)
        for path in paths:
            gone(other, path)

    def test_that_may_not_create_at_one_of_them_holds_none(
        self, z: Any, client: Any, other: Any, paths: list[str]
    ) -> None:
        other.ensure_path(min(paths))
        other.create(max(paths), acl=[make_acl("world", "anyone", read=True)], makepath=True)
        multi = z.MultiLock([z.Lock(client, path) for path in paths])
        with pytest.raises(zklock.AccessDenied, match=max(paths)):
            multi.acquire(timeout=SOON)
        gone(other, min(paths))
        assert not multi.held

    def test_tidies_its_paths_up(
        self, z: Any, client: Any, other: Any, zklock_path: str, paths: list[str]
    ) -> None:
        with z.MultiLock([z.Lock(client, path, tidy=True) for path in paths]) as grant:
            assert grant.held
        wait_for(lambda: not children(other, zklock_path), SOON)

    def test_bad_input(self, z: Any, client: Any, paths: list[str]) -> None:
        lock = z.Lock(client, paths[0])
        with pytest.raises(ValueError, match="at least one"):
            z.MultiLock([])
        with pytest.raises(ValueError, match="twice"):
            z.MultiLock([lock, z.ReadLock(client, paths[0])])
        with pytest.raises(TypeError, match="not one of"):
            z.MultiLock([lock, paths[1]])
        with pytest.raises(TypeError, match="callable"):
            z.MultiLock([lock], on_lost=1)
        with pytest.raises(ValueError, match="a timeout must be 0 seconds or more, not -1"):
            z.MultiLock([lock], timeout=-1)
        with pytest.raises(ValueError, match="timeout"):
            z.MultiLock([lock]).acquire(blocking=False, timeout=1)
        with pytest.raises(TypeError, match="not 5: pass seconds as timeout="):
            z.MultiLock([lock]).acquire(5)
        assert client.exists(paths[0]) is None


class TestReleaseRequests:
    def test_nothing_is_taken_by_force(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        asked: list[zklock.Grant] = []
        lock = z.Lock(client, zklock_path, identity="me", on_release_requested=asked.append)
        grant = granted(lock)
        for count in (1, 2):
            z.Lock(other, zklock_path).request_release()
            wait_for(lambda: len(asked) == count, SOON, lambda: f"{count} requests")  # noqa: B023
        assert grant.held
        grant.verify(SOON)
        assert lock.holder().identity == "me"
        grant.release()

    def test_in_curators_words(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        asked = threading.Event()
        lock = z.Lock(client, zklock_path, on_release_requested=lambda grant: asked.set())
        with lock as grant:
            other.set(grant.path, b"__REVOKE__")
            assert asked.wait(SOON)

    def test_all_readers_are_asked_and_who_waits_is_not(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        readers = [z.ReadLock(each, zklock_path) for each in (client, other)]
        grants = [granted(each) for each in readers]
        pending = run(granted, z.WriteLock(other, zklock_path))
        waits(pending, other, zklock_path, 3)
        asked = readers[0].request_release()
        assert [one.path for one in asked] == [grant.path for grant in grants]
        for grant in grants:
            grant.release()
        pending.result(SOON).release()


class TestBreaking:
    def test_only_who_was_meant(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        lock = z.Lock(client, zklock_path, identity="me")
        old = granted(lock)
        lock.release()
        grant = granted(lock)
        waiting = run(granted, z.Lock(other, zklock_path))
        waits(waiting, other, zklock_path, 2)
        late = next(one for one in lock.contenders() if not one.holds)
        for token in (old.token, late.token):
            with pytest.raises(zklock.NotOwner) as caught:
                z.Lock(other, zklock_path).break_lock(token)
            assert caught.value.holder == "me"
        with pytest.raises(TypeError, match="FencingToken"):
            lock.break_lock("x")
        grant.verify(SOON)
        grant.release()
        waiting.result(SOON).release()

    def test_the_next_one_is_granted(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        semaphore = z.Semaphore(client, zklock_path, limit=1)
        grant = granted(semaphore)
        pending = run(granted, z.Semaphore(other, zklock_path, limit=1))
        queued(other, f"{zklock_path}/leases", 2)
        assert semaphore.break_lock() is not None
        assert pending.result(SOON).token > grant.token
        assert grant.lost.wait(SOON)
        pending.result().release()


def end_without_release(z: Any, client: Any, other: Any, path: str) -> None:
    grant = granted(z.Lock(client, path, track_abandoned=True))
    z.Lock(other, path).break_lock()
    assert grant.lost.wait(SOON)


class TestAbandoned:
    def test_is_not_known_without_being_asked_for(
        self, z: Any, client: Any, zklock_path: str
    ) -> None:
        with z.Lock(client, zklock_path) as grant:
            assert grant.abandoned is None
        assert client.get(zklock_path)[0] == b""

    @pytest.mark.parametrize("end", ["expired", "broken"])
    def test_after_an_end_without_release(
        self, z: Any, client: Any, other: Any, zklock_path: str, end: str
    ) -> None:
        lock = z.Lock(client, zklock_path, track_abandoned=True)
        after = z.Lock(other, zklock_path, track_abandoned=True)
        with lock as first:
            assert first.abandoned is False
        with lock as second:
            assert second.abandoned is False
        lost = granted(lock)
        if end == "broken":
            after.break_lock()
        else:
            expire_session(client)
        with after as found:
            assert found.abandoned is True
        with after as clean:
            assert clean.abandoned is False
        assert lost.lost.wait(SOON)

    def test_those_who_gave_up_change_nothing(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        lock = z.Lock(client, zklock_path, track_abandoned=True)
        rival = z.Lock(other, zklock_path, track_abandoned=True)
        with lock:
            assert rival.acquire(blocking=False) is None
            assert rival.acquire(timeout=0.2) is None
        with rival as grant:
            assert grant.abandoned is False

    @pytest.mark.parametrize("kind", ["Lock", "RLock"])
    def test_is_told_to_who_gets_it(
        self, z: Any, client: Any, other: Any, zklock_path: str, kind: str
    ) -> None:
        """A ``MultiLock`` that gets one lock, and not the next, gives back what nobody has seen."""
        tracked, busy = f"{zklock_path}/a", f"{zklock_path}/b"
        end_without_release(z, client, other, tracked)
        lock = getattr(z, kind)(client, tracked, track_abandoned=True)
        both = z.MultiLock([lock, z.Lock(client, busy)])
        with z.Lock(other, busy):
            assert both.acquire(timeout=0.2) is None
            gone(other, tracked)
            with lock as grant:
                assert grant.abandoned is True
        with both as grants:
            assert grants.grants[0].abandoned is False

    def test_is_not_told_again_after_one_use_of_several(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        tracked, busy = f"{zklock_path}/a", f"{zklock_path}/b"
        end_without_release(z, client, other, tracked)
        lock = z.RLock(client, tracked, track_abandoned=True)
        with z.Lock(other, busy), lock as grant:
            assert grant.abandoned is True
            both = z.MultiLock([lock, z.Lock(client, busy)])
            assert both.acquire(timeout=0.2) is None
            assert grant.held
        with z.Lock(other, tracked, track_abandoned=True) as grant:
            assert grant.abandoned is False

    def test_is_not_kept_in_somebody_elses_data(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        other.create(zklock_path, b"precious")
        with pytest.raises(zklock.ZkLockError, match="data"):
            z.Lock(client, zklock_path, track_abandoned=True).acquire()
        gone(other, zklock_path)
        assert other.get(zklock_path)[0] == b"precious"
        z.Lock(client, zklock_path).acquire().release()
        assert other.get(zklock_path)[0] == b"precious"

    def test_the_next_grant_is_delayed(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        lock = z.Lock(client, zklock_path, lock_delay=0.5)
        rival = z.Lock(other, zklock_path, lock_delay=0.5)
        granted(lock)
        pending = run(granted, rival)
        waits(pending, other, zklock_path, 2)
        started = time.monotonic()
        rival.break_lock()
        assert rival.acquire(blocking=False) is None
        grant = pending.result(SOON)
        assert time.monotonic() - started >= 0.5
        assert grant.abandoned is True
        assert grant.held
        started = time.monotonic()
        grant.release()
        with rival as clean:
            assert clean.abandoned is False
        wait_for(lambda: not lock.held, SOON, "the broken holder is told")
        with lock as clean:
            assert clean.abandoned is False

    def test_the_delay_ends_with_the_deadline(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        lock = z.Lock(client, zklock_path, lock_delay=60.0)
        granted(lock)
        rival = z.Lock(other, zklock_path, lock_delay=60.0)
        rival.break_lock()
        assert rival.acquire(timeout=0.2) is None
        assert rival.acquire(blocking=False) is None
        gone(other, zklock_path)
        with z.Lock(other, zklock_path, track_abandoned=True) as grant:
            assert grant.abandoned is True  # as before

    @pytest.mark.parametrize("patience", [0, 0.2])
    def test_the_delay_ends_for_those_who_do_not_wait_so_long(
        self, z: Any, client: Any, other: Any, zklock_path: str, patience: float
    ) -> None:
        end_without_release(z, client, other, zklock_path)
        began = now_of(other)
        grant = wait_for(
            lambda: z.Lock(other, zklock_path, lock_delay=0.7).acquire(timeout=patience), SOON
        )
        assert now_of(other) - began >= 0.699  # the server counts milliseconds
        assert grant.abandoned is True
        grant.release()
        with z.Lock(other, zklock_path, lock_delay=0.7) as clean:
            assert clean.abandoned is False

    @pytest.mark.parametrize("delay", [-1, float("inf"), float("nan"), True, "1"])
    def test_bad_delays(self, z: Any, client: Any, zklock_path: str, delay: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="lock_delay"):
            z.Lock(client, zklock_path, lock_delay=delay)

    def test_costs_plain_locks_nothing(
        self, z: Any, zklock_proxy: FaultProxy, zklock_connect: Connect, zklock_path: str
    ) -> None:
        proxy = zklock_proxy
        client = zklock_connect(proxy.hosts, timeout=60.0)
        with z.Lock(client, zklock_path):
            proxy.wait_for_frame(lambda f: f.kind is FrameKind.REPLY and f.op == "multi", SOON)
        costs = []
        for track in (False, True):
            before = proxy.counts.requests
            with z.Lock(client, zklock_path, track_abandoned=track):
                pass
            proxy.wait_until(lambda: proxy.counts.requests == proxy.counts.replies, SOON)
            costs.append(proxy.counts.requests - before)
        assert costs == [3, 5]


class TestTidy:
    def test_leaves_nothing(self, z: Any, client: Any, zklock_path: str) -> None:
        lock = z.Lock(client, zklock_path, tidy=True)
        tokens = []
        for _ in range(3):
            with lock as grant:
                tokens.append(grant.token)
            assert client.exists(zklock_path) is None
        assert tokens == sorted(set(tokens))

    def test_leaves_what_others_need(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        lock = z.Lock(client, zklock_path, tidy=True)
        with lock:
            pending = run(granted, z.Lock(other, zklock_path))
            waits(pending, other, zklock_path, 2)
        pending.result(SOON).release()
        assert other.exists(zklock_path) is not None

    def test_who_gives_up_tidies_nothing(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        with z.Lock(other, zklock_path):
            assert z.Lock(client, zklock_path, tidy=True).acquire(blocking=False) is None
        assert other.exists(zklock_path) is not None

    @pytest.mark.parametrize("track", [False, True])
    def test_no_error_reaches_anybody(
        self, z: Any, zklock_connect: Connect, zklock_path: str, track: bool
    ) -> None:
        tokens: list[FencingToken] = []

        def work(client: Any, tidy: bool) -> None:
            lock = z.Lock(client, zklock_path, tidy=tidy, track_abandoned=track, timeout=2 * SOON)
            for _ in range(25):
                with lock as grant:
                    assert not grant.abandoned
                    tokens.append(grant.token)

        clients = [zklock_connect() for _ in range(4)]
        running = [run(work, each, number != 3) for number, each in enumerate(clients)]
        for each in running:
            each.result(4 * SOON)
        assert len(tokens) == 100
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("kind", ["Lock", "RLock", "ReadLock", "WriteLock", "Semaphore"])
class TestEveryKind:
    def test_bad_input_is_refused_at_once(
        self, z: Any, client: Any, zklock_path: str, kind: Any
    ) -> None:
        make = getattr(z, kind)
        more = {"limit": 1} if kind == "Semaphore" else {}
        for path in ("", "relative", "/", f"{zklock_path}/", f"{zklock_path}/../x"):
            with pytest.raises(ValueError, match="path"):
                make(client, path, **more)
        for options in (
            {"identity": "a\0b"},
            {"identity": ""},
            {"identity": "x" * 5000},
            {"timeout": -1},
            {"naming": "java"},
            {"naming": "kazoo", "tidy": True},
        ):
            with pytest.raises(ValueError):  # noqa: PT011
                make(client, zklock_path, **more, **options)
        with pytest.raises(TypeError, match="path"):
            make(client, None, **more)
        for name in ("on_lost", "on_suspended", "on_release_requested"):
            with pytest.raises(TypeError, match=name):
                make(client, zklock_path, **more, **{name: 1})
        with pytest.raises(TypeError):
            make(client, zklock_path, **more, nonsense=1)
        assert client.exists(zklock_path) is None

    def test_names_for_kazoo(
        self, z: Any, client: Any, other: Any, zklock_path: str, kind: Any
    ) -> None:
        make = getattr(z, kind)
        if kind == "Semaphore":
            with pytest.raises(ValueError, match="does not work with this one"):
                make(client, zklock_path, limit=1, naming="kazoo")
            return
        lock = make(client, zklock_path, naming="kazoo")
        with lock as grant:
            (name,) = children(other, zklock_path)
            assert re.search("__r?lock__[0-9]{10}$", name)
            assert grant.path == f"{zklock_path}/{name}"
            waiting = z.WriteLock(other, zklock_path, naming="kazoo")
            pending = run(granted, waiting)
            waits(pending, client, zklock_path, 2)
            assert [each.holds for each in lock.contenders()] == [True, False]
        pending.result(SOON).release()
        gone(other, zklock_path)

    def test_a_session_that_ends_is_told_of(
        self, z: Any, client: Any, other: Any, zklock_path: str, kind: Any
    ) -> None:
        make = getattr(z, kind)
        more = {"limit": 1} if kind == "Semaphore" else {}
        losses = Losses()
        lock = make(client, zklock_path, on_lost=losses, **more)
        with pytest.raises(zklock.LockLost), lock as grant:
            expire_session(client)
            assert grant.lost.wait(SOON)
        assert grant == losses.one().grant
        with make(other, zklock_path, **more) as after:
            assert after.token > grant.token


class TestVerifyOwner:
    def test_knows_every_kind(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        writer = z.WriteLock(client, zklock_path)
        grant = granted(writer)
        pending = run(granted, z.ReadLock(other, zklock_path))
        waits(pending, client, zklock_path, 2)
        later = writer.contenders()[1].token
        assert later is not None
        assert verify_owner(other, zklock_path, grant).path == grant.path
        with pytest.raises(zklock.NotOwner):
            verify_owner(other, zklock_path, later)
        writer.downgrade()
        reading = pending.result(SOON)
        for each in (grant, reading):
            assert verify_owner(client, zklock_path, each).path == each.path
        grant.release()
        assert verify_owner(client, zklock_path, reading).path == reading.path
        reading.release()
        with pytest.raises(zklock.NotOwner):
            verify_owner(client, zklock_path, reading)

    def test_knows_permits(self, z: Any, client: Any, other: Any, zklock_path: str) -> None:
        semaphore = z.Semaphore(client, zklock_path, limit=2)
        grants = [granted(semaphore), granted(semaphore)]
        for each in grants:
            assert verify_owner(other, zklock_path, each, limit=2).path == each.path
        grants[0].release()
        with pytest.raises(zklock.NotOwner):
            verify_owner(other, zklock_path, grants[0], limit=2)
        assert verify_owner(other, zklock_path, grants[1], limit=2).path == grants[1].path
        grants[1].release()
