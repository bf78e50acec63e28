"""Kept locks: the znode stays after a release while nobody else queues; both fronts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from typing import Any

import pytest

import zklock
from tests.contract.fronts import Behind, Place
from tests.contract.support import (
    SOON,
    Losses,
    gone,
    granted,
    in_another_session,
    passes_on,
    queued,
    results,
    run,
)
from zklock import LossReason, telemetry
from zklock.testing import expire_session, wait_for

LONG = 600.0
"""Seconds for which a lock is kept: no test waits for their end."""


class Keeping(Place):
    """Makes locks that are kept: ``place()``, ``place(kind="RLock")``."""

    def __call__(self, kind: str = "Lock", **options: Any) -> Any:
        return getattr(self, kind)(**{"keep": LONG, **options})

    def changes(self) -> int:
        """Return how many znodes of contenders came and went."""
        count: int = self.client.exists(self.path).cversion
        return count

    def idle(self, lock: Any = None) -> Any:
        """Have the lock kept, and nobody using it; return the token."""
        lock = lock or self()
        with lock as grant:
            pass
        with lock as again:  # not before the queue is watched
            assert again.kept
        assert grant.token == again.token
        assert len(self.nodes()) == 1
        return grant.token


@pytest.fixture
def mine(mine: Place) -> Keeping:
    """The path of the test, for each front and a client that keeps its locks."""
    return Keeping(mine.front, mine.client, mine.path)


@pytest.fixture
def behind(behind: Behind) -> Behind:
    """The same, for a client behind the proxy."""

    def make(timeout: float = 30.0) -> Keeping:
        far = behind(timeout=timeout)
        return Keeping(far.front, far.client, far.path)

    return Behind(make, behind.proxy)


@pytest.fixture
def stranger(other: Any, zklock_path: str) -> zklock.Lock:
    """A lock of another client, for threads, that is not kept."""
    return zklock.Lock(other, zklock_path)


class TestAlone:
    def test_the_next_acquire_needs_no_request(self, mine: Keeping) -> None:
        lock = mine()
        first = granted(lock)
        assert not first.kept
        lock.release()
        token = mine.idle()
        before = mine.changes()
        for _ in range(3):
            with mine() as grant, pytest.raises(zklock.WouldDeadlock):
                lock.acquire()
            assert (grant.kept, grant.token, grant.released) == (True, token, True)
            assert (first.held, first.released) == (False, True)
        assert (token, mine.changes()) == (first.token, before)

    def test_a_grant_never_becomes_held_again(self, mine: Keeping) -> None:
        lock = mine()
        old = granted(lock)
        old.release()
        with lock as new:
            assert new.token == old.token
            assert (old.held, new.held) == (False, True)
            for call in (old.check, old.release):
                with pytest.raises(zklock.NotHeld):
                    call()
            old.abandon()
            assert new.held

    def test_it_is_given_back_after_its_time(self, mine: Keeping) -> None:
        with mine(keep=0.2):
            pass
        mine.gone()
        with mine(keep=0.2) as grant:
            assert not grant.kept

    @pytest.mark.parametrize("how", ["stop", "close"])
    def test_the_client_gives_it_back(
        self, mine: Keeping, other: Any, stranger: zklock.Lock, how: str
    ) -> None:
        mine.idle()
        mine.client.stop()
        if how == "close":
            mine.client.close()
        gone(other, stranger.path)
        with pytest.raises(zklock.ClientClosed):
            mine().acquire()

    def test_another_name_is_another_contender_as_is_a_lock_that_is_not_kept(
        self, mine: Keeping
    ) -> None:
        """By default it is the process that has a kept lock. Names in ZooKeeper are true."""
        token = mine.idle()
        assert mine().holder().identity.rpartition(":")[2].isdigit()
        with mine(identity="host-7") as grant:
            assert (grant.kept, mine().holder().identity) == (False, "host-7")
        with mine(keep=None) as other:
            assert (other.kept, other.token > grant.token > token) == (False, True)
        mine.gone()

    def test_a_reentrant_lock(self, mine: Keeping) -> None:
        lock = mine("RLock")
        mine.idle(lock)
        with lock as grant:
            with lock as same:
                assert same.token == grant.token
            assert grant.held
        assert not grant.held
        with lock as next_one:
            assert next_one.kept

    def test_telemetry_says_so(self, mine: Keeping) -> None:
        seen: list[telemetry.Event] = []
        with closing(telemetry.subscribe(seen.append)) as subscription:
            mine.idle()
            with mine():
                pass
            assert subscription.flush(SOON)
        told = [event for event in seen if getattr(event, "path", "") == mine.path]
        kept = [event.kept for event in told if isinstance(event, telemetry.Granted)]
        assert kept == [False, True, True]
        assert sum(isinstance(event, telemetry.Released) for event in told) == 3


class TestTheSecondGivingBack:
    """One znode has many grants, one after the other: an ended one touches nothing."""

    @pytest.fixture
    def second(self, mine: Keeping, other: Any, stranger: zklock.Lock) -> Iterator[Any]:
        """Return ``second()``: another thread's grant, on the znode that this one has given back.

        No stranger is granted before that grant is released.
        """
        held: list[Any] = []

        def take() -> Any:
            held.append(run(granted, mine()).result(SOON))
            assert held[-1].kept
            return held[-1]

        yield take
        (grant,) = held
        waiting = run(granted, stranger)
        queued(other, mine.path, 2)
        assert grant.held
        grant.verify()
        order: list[str] = []
        waiting.add_done_callback(lambda _: order.append("stranger"))
        order.append("released")
        grant.release()
        assert waiting.result(SOON).token > grant.token
        assert order == ["released", "stranger"]

    def test_by_many_threads(self, mine: Keeping, second: Any) -> None:
        """Whoever comes first gives back; nobody else gives back what the next one has."""
        first = granted(mine())
        results([run(first.abandon) for _ in range(4)])
        second()
        assert not first.held
        first.abandon()
        with pytest.raises(zklock.NotHeld):
            first.release()

    @pytest.mark.parametrize("kind", ["Lock", "RLock"])
    @pytest.mark.parametrize("error", [zklock.NotHeld, KeyError])
    def test_by_the_end_of_a_body(
        self, mine: Keeping, second: Any, kind: str, error: type[Exception]
    ) -> None:
        lock = mine(kind)
        with pytest.raises(error), lock as first:
            if kind == "RLock":
                with lock:
                    pass
            first.abandon()
            second()
            if error is KeyError:
                raise KeyError

    def test_by_the_end_of_what_was_acquired(self, mine: Keeping, second: Any) -> None:
        with pytest.raises(zklock.NotHeld), mine().acquire() as first:
            first.release()
            second()

    def test_while_a_stranger_is_seen(self, mine: Keeping, stranger: zklock.Lock) -> None:
        """Two give back at once, as the znode is to go: it goes, and the stranger is granted."""
        lock = mine()
        for _ in range(5):
            token = mine.idle(lock)
            grant = granted(lock)
            waiting = run(granted, stranger)
            results([run(grant.abandon) for _ in range(3)])
            theirs = waiting.result(SOON)
            assert theirs.token > token
            theirs.release()


@pytest.mark.parametrize("who", ["zklock", "kazoo"])
class TestStrangers:
    @pytest.fixture
    def stranger(self, who: str, other: Any, zklock_path: str) -> Any:
        if who == "zklock":
            return zklock.Lock(other, zklock_path)
        return other.Lock(zklock_path, extra_lock_patterns=["-lock-"])

    def test_get_an_idle_one_at_once(self, mine: Keeping, stranger: Any) -> None:
        token = mine.idle()
        assert stranger.acquire(timeout=SOON)
        held = mine.waits(mine(), 2)
        stranger.release()
        assert held.result(SOON).token > token

    def test_come_before_all_who_wait_here(self, mine: Keeping, stranger: Any) -> None:
        lock, order = mine(), list[str]()
        mine.idle(lock)
        holder = granted(lock)

        def take(name: str, its: Any, **timeout: float) -> None:
            assert its.acquire(**timeout)
            order.append(name)
            its.release()

        here = [run(take, "here", mine()) for _ in range(3)]
        theirs = run(take, "stranger", stranger, timeout=SOON)
        mine.queued(3)  # the holder, the stranger, and one for all who wait here
        assert order == []
        holder.release()
        results([theirs, *here])
        assert order == ["stranger", "here", "here", "here"]

    def test_are_seen_after_the_connection_was_lost(
        self, behind: Behind, other: Any, stranger: Any
    ) -> None:
        far = behind()
        far.idle()
        behind.proxy.cut()

        def take() -> bool:
            acquired = bool(stranger.acquire(timeout=SOON))
            stranger.release()
            return acquired

        theirs = run(take)
        queued(other, far.path, 2)
        behind.proxy.restore()
        assert theirs.result(SOON)


def test_one_that_is_given_back_in_a_step_goes_to_a_stranger(
    mine: Keeping, stranger: zklock.Lock
) -> None:
    """As by a signal handler that has interrupted zklock."""
    lock = zklock.Lock(mine.client, mine.path, keep=LONG)
    token = mine.idle(lock)
    grant = granted(lock)
    waiting = run(granted, stranger)
    mine.queued(2)
    mine.client.handler.step(grant.abandon)
    theirs = waiting.result(SOON)
    assert theirs.token > token
    theirs.release()


class TestAStranger:
    def test_who_does_not_wait_gets_an_idle_one_soon(
        self, mine: Keeping, stranger: zklock.Lock
    ) -> None:
        lock = mine()
        for _ in range(5):
            mine.idle(lock)
            assert stranger.acquire(blocking=False) is None
            mine.gone()

    def test_who_asks_for_the_release_gets_it(self, mine: Keeping, stranger: zklock.Lock) -> None:
        """At once if it is idle; else the present holder is asked."""
        asked: list[Any] = []
        lock = mine(on_release_requested=asked.append)
        mine.idle(lock)
        assert len(stranger.request_release()) == 1
        mine.gone()
        mine.idle(lock)
        grant = granted(lock)
        stranger.request_release()
        wait_for(lambda: asked == [grant], SOON)
        lock.release()
        mine.gone()

    def test_a_reader_gets_an_idle_write_lock(self, mine: Keeping, other: Any) -> None:
        lock = mine("WriteLock")
        mine.idle(lock)
        with zklock.ReadLock(other, mine.path, timeout=SOON):
            waiting = mine.waits(lock, 2)
        waiting.result(SOON).release()

    @pytest.mark.parametrize("timeout", [SOON, 0.0001], ids=["done", "in doubt"])
    def test_a_downgraded_one_is_given_back(self, mine: Keeping, timeout: float) -> None:
        lock = mine("WriteLock")
        for _ in range(1 if timeout == SOON else 5):
            mine.idle(lock)
            granted(lock)
            with nullcontext() if timeout == SOON else suppress(zklock.NoAnswer):
                lock.downgrade(timeout=timeout)
            lock.release()
            mine.gone()

    def test_where_they_come_each_time_nobody_looks_for_long(
        self, mine: Keeping, other: Any
    ) -> None:
        """Two that take turns: neither waits for more than the other's body."""
        locks = [mine(), zklock.Lock(other, mine.path, keep=LONG)]
        turns: list[int] = []

        def play(number: int) -> None:
            for _ in range(30):
                with locks[number]:
                    turns.append(number)
                    wait_for(lambda: len(mine.nodes()) > 1 or over.is_set(), SOON)

        over = threading.Event()
        playing = [run(play, number) for number in range(2)]
        wait_for(lambda: any(each.done() for each in playing), SOON)
        over.set()
        results(playing)
        # Once both have begun they alternate, until one of them ends.
        begun = turns.index(1 - turns[0])
        pairs = zip(turns[begun:], turns[begun + 1 :], strict=False)
        assert sum(one != two for one, two in pairs) >= 40, turns


