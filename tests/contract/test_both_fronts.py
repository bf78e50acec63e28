"""The core promises, of every kind of lock, for threads and for asyncio."""

from __future__ import annotations

import math
import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import zklock
from tests.contract.fronts import Behind, Place
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, Losses, granted, results, run
from tests.modes import bounded
from tests.stopwatch import Stopwatch
from zklock import LossReason
from zklock.testing import FaultProxy, expire_session, wait_for

BOUNDED = bounded(2.0)

CURATOR_NAME = re.compile(r"_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-(lock-|__WRIT__)[0-9]{10}")

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Lock": ("Lock", {}),
    "Lock with marks": ("Lock", {"track_abandoned": True}),
    "RLock": ("RLock", {}),
    "WriteLock": ("WriteLock", {}),
    "kept Lock": ("Lock", {"keep": 0.05}),
}
"""What makes each kind of lock exclusive. A new one needs a line here."""

KEPT = "kept Lock"
"""It stays with its client for a moment, and waits there without a znode for each who waits."""

EACH_WITH_A_ZNODE = pytest.mark.parametrize("kind", [each for each in KINDS if each != KEPT])


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


class Places(Place):
    """Makes locks of the kind of the test: ``place(at, **options)``."""

    def __init__(self, place: Place, kind: str) -> None:
        super().__init__(place.front, place.client, place.path)
        name, self.options = KINDS[kind]
        self.make = getattr(self, name)

    def __call__(self, at: str = "", **options: Any) -> Any:
        return self.make(at, **self.options, **options)


@pytest.fixture
def mine(mine: Place, kind: str) -> Places:
    return Places(mine, kind)


@pytest.fixture
def theirs(theirs: Place, kind: str) -> Places:
    return Places(theirs, kind)


@pytest.fixture
def behind(behind: Behind, kind: str) -> Behind:
    return Behind(lambda **options: Places(behind(**options), kind), behind.proxy)


class TestGrants:
    @EACH_WITH_A_ZNODE
    def test_from_acquire_to_release(self, mine: Places, session_seconds: float) -> None:
        lock = mine(identity="ödön")
        assert (lock.held, lock.grant, lock.path) == (False, None, mine.path)
        grant = granted(lock)
        assert (lock.held, lock.grant, grant.held) == (True, grant, True)
        assert 0 < grant.remaining() <= session_seconds
        assert not grant.lost.is_set()
        grant.check()
        grant.verify()
        data, stat = mine.client.get(grant.path)
        assert (data.decode(), grant.identity) == ("ödön", "ödön")
        assert grant.session_id == stat.ephemeralOwner == mine.client.client_id[0]
        parent, _, name = grant.path.rpartition("/")
        assert parent == grant.lock_path == mine.path
        assert CURATOR_NAME.fullmatch(name)
        assert grant.token == zklock.FencingToken(mine.client.exists(parent).czxid, int(name[-10:]))
        lock.release()
        assert (lock.held, lock.grant, grant.held, grant.released) == (False, None, False, True)
        assert grant.remaining() == 0.0
        assert not grant.lost.is_set()
        assert mine.nodes() == []

    @EACH_WITH_A_ZNODE
    def test_name_host_process_and_thread_or_task(self, mine: Places) -> None:
        def identity() -> str:
            with mine() as grant:
                return str(grant.identity)

        ours = f"{socket.gethostname()}:{os.getpid()}:contract-test"
        assert run(identity).result(SOON) == ours

    @EACH_WITH_A_ZNODE
    def test_exclude_each_other_and_tokens_grow(self, mine: Places, theirs: Places) -> None:
        locks = [mine(), theirs()]
        inside: list[Any] = []
        tokens: list[zklock.FencingToken] = []

        def work(lock: Any) -> None:
            for _ in range(5):
                with lock as grant:
                    inside.append(grant)
                    assert inside == [grant]
                    grant.check()
                    tokens.append(grant.token)
                    inside.remove(grant)

        results([run(work, locks[number % 2]) for number in range(6)])
        assert len(tokens) == 30
        assert tokens == sorted(set(tokens))

    @EACH_WITH_A_ZNODE
    def test_come_in_the_order_of_asking(self, mine: Places, theirs: Places) -> None:
        holder = granted(mine())
        order: list[int] = []

        def wait(number: int, lock: Any) -> None:
            with lock:
                order.append(number)

        waiting = []
        for number in range(6):
            waiting.append(run(wait, number, theirs() if number % 2 else mine()))
            theirs.queued(number + 2)
        holder.release()
        results(waiting)
        assert order == list(range(6))
        theirs.gone()


