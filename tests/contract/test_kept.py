"""Kept locks: the znode stays after a release while nobody else queues; both fronts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest

import zklock
from tests.contract.fronts import Loop, Threads
from tests.contract.support import SOON, Losses, children, gone, granted, passes_on, queued, run
from zklock import LossReason, telemetry
from zklock.testing import FaultProxy, wait_for

Make = Callable[..., Any]
LONG = 600.0
"""Seconds for which a lock is kept: no test waits for their end."""


@pytest.fixture
def mine(zklock_connect: Any) -> Any:
    return zklock_connect()


@pytest.fixture
def make(front: Threads | Loop, mine: Any, zklock_path: str) -> Make:
    """Return ``make(client=None, **options)``: a lock that is kept."""

    def make_lock(client: Any = mine, *, kind: str = "Lock", **options: Any) -> Any:
        return getattr(front, kind)(client, zklock_path, **{"keep": LONG, **options})

    return make_lock


def changes(client: Any, path: str) -> int:
    """Return how many znodes of contenders came and went."""
    count: int = client.exists(path).cversion
    return count


def idle(lock: Any, client: Any, path: str) -> Any:
    """Have the lock kept, and nobody using it; return the token."""
    with lock as grant:
        pass
    with lock as again:  # not before the queue is watched
        assert again.kept
    assert grant.token == again.token
    assert len(children(client, path)) == 1
    return grant.token


class TestAlone:
    def test_the_next_acquire_needs_no_request(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        lock = make()
        first = granted(lock)
        assert not first.kept
        lock.release()
        token = idle(make(), other, zklock_path)
        before = changes(other, zklock_path)
        for _ in range(3):
            with make() as grant, pytest.raises(zklock.WouldDeadlock):
                lock.acquire()
            assert (grant.kept, grant.token, grant.released) == (True, token, True)
            assert (first.held, first.released) == (False, True)
        assert (token, changes(other, zklock_path)) == (first.token, before)

    def test_a_grant_never_becomes_held_again(self, make: Make) -> None:
        lock = make()
        old = granted(lock)
        old.release()
        with lock as new:
            assert new.token == old.token
            assert (old.held, new.held) == (False, True)
            with pytest.raises(zklock.NotHeld):
                old.check()
            with pytest.raises(zklock.NotHeld):
                old.release()
            old.abandon()
            assert new.held

    def test_it_is_given_back_after_its_time(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        with make(keep=0.2):
            pass
        gone(other, zklock_path)
        with make(keep=0.2) as grant:
            assert not grant.kept

    @pytest.mark.parametrize("how", ["stop", "close"])
    def test_the_client_gives_it_back(
        self, make: Make, zklock_connect: Any, other: Any, zklock_path: str, how: str
    ) -> None:
        client = zklock_connect()
        idle(make(client), other, zklock_path)
        client.stop()
        if how == "close":
            client.close()
        gone(other, zklock_path)
        with pytest.raises(zklock.ClientClosed):
            make(client).acquire()

    def test_the_name_in_zookeeper_is_true(self, make: Make, other: Any, zklock_path: str) -> None:
        """The process by default; another name is another contender."""
        idle(make(), other, zklock_path)
        name = make().holder().identity
        assert name.rpartition(":")[2].isdigit()
        with make(identity="host-7") as grant:
            assert (grant.kept, make().holder().identity) == (False, "host-7")

    def test_a_lock_that_is_not_kept_is_another_contender(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        token = idle(make(), other, zklock_path)
        with make(keep=None) as grant:
            assert (grant.kept, grant.token > token) == (False, True)
        gone(other, zklock_path)

    def test_a_reentrant_lock(self, make: Make, other: Any, zklock_path: str) -> None:
        lock = make(kind="RLock")
        idle(lock, other, zklock_path)
        with lock as grant:
            with lock as same:
                assert same.token == grant.token
            assert grant.held
        assert not grant.held
        with lock as next_one:
            assert next_one.kept

    def test_telemetry_says_so(self, make: Make, other: Any, zklock_path: str) -> None:
        seen: list[telemetry.Event] = []
        subscription = telemetry.subscribe(seen.append)
        try:
            idle(make(), other, zklock_path)
            with make():
                pass
            assert subscription.flush(SOON)
        finally:
            subscription.close()
        mine = [event for event in seen if getattr(event, "path", "") == zklock_path]
        told = [event for event in mine if isinstance(event, telemetry.Granted)]
        assert [event.kept for event in told] == [False, True, True]
        assert sum(isinstance(event, telemetry.Released) for event in mine) == 3


class TestTheSecondGivingBack:
    """One znode has many grants, one after the other: an ended one touches nothing."""

    @pytest.fixture
    def second(self, make: Make, other: Any, zklock_path: str) -> Iterator[Any]:
        """Return ``second()``: another thread's grant, on the znode that this one has given back.

        No stranger is granted before that grant is released.
        """
        held: list[Any] = []

        def take() -> Any:
            held.append(run(granted, make()).result(SOON))
            assert held[-1].kept
            return held[-1]

        yield take
        (grant,) = held
        stranger = zklock.Lock(other, zklock_path)
        waiting = run(granted, stranger)
        queued(other, zklock_path, 2)
        assert grant.held
        grant.verify()
        order: list[str] = []
        waiting.add_done_callback(lambda _: order.append("stranger"))
        order.append("released")
        grant.release()
        assert waiting.result(SOON).token > grant.token
        assert order == ["released", "stranger"]

    @pytest.mark.parametrize("how", ["abandon", "release"])
    def test_after_a_release(self, make: Make, second: Any, how: str) -> None:
        lock = make()
        first = granted(lock)
        lock.release()
        second()
        with pytest.raises(zklock.NotHeld) if how == "release" else nullcontext():
            getattr(first, how)()

    def test_by_the_end_of_a_body(self, make: Make, second: Any) -> None:
        with pytest.raises(zklock.NotHeld), make() as first:
            first.abandon()
            second()

    def test_by_the_end_of_a_body_that_is_torn(self, make: Make, second: Any) -> None:
        with pytest.raises(KeyError), make() as first:
            first.abandon()
            second()
            raise KeyError

    def test_by_the_end_of_what_was_acquired(self, make: Make, second: Any) -> None:
        lock = make()
        with pytest.raises(zklock.NotHeld), lock.acquire() as first:
            first.release()
            second()

    def test_by_many_threads(self, make: Make, other: Any, zklock_path: str, second: Any) -> None:
        """Whoever comes first gives back; nobody else gives back what the next one has."""
        first = granted(make())
        over = [run(first.abandon) for _ in range(4)]
        for each in over:
            each.result(SOON)
        second()
        assert not first.held

    def test_by_a_lock_that_is_reentrant(self, make: Make, second: Any) -> None:
        lock = make(kind="RLock")
        with pytest.raises(zklock.NotHeld), lock as first:
            with lock:
                pass
            first.abandon()
            second()

    def test_while_a_stranger_is_seen(self, make: Make, other: Any, zklock_path: str) -> None:
        """Two give back at once, as the znode is to go: it goes, and the stranger is granted."""
        lock = make()
        for _ in range(5):
            token = idle(lock, other, zklock_path)
            grant = granted(lock)
            waiting = run(granted, zklock.Lock(other, zklock_path))
            over = [run(grant.abandon) for _ in range(3)]
            for each in over:
                each.result(SOON)
            theirs = waiting.result(SOON)
            assert theirs.token > token
            theirs.release()


class TestStrangers:
    @pytest.fixture(params=["zklock", "kazoo"])
    def stranger(self, request: pytest.FixtureRequest, other: Any, zklock_path: str) -> Any:
        if request.param == "zklock":
            return zklock.Lock(other, zklock_path)
        return other.Lock(zklock_path, extra_lock_patterns=["-lock-"])

    def test_get_an_idle_one_at_once(
        self, make: Make, other: Any, zklock_path: str, stranger: Any
    ) -> None:
        token = idle(make(), other, zklock_path)
        assert stranger.acquire(timeout=SOON)
        held = run(granted, make())
        queued(other, zklock_path, 2)
        stranger.release()
        assert held.result(SOON).token > token

    def test_come_before_all_who_wait_here(
        self, make: Make, other: Any, zklock_path: str, stranger: Any
    ) -> None:
        lock, order = make(), []
        idle(lock, other, zklock_path)
        holder = granted(lock)

        def take(name: str, its: Any, **timeout: float) -> None:
            assert its.acquire(**timeout)
            order.append(name)
            its.release()

        here = [run(take, "here", make()) for _ in range(3)]
        theirs = run(take, "stranger", stranger, timeout=SOON)
        queued(other, zklock_path, 3)  # the holder, the stranger, and one for all who wait here
        assert order == []
        holder.release()
        for each in (theirs, *here):
            each.result(SOON)
        assert order == ["stranger", "here", "here", "here"]

    def test_are_seen_after_the_connection_was_lost(
        self,
        make: Make,
        zklock_proxy: FaultProxy,
        zklock_connect: Any,
        other: Any,
        zklock_path: str,
        stranger: Any,
    ) -> None:
        client = zklock_connect(zklock_proxy.hosts, timeout=30.0)
        idle(make(client), other, zklock_path)
        zklock_proxy.cut()

        def take() -> bool:
            acquired = bool(stranger.acquire(timeout=SOON))
            stranger.release()
            return acquired

        theirs = run(take)
        queued(other, zklock_path, 2)
        zklock_proxy.restore()
        assert theirs.result(SOON)

    def test_who_does_not_wait_gets_an_idle_one_soon(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        lock = make()
        for _ in range(5):
            idle(lock, other, zklock_path)
            assert zklock.Lock(other, zklock_path).acquire(blocking=False) is None
            gone(other, zklock_path)

    def test_who_asks_for_the_release_gets_an_idle_one(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        idle(make(), other, zklock_path)
        assert len(zklock.Lock(other, zklock_path).request_release()) == 1
        gone(other, zklock_path)

    def test_who_asks_for_the_release_is_heard_by_the_present_holder(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        asked: list[Any] = []
        lock = make(on_release_requested=asked.append)
        idle(lock, other, zklock_path)
        grant = granted(lock)
        zklock.Lock(other, zklock_path).request_release()
        wait_for(lambda: asked == [grant], SOON)
        lock.release()
        gone(other, zklock_path)

    def test_a_reader_gets_an_idle_write_lock(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        lock = make(kind="WriteLock")
        idle(lock, other, zklock_path)
        with zklock.ReadLock(other, zklock_path, timeout=SOON):
            waiting = run(granted, lock)
            queued(other, zklock_path, 2)
        waiting.result(SOON).release()

    def test_a_downgraded_one_is_given_back(self, make: Make, other: Any, zklock_path: str) -> None:
        lock = make(kind="WriteLock")
        idle(lock, other, zklock_path)
        granted(lock)
        lock.downgrade()
        lock.release()
        gone(other, zklock_path)

    def test_one_whose_downgrade_is_in_doubt_is_given_back(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        lock = make(kind="WriteLock")
        for _ in range(5):
            idle(lock, other, zklock_path)
            granted(lock)
            with suppress(zklock.NoAnswer):
                lock.downgrade(timeout=0.0001)
            lock.release()
            gone(other, zklock_path)

    def test_where_they_come_each_time_nobody_looks_for_long(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        """Two that take turns: neither waits for more than the other's body."""
        locks = [make(), zklock.Lock(other, zklock_path, keep=LONG)]
        turns: list[int] = []

        def play(number: int) -> None:
            for _ in range(30):
                with locks[number]:
                    turns.append(number)
                    wait_for(lambda: len(children(other, zklock_path)) > 1 or over.is_set(), SOON)

        over = threading.Event()
        first, second = run(play, 0), run(play, 1)
        wait_for(lambda: first.done() or second.done(), SOON)
        over.set()
        first.result(SOON)
        second.result(SOON)
        # Once both have begun they alternate, until one of them ends.
        both = [number for number in turns if turns.count(number)]
        begun = next(at for at in range(len(both)) if len({*both[: at + 1]}) == 2)
        pairs = list(zip(both[begun:], both[begun + 1 :], strict=False))
        alternating = sum(one != two for one, two in pairs)
        assert alternating >= 40, turns