class TestWaitingHere:
    def test_first_come_first_served(self, mine: Keeping) -> None:
        lock, order = mine(), list[int]()
        mine.idle(lock)
        before = mine.changes()
        holder = granted(lock)

        def take(number: int, its: Any) -> None:
            with its:
                order.append(number)

        pending = []
        for number in range(5):
            its = mine()
            pending.append(run(take, number, its))
            waits(its)
        holder.release()
        results(pending)
        assert order == [*range(5)]
        assert mine.changes() == before

    def test_a_timeout_a_cancel_and_a_try_leave_nothing(self, mine: Keeping) -> None:
        lock, hasty, its, pending = mine(), mine(timeout=0.2), mine(), mine()
        mine.idle(lock)
        holder = granted(lock)
        waiting = run(its.acquire)
        waits(its)
        assert run(hasty.acquire).result(SOON) is None
        assert run(mine().acquire, blocking=False).result(SOON) is None
        with pytest.raises(zklock.AcquireTimeout, match=r"not granted within 0\.2 s"):
            run(hasty.__enter__).result(SOON)
        cancelled = run(pending.acquire)
        waits(pending)
        pending.cancel()
        with pytest.raises(zklock.AcquireCancelled):
            cancelled.result(SOON)
        holder.release()
        waiting.result(SOON).release()
        with lock as grant:
            assert grant.kept

    def test_a_try_takes_an_idle_one(self, mine: Keeping) -> None:
        lock = mine()
        first = lock.acquire(blocking=False)  # of a free lock, which is kept, too
        first.release()
        lock.acquire(blocking=False).release()  # right after the release
        mine.idle(lock)
        grant = lock.acquire(blocking=False)
        assert (grant.kept, grant.token) == (True, first.token)
        assert run(mine().acquire, timeout=0).result(SOON) is None
        grant.release()

    def test_who_waits_is_told_of_the_end_of_the_client(self, mine: Keeping) -> None:
        granted(mine())
        waiting = mine()
        pending = run(waiting.acquire)
        waits(waiting)
        mine.client.stop()
        with pytest.raises(zklock.ClientClosed):
            pending.result(SOON)