class TestGivingUp:
    @EACH_WITH_A_ZNODE
    @pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0}, {"timeout": 0.3}])
    def test_in_time(self, mine: Places, theirs: Places, how: dict[str, Any]) -> None:
        lock = mine()
        holder = granted(theirs())
        with Stopwatch() as watch:
            assert lock.acquire(**how) is None
        assert watch.total >= how.get("timeout", 0)
        assert watch.awake < BOUNDED
        assert theirs.queued(1) == [holder.path.rpartition("/")[2]]
        holder.release()
        grant = lock.acquire(**how)
        assert grant is not None
        grant.release()
        theirs.passes_on()

    def test_with_raises(self, mine: Places, theirs: Places) -> None:
        lock, holder = mine(timeout=0.2), granted(theirs())
        with pytest.raises(zklock.AcquireTimeout, match=r"0\.2 s") as caught:
            lock.__enter__()
        assert caught.value.path == mine.path
        holder.release()
        granted(lock).release()
        with mine():
            pass

    @EACH_WITH_A_ZNODE
    def test_cancel_h11(self, mine: Places, theirs: Places) -> None:
        lock, bystander, holder = mine(), mine(), granted(theirs())
        pending = [run(lock.acquire) for _ in range(2)]
        theirs.queued(3)
        waiting = theirs.waits(bystander, 4)
        lock.cancel()
        for each in pending:
            with pytest.raises(zklock.AcquireCancelled):
                each.result(SOON)
        theirs.queued(2)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        holder.release()
        waiting.result(SOON).release()
        with lock:
            lock.cancel()
            assert lock.held

    def test_a_client_that_is_stopped_while_waiting(self, mine: Places, theirs: Places) -> None:
        holder = granted(theirs())
        waiting = theirs.waits(mine(), 2)
        mine.client.stop()
        with pytest.raises(zklock.ClientClosed):
            waiting.result(SOON)
        theirs.queued(1)
        holder.release()

    def test_a_waiter_outlives_its_session(self, mine: Places, theirs: Places) -> None:
        holder = granted(theirs())
        waiting = theirs.waits(mine(), 2)
        before = theirs.nodes()[1]
        session = expire_session(mine.client)
        wait_for(lambda: len(now := theirs.nodes()) == 2 and now[1] != before, SOON)
        holder.release()
        grant = waiting.result(SOON)
        assert grant.session_id not in {0, session}
        grant.release()


class TestRelease:
    def test_twice(self, mine: Places) -> None:
        lock = mine()
        grant = granted(lock)
        lock.release()
        for again in (lock.release, grant.release, grant.check, grant.verify):
            with pytest.raises(zklock.NotHeld) as caught:
                again()
            assert not isinstance(caught.value, zklock.WrongThread)
            assert caught.value.path == lock.path
        grant.abandon()
        with lock as later:
            with pytest.raises(zklock.NotHeld):
                grant.release()
            grant.abandon()
            assert (later.held, lock.grant) == (True, later)

    def test_by_another(self, mine: Places) -> None:
        lock = mine()
        with pytest.raises(zklock.NotHeld):
            lock.release()
        grant = granted(lock)
        with pytest.raises(zklock.WrongThread) as caught:
            run(lock.release).result(SOON)
        assert caught.value.token == grant.token
        with pytest.raises(zklock.WrongThread):
            run(lock.__exit__, None, None, None).result(SOON)
        assert grant.held
        run(grant.release).result(SOON)
        assert (lock.held, lock.grant) == (False, None)
        with pytest.raises(zklock.NotHeld):
            lock.release()