class TestWaitingHere:
    def test_first_come_first_served(self, make: Make, other: Any, zklock_path: str) -> None:
        lock, order = make(), []
        idle(lock, other, zklock_path)
        before = changes(other, zklock_path)
        holder = granted(lock)

        def take(number: int, its: Any) -> None:
            with its:
                order.append(number)

        pending = []
        for number in range(5):
            its = make()
            pending.append(run(take, number, its))
            waits(its)
        holder.release()
        for each in pending:
            each.result(SOON)
        assert order == [*range(5)]
        assert changes(other, zklock_path) == before

    def test_a_timeout_a_cancel_and_a_try_leave_nothing(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        lock, hasty = make(), make(timeout=0.2)
        idle(lock, other, zklock_path)
        holder, its = granted(lock), make()
        waiting = run(its.acquire)
        waits(its)
        assert run(hasty.acquire).result(SOON) is None
        assert run(make().acquire, blocking=False).result(SOON) is None
        with pytest.raises(zklock.AcquireTimeout, match=r"not granted within 0\.2 s"):
            run(hasty.__enter__).result(SOON)
        pending = make()
        cancelled = run(pending.acquire)
        waits(pending)
        pending.cancel()
        with pytest.raises(zklock.AcquireCancelled):
            cancelled.result(SOON)
        holder.release()
        waiting.result(SOON).release()
        with lock as grant:
            assert grant.kept

    def test_a_try_takes_an_idle_one(self, make: Make, other: Any, zklock_path: str) -> None:
        lock = make()
        idle(lock, other, zklock_path)
        grant = lock.acquire(blocking=False)
        assert grant is not None
        assert grant.kept
        assert run(make().acquire, timeout=0).result(SOON) is None
        grant.release()

    def test_a_try_right_after_the_first_release(self, make: Make) -> None:
        lock = make()
        with lock:
            pass
        grant = lock.acquire(blocking=False)
        assert grant is not None
        grant.release()

    def test_a_try_of_a_free_lock_is_kept_too(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        grant = make().acquire(blocking=False)
        assert grant is not None
        grant.release()
        with make() as again:
            assert (again.kept, again.token) == (True, grant.token)

    def test_who_waits_is_told_of_the_end_of_the_client(
        self, make: Make, zklock_connect: Any
    ) -> None:
        client = zklock_connect()
        granted(make(client))
        waiting = make(client)
        pending = run(waiting.acquire)
        waits(waiting)
        client.stop()
        with pytest.raises(zklock.ClientClosed):
            pending.result(SOON)


class TestLoss:
    def test_ends_the_grant_in_use_and_those_who_wait_go_on(
        self, make: Make, mine: Any, zklock_expire_session: Any
    ) -> None:
        losses = Losses()
        lock = make(on_lost=losses)
        granted(lock).release()
        grant = granted(lock)
        its = make()
        waiting = run(granted, its)
        waits(its)
        zklock_expire_session(mine)
        assert losses.one().grant.token == grant.token
        new = waiting.result(SOON)
        assert (new.kept, new.token > grant.token) == (False, True)
        new.release()

    def test_tells_nobody_of_an_idle_one(
        self, make: Make, mine: Any, other: Any, zklock_path: str, zklock_expire_session: Any
    ) -> None:
        losses = Losses()
        lock = make(on_lost=losses)
        token = idle(lock, other, zklock_path)
        session = zklock_expire_session(mine)
        wait_for(lambda: mine.connected and mine.client_id[0] != session, SOON)
        with lock as grant:
            assert (grant.kept, grant.token > token) == (False, True)
        assert losses.losses == []

    @pytest.mark.parametrize("used", [False, True], ids=["idle", "in use"])
    def test_by_a_deleted_znode(self, make: Make, other: Any, zklock_path: str, used: bool) -> None:
        losses = Losses()
        lock = make(on_lost=losses)
        token = idle(lock, other, zklock_path)
        if used:
            granted(lock)
        assert zklock.Lock(other, zklock_path).break_lock() is not None
        if used:
            assert losses.one().reason is LossReason.NODE_DELETED
            with pytest.raises(zklock.LockLost):
                lock.release()
        wait_for(lambda: granted_after(lock, token), SOON)
        assert len(losses.losses) == used

    def test_an_idle_one_never_outlives_its_lease(
        self,
        make: Make,
        zklock_proxy: FaultProxy,
        zklock_connect: Any,
        other: Any,
        zklock_path: str,
    ) -> None:
        client = zklock_connect(zklock_proxy.hosts, timeout=5.0)
        lock, losses = make(client), Losses()
        token = idle(lock, other, zklock_path)
        grant = granted(make(client, on_lost=losses))
        zklock_proxy.cut()
        assert losses.one().reason is LossReason.LEASE_LAPSED
        assert run(lock.acquire, timeout=0.1).result(SOON) is None
        zklock_proxy.restore()
        passes_on(other, zklock_path)
        with lock as new:
            assert (new.token > token, grant.held) == (True, False)


class TestAConnectionInDoubt:
    """While events may be late, nobody is let in before the queue was looked at."""

    @pytest.mark.parametrize("how", ["cut", "silent"])
    def test_a_stranger_waits_for_one_body_only(
        self,
        make: Make,
        zklock_proxy: FaultProxy,
        zklock_connect: Any,
        other: Any,
        zklock_path: str,
        how: str,
    ) -> None:
        client = zklock_connect(zklock_proxy.hosts, timeout=30.0)
        late, order = threading.Event(), []

        def hear(event: telemetry.Event) -> None:
            if isinstance(event, telemetry.HeartbeatLate | telemetry.Disconnected):
                late.set()

        def take(name: str, its: Any) -> None:
            grant = granted(its)
            order.append(name)
            grant.release()

        subscription = telemetry.subscribe(hear)
        try:
            idle(make(client), other, zklock_path)
            holder = granted(make(client))
            here = []
            for _ in range(2):
                its = make(client)
                here.append(run(take, "here", its))
                waits(its)
            if how == "cut":
                zklock_proxy.cut()
            else:
                zklock_proxy.blackhole()
            assert late.wait(SOON)
            theirs = run(take, "stranger", zklock.Lock(other, zklock_path))
            queued(other, zklock_path, 2)
            assert holder.held
            holder.release()
            here.append(run(take, "here", make(client)))
            zklock_proxy.restore()
            for each in (theirs, *here):
                each.result(SOON)
        finally:
            subscription.close()
        assert order == ["stranger", "here", "here", "here"]

    def test_one_that_is_idle_is_had_again_once_the_connection_is_back(
        self,
        make: Make,
        zklock_proxy: FaultProxy,
        zklock_connect: Any,
        other: Any,
        zklock_path: str,
    ) -> None:
        client = zklock_connect(zklock_proxy.hosts, timeout=30.0)
        token = idle(make(client), other, zklock_path)
        zklock_proxy.cut()
        wait_for(lambda: not client.connected, SOON)
        assert run(make(client).acquire, blocking=False).result(SOON) is None
        waiting = run(granted, make(client))
        zklock_proxy.restore()
        grant = waiting.result(SOON)
        assert (grant.kept, grant.token) == (True, token)


class TestBadInput:
    @pytest.mark.parametrize(
        ("keep", "error"),
        [
            (-1, ValueError),
            (float("nan"), ValueError),
            (float("inf"), ValueError),
            (True, TypeError),
            ("5", TypeError),
        ],
    )
    def test_of_keep(self, make: Make, keep: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="keep must be"):
            make(keep=keep)

    @pytest.mark.parametrize("options", [{"track_abandoned": True}, {"lock_delay": 1.0}])
    def test_what_does_not_go_together(self, make: Make, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="does not go together with"):
            make(**options)

    @pytest.mark.parametrize(("kind", "more"), [("ReadLock", {}), ("Semaphore", {"limit": 1})])
    def test_what_is_never_kept(self, make: Make, kind: str, more: dict[str, Any]) -> None:
        with pytest.raises(TypeError, match="keep"):
            make(kind=kind, **more)

    def test_several_together(self, front: Any, make: Make) -> None:
        with pytest.raises(ValueError, match="a lock that is kept"):
            front.MultiLock([make()])


def waits(lock: Any) -> None:
    """Wait until an acquire of the lock has its place."""

    def placed() -> bool:
        users = getattr(lock, "_lock", lock)._users.copy()
        return any(held is None and asked._place is not None for asked, held in users.items())

    wait_for(placed, SOON)


def granted_after(lock: Any, token: Any) -> bool:
    with lock as grant:
        return bool(grant.token > token)