class TestLoss:
    def test_ends_the_grant_in_use_and_those_who_wait_go_on(self, mine: Keeping) -> None:
        losses = Losses()
        lock, its = mine(on_lost=losses), mine()
        granted(lock).release()
        grant = granted(lock)
        waiting = run(granted, its)
        waits(its)
        expire_session(mine.client)
        assert losses.one().grant.token == grant.token
        new = waiting.result(SOON)
        assert (new.kept, new.token > grant.token) == (False, True)
        new.release()

    def test_tells_nobody_of_an_idle_one(self, mine: Keeping) -> None:
        losses, client = Losses(), mine.client
        lock = mine(on_lost=losses)
        token = mine.idle(lock)
        session = expire_session(client)
        wait_for(lambda: client.connected and in_another_session(client, session), SOON)
        with lock as grant:
            assert (grant.kept, grant.token > token) == (False, True)
        assert losses.losses == []

    @pytest.mark.parametrize("used", [False, True], ids=["idle", "in use"])
    def test_by_a_deleted_znode(self, mine: Keeping, stranger: zklock.Lock, used: bool) -> None:
        losses = Losses()
        lock = mine(on_lost=losses)
        token = mine.idle(lock)
        if used:
            granted(lock)
        assert stranger.break_lock() is not None
        mine.client.sync(mine.path)  # its answer comes behind the event
        if used:
            assert losses.one().reason is LossReason.NODE_DELETED
            with pytest.raises(zklock.LockLost):
                lock.release()

        def granted_after() -> bool:
            with lock as grant:
                return bool(grant.token > token)

        wait_for(granted_after, SOON)
        assert len(losses.losses) == used

    def test_an_idle_one_never_outlives_its_lease(self, behind: Behind, other: Any) -> None:
        far = behind(timeout=5.0)
        lock, losses = far(), Losses()
        token = far.idle(lock)
        grant = granted(far(on_lost=losses))
        behind.proxy.cut()
        assert losses.one().reason is LossReason.LEASE_LAPSED
        assert run(lock.acquire, timeout=0.1).result(SOON) is None
        behind.proxy.restore()
        passes_on(other, far.path)
        with lock as new:
            assert (new.token > token, grant.held) == (True, False)