class TestLoss:
    def test_is_told_once(self, mine: Places, other: Any) -> None:
        losses, more = Losses(), Losses()
        lock = mine(on_lost=losses)
        grant = granted(lock)
        grant.add_lost_callback(more)
        other.delete(grant.path)
        loss = losses.one()
        assert more.one() is loss
        assert (loss.reason, loss.grant) == (LossReason.NODE_DELETED, grant)
        assert grant.lost.wait(SOON)
        assert (grant.held, grant.remaining(), grant.released) == (False, 0.0, False)
        assert lock.grant == grant
        for ask in (grant.release, grant.check, grant.verify):
            with pytest.raises(zklock.LockLost) as caught:
                ask()
            assert (caught.value.loss, caught.value.token) == (loss, grant.token)
        late = Losses()
        grant.add_lost_callback(late)
        assert late.one() is loss
        with pytest.raises(zklock.LockLost):
            lock.release()
        with pytest.raises(zklock.NotHeld):
            lock.release()
        assert lock.grant is None
        with lock as again:
            assert again.token > grant.token
        assert (len(losses.losses), len(more.losses)) == (1, 1)

    @LASTING
    @pytest.mark.parametrize("how", ["released", "of a body", "of a body that fails", "abandoned"])
    def test_of_a_young_grant_is_told_at_its_end(
        self, mine: Places, kind: str, other: Any, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its node is not watched yet: that there is nothing to delete is the proof.

        A kept lock deletes nothing at its release, and says nothing there.
        """
        # A heartbeat tells this loss, so the next one is far.
        before = Losses()
        elsewhere = zklock.Lock(mine.client, f"{mine.path}/before", on_lost=before)
        other.delete(granted(elsewhere).path)
        before.one()
        caplog.clear()
        losses = Losses()
        lock = mine(on_lost=losses)
        says = nullcontext() if kind == KEPT else pytest.raises(zklock.LockLost)
        match how:
            case "released" | "abandoned":
                grant = granted(lock)
                other.delete(grant.path)
                with says if how == "released" else nullcontext():
                    grant.release() if how == "released" else grant.abandon()
            case "of a body":
                with says, lock as grant:
                    other.delete(grant.path)
            case _:
                with pytest.raises(KeyError) as failed, lock as grant:
                    other.delete(grant.path)
                    raise KeyError
                noted = "the lock was also lost" in "".join(getattr(failed.value, "__notes__", ()))
                assert noted is (kind != KEPT)
        assert losses.one().reason is LossReason.NODE_DELETED
        wait_for(lambda: "lock lost" in caplog.text, SOON)
        if how in {"released", "abandoned"}:
            with pytest.raises(zklock.LockLost):
                lock.release()  # the lock, too, says once that it was lost
        with lock as again:
            assert again.held

    def test_of_the_lease(self, behind: Behind, theirs: Places, zklock_proxy: FaultProxy) -> None:
        losses, warned = Losses(), threading.Event()
        granted(behind(timeout=5.0)(on_lost=losses, on_suspended=lambda grant: warned.set()))
        zklock_proxy.cut()
        assert losses.one().reason is LossReason.LEASE_LAPSED
        assert warned.is_set()
        zklock_proxy.restore()
        theirs.passes_on()

    def test_of_the_client(self, mine: Places, theirs: Places) -> None:
        losses = Losses()
        granted(mine(on_lost=losses))
        mine.client.stop()
        assert losses.one().reason is LossReason.CLIENT_CLOSED
        theirs.passes_on()


class TestQueries:
    def test_of_a_queue(self, mine: Places, theirs: Places) -> None:
        lock, second = mine(identity="first"), theirs(identity="second")
        assert (lock.contenders(), lock.holder()) == ([], None)
        grant = granted(lock)
        waiting = theirs.waits(second, 2)
        for asked in (lock, second):
            assert [(each.identity, each.holds) for each in asked.contenders()] == [
                ("first", True),
                ("second", False),
            ]
            waiter = asked.contenders()[1]
            assert waiter.session_id == theirs.client.client_id[0]
            holder = asked.holder()
            assert (holder.identity, holder.token) == ("first", grant.token)
            assert holder.session_id == grant.session_id
        lock.release()
        successor = waiting.result(SOON)
        assert lock.holder().token == waiter.token == successor.token
        successor.release()

    def test_without_an_answer(self, behind: Behind, zklock_proxy: FaultProxy) -> None:
        lock = behind()()
        grant = granted(lock)
        zklock_proxy.blackhole()
        for question in (lock.contenders, lock.holder, lock.request_release, grant.verify):
            with Stopwatch() as watch, pytest.raises(zklock.NoAnswer, match=r"0\.2 s"):
                question(timeout=0.2)
            assert watch.total >= 0.2
            assert watch.awake < BOUNDED
        assert grant.held
        zklock_proxy.restore()

    def test_request_and_break(self, mine: Places, theirs: Places) -> None:
        asked: list[Any] = []
        heard = threading.Event()

        def on_request(grant: Any) -> None:
            asked.append(grant)
            heard.set()

        losses = Losses()
        lock = mine(on_release_requested=on_request, on_lost=losses)
        grant = granted(lock)
        onlooker = theirs()
        assert [each.token for each in onlooker.request_release()] == [grant.token]
        assert heard.wait(SOON)
        assert asked == [grant]
        wrong = zklock.FencingToken(grant.token.epoch, grant.token.sequence + 1)
        with pytest.raises(zklock.NotOwner):
            onlooker.break_lock(wrong)
        assert grant.held
        assert onlooker.break_lock(grant.token).token == grant.token
        assert losses.one().reason is LossReason.NODE_DELETED
        assert onlooker.break_lock() is None
        theirs.passes_on()


class TestBadInput:
    @pytest.mark.parametrize("name", ["on_lost", "on_suspended", "on_release_requested"])
    def test_of_coroutine_functions_h33(self, mine: Places, name: str) -> None:
        async def callback(_: Any) -> None: ...

        if mine.front.name == "asyncio":
            mine("", **{name: callback})
            return
        with pytest.raises(TypeError, match=rf"{name} is a coroutine function.*zklock\.aio"):
            mine("", **{name: callback})
        with (
            mine() as grant,
            pytest.raises(TypeError, match=r"a lost callback is a coroutine function"),
        ):
            grant.add_lost_callback(callback)

    def test_of_the_calls(self, mine: Places) -> None:
        lock = mine()
        calls: list[tuple[Callable[[], object], type[Exception]]] = [
            (lambda: lock.acquire(timeout=-1), ValueError),
            (lambda: lock.acquire(timeout=True), TypeError),
            (lambda: lock.acquire(5), TypeError),
            (lambda: lock.acquire(timeout="1"), TypeError),
            (lambda: lock.acquire(timeout=math.nan), ValueError),
            (lambda: lock.acquire(blocking=False, timeout=0), ValueError),
            (lambda: lock.acquire(blocking=False, timeout=1), ValueError),
            (lambda: lock.contenders(timeout="1"), TypeError),
            (lambda: lock.holder(timeout=-1), ValueError),
            (lambda: lock.break_lock("token"), TypeError),
        ]
        for call, error in calls:
            with pytest.raises(error):
                call()
        assert mine.client.exists(mine.path) is None
        with lock as grant:
            with pytest.raises(TypeError):
                grant.verify(timeout="1")
            with pytest.raises(TypeError):
                grant.add_lost_callback(None)