class TestAConnectionInDoubt:
    """While events may be late, nobody is let in before the queue was looked at."""

    @pytest.mark.parametrize("how", ["cut", "blackhole"])
    def test_a_stranger_waits_for_one_body_only(
        self, behind: Behind, other: Any, stranger: zklock.Lock, how: str
    ) -> None:
        far, late, order = behind(), threading.Event(), list[str]()

        def hear(event: telemetry.Event) -> None:
            if isinstance(event, telemetry.HeartbeatLate | telemetry.Disconnected):
                late.set()

        def take(name: str, its: Any) -> None:
            grant = granted(its)
            order.append(name)
            grant.release()

        with closing(telemetry.subscribe(hear)):
            far.idle()
            holder = granted(far())
            here = []
            for _ in range(2):
                its = far()
                here.append(run(take, "here", its))
                waits(its)
            getattr(behind.proxy, how)()
            assert late.wait(SOON)
            theirs = run(take, "stranger", stranger)
            queued(other, far.path, 2)
            assert holder.held
            holder.release()
            here.append(run(take, "here", far()))
            behind.proxy.restore()
            results([theirs, *here])
        assert order == ["stranger", "here", "here", "here"]

    def test_one_that_is_idle_is_had_again_once_the_connection_is_back(
        self, behind: Behind
    ) -> None:
        far = behind()
        token = far.idle()
        behind.proxy.cut()
        wait_for(lambda: not far.client.connected, SOON)
        assert run(far().acquire, blocking=False).result(SOON) is None
        waiting = run(granted, far())
        behind.proxy.restore()
        grant = waiting.result(SOON)
        assert (grant.kept, grant.token) == (True, token)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"keep": -1}, ValueError, "keep must be"),
    ({"keep": float("nan")}, ValueError, "keep must be"),
    ({"keep": float("inf")}, ValueError, "keep must be"),
    ({"keep": True}, TypeError, "keep must be"),
    ({"keep": "5"}, TypeError, "keep must be"),
    ({"track_abandoned": True}, ValueError, "does not go together with"),
    ({"lock_delay": 1.0}, ValueError, "does not go together with"),
    ({"kind": "ReadLock"}, TypeError, "keep"),
    ({"kind": "Semaphore", "limit": 1}, TypeError, "keep"),
]


@pytest.mark.parametrize(("options", "error", "said"), BAD)
def test_bad_input(
    mine: Keeping, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        mine(**options)
    with pytest.raises(ValueError, match="a lock that is kept"):
        mine.front.MultiLock([mine()])


def waits(lock: Any) -> None:
    """Wait until an acquire of the lock has its place."""

    def placed() -> bool:
        users = getattr(lock, "_lock", lock)._users.copy()
        return any(held is None and asked._place is not None for asked, held in users.items())

    wait_for(placed, SOON)
