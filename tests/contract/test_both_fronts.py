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
from tests.contract.fronts import KEPT, KINDS, Kind, Loop, Threads
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, Losses, children, gone, granted, passes_on, queued, run
from tests.modes import bounded
from tests.stopwatch import Stopwatch
from zklock import LossReason
from zklock.testing import FaultProxy, wait_for

Make = Callable[..., Any]

BOUNDED = bounded(2.0)

CURATOR_NAME = re.compile(r"_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-(lock-|__WRIT__)[0-9]{10}")

EACH_WITH_A_ZNODE = pytest.mark.parametrize(
    "kind", KINDS, indirect=True, ids=lambda kind: kind.name
)


@pytest.fixture(params=[*KINDS, KEPT], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def make(
    front: Threads | Loop,
    kind: Kind,
    client: Any,
    other: Any,
    zklock_path: str,
    session_seconds: float,
) -> Make:
    """Return ``make(client=None, **options)``: a lock on the path of the test."""

    def make_lock(on: Any = client, path: str = zklock_path, **options: Any) -> Any:
        if on is client and not isinstance(client.handler, zklock.Handler):
            options.setdefault("session_timeout", session_seconds)
        return front.lock(kind, on, path, **options)

    return make_lock


class TestGrants:
    @EACH_WITH_A_ZNODE
    def test_from_acquire_to_release(
        self, make: Make, client: Any, zklock_path: str, session_seconds: float
    ) -> None:
        lock = make(identity="ödön")
        assert (lock.held, lock.grant, lock.path) == (False, None, zklock_path)
        grant = granted(lock)
        assert (lock.held, lock.grant, grant.held) == (True, grant, True)
        assert 0 < grant.remaining() <= session_seconds
        assert not grant.lost.is_set()
        grant.check()
        grant.verify()
        data, stat = client.get(grant.path)
        assert (data.decode(), grant.identity) == ("ödön", "ödön")
        assert grant.session_id == stat.ephemeralOwner == client.client_id[0]
        parent, _, name = grant.path.rpartition("/")
        assert parent == grant.lock_path == zklock_path
        assert CURATOR_NAME.fullmatch(name)
        assert grant.token == zklock.FencingToken(client.exists(parent).czxid, int(name[-10:]))
        lock.release()
        assert (lock.held, lock.grant, grant.held, grant.released) == (False, None, False, True)
        assert grant.remaining() == 0.0
        assert not grant.lost.is_set()
        assert children(client, zklock_path) == []

    @EACH_WITH_A_ZNODE
    def test_name_host_process_and_thread_or_task(self, make: Make) -> None:
        def identity() -> str:
            with make() as grant:
                return str(grant.identity)

        ours = f"{socket.gethostname()}:{os.getpid()}:contract-test"
        assert run(identity).result(SOON) == ours

    @EACH_WITH_A_ZNODE
    def test_exclude_each_other_and_tokens_grow(self, make: Make, other: Any) -> None:
        locks = [make(), make(other)]
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

        for each in [run(work, locks[number % 2]) for number in range(6)]:
            each.result(SOON)
        assert len(tokens) == 30
        assert tokens == sorted(set(tokens))

    @EACH_WITH_A_ZNODE
    def test_come_in_the_order_of_asking(self, make: Make, other: Any, zklock_path: str) -> None:
        holder = granted(make())
        order: list[int] = []

        def wait(number: int, lock: Any) -> None:
            with lock:
                order.append(number)

        waiting = []
        for number in range(6):
            waiting.append(run(wait, number, make(other) if number % 2 else make()))
            queued(other, zklock_path, number + 2)
        holder.release()
        for each in waiting:
            each.result(SOON)
        assert order == list(range(6))
        gone(other, zklock_path)


class TestGivingUp:
    @EACH_WITH_A_ZNODE
    @pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0}, {"timeout": 0.3}])
    def test_in_time(self, make: Make, other: Any, zklock_path: str, how: dict[str, Any]) -> None:
        lock = make()
        holder = granted(make(other))
        with Stopwatch() as watch:
            assert lock.acquire(**how) is None
        assert watch.total >= how.get("timeout", 0)
        assert watch.awake < BOUNDED
        assert queued(other, zklock_path, 1) == [holder.path.rpartition("/")[2]]
        holder.release()
        grant = lock.acquire(**how)
        assert grant is not None
        grant.release()
        passes_on(other, zklock_path)

    def test_with_raises(self, make: Make, other: Any, zklock_path: str) -> None:
        lock, holder = make(timeout=0.2), granted(make(other))
        with pytest.raises(zklock.AcquireTimeout, match=r"0\.2 s") as caught:
            lock.__enter__()
        assert caught.value.path == zklock_path
        holder.release()
        granted(lock).release()
        with make():
            pass

    @EACH_WITH_A_ZNODE
    def test_cancel_h11(self, make: Make, other: Any, zklock_path: str) -> None:
        lock, bystander, holder = make(), make(), granted(make(other))
        pending = [run(lock.acquire) for _ in range(2)]
        queued(other, zklock_path, 3)
        waiting = run(granted, bystander)
        queued(other, zklock_path, 4)
        lock.cancel()
        for each in pending:
            with pytest.raises(zklock.AcquireCancelled):
                each.result(SOON)
        queued(other, zklock_path, 2)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        holder.release()
        waiting.result(SOON).release()
        with lock:
            lock.cancel()
            assert lock.held

    def test_a_client_that_is_stopped_while_waiting(
        self, make: Make, other: Any, zklock_path: str, zklock_connect: Any
    ) -> None:
        client = zklock_connect()
        holder = granted(make(other))
        waiting = run(make(client).acquire)
        queued(other, zklock_path, 2)
        client.stop()
        with pytest.raises(zklock.ClientClosed):
            waiting.result(SOON)
        queued(other, zklock_path, 1)
        holder.release()

    def test_a_waiter_outlives_its_session(
        self, make: Make, client: Any, other: Any, zklock_path: str, zklock_expire_session: Any
    ) -> None:
        holder = granted(make(other))
        waiting = run(granted, make())
        before = queued(other, zklock_path, 2)[1]
        session = zklock_expire_session(client)
        wait_for(lambda: len(now := children(other, zklock_path)) == 2 and now[1] != before, SOON)
        holder.release()
        grant = waiting.result(SOON)
        assert grant.session_id not in {0, session}
        grant.release()


class TestRelease:
    def test_twice(self, make: Make) -> None:
        lock = make()
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

    def test_by_another(self, make: Make) -> None:
        lock = make()
        grant = granted(lock)
        with pytest.raises(zklock.WrongThread) as caught:
            run(lock.release).result(SOON)
        assert caught.value.token == grant.token
        assert grant.held
        run(grant.release).result(SOON)
        assert (lock.held, lock.grant) == (False, None)
        with pytest.raises(zklock.NotHeld):
            lock.release()

    def test_of_what_was_never_acquired(self, make: Make) -> None:
        with pytest.raises(zklock.NotHeld):
            make().release()


class TestLoss:
    def test_is_told_once(self, make: Make, other: Any) -> None:
        losses, more = Losses(), Losses()
        lock = make(on_lost=losses)
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
        self,
        make: Make,
        kind: Kind,
        client: Any,
        other: Any,
        zklock_path: str,
        how: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Its node is not watched yet: that there is nothing to delete is the proof.

        A kept lock deletes nothing at its release, and says nothing there.
        """
        # A heartbeat tells this loss, so the next one is far.
        before = Losses()
        other.delete(granted(zklock.Lock(client, f"{zklock_path}/before", on_lost=before)).path)
        before.one()
        caplog.clear()
        losses = Losses()
        lock = make(on_lost=losses)
        says = nullcontext() if kind is KEPT else pytest.raises(zklock.LockLost)
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
                assert noted is (kind is not KEPT)
        assert losses.one().reason is LossReason.NODE_DELETED
        wait_for(lambda: "lock lost" in caplog.text, SOON)
        if how in {"released", "abandoned"}:
            with pytest.raises(zklock.LockLost):
                lock.release()  # the lock, too, says once that it was lost
        with lock as again:
            assert again.held

    def test_of_the_session(self, make: Make, client: Any, zklock_expire_session: Any) -> None:
        losses = Losses()
        grant = granted(make(on_lost=losses))
        zklock_expire_session(client)
        # ZooKeeper deletes the nodes first; who watches them can be told of that alone.
        assert losses.one().reason in {LossReason.SESSION_EXPIRED, LossReason.NODE_DELETED}
        assert not grant.held

    def test_of_the_lease(
        self,
        make: Make,
        zklock_proxy: FaultProxy,
        zklock_connect: Any,
        other: Any,
        zklock_path: str,
    ) -> None:
        losses, warned = Losses(), threading.Event()
        client = zklock_connect(zklock_proxy.hosts, timeout=5.0)
        lock = make(client, on_lost=losses, on_suspended=lambda grant: warned.set())
        granted(lock)
        zklock_proxy.cut()
        assert losses.one().reason is LossReason.LEASE_LAPSED
        assert warned.is_set()
        zklock_proxy.restore()
        passes_on(other, zklock_path)

    def test_of_the_client(
        self, make: Make, zklock_connect: Any, other: Any, zklock_path: str
    ) -> None:
        losses, client = Losses(), zklock_connect()
        granted(make(client, on_lost=losses))
        client.stop()
        assert losses.one().reason is LossReason.CLIENT_CLOSED
        passes_on(other, zklock_path)


class TestQueries:
    def test_of_a_queue(self, make: Make, other: Any, zklock_path: str) -> None:
        lock, second = make(identity="first"), make(other, identity="second")
        assert (lock.contenders(), lock.holder()) == ([], None)
        grant = granted(lock)
        waiting = run(granted, second)
        queued(other, zklock_path, 2)
        for asked in (lock, second):
            assert [(each.identity, each.holds) for each in asked.contenders()] == [
                ("first", True),
                ("second", False),
            ]
            waiter = asked.contenders()[1]
            assert waiter.session_id == other.client_id[0]
            holder = asked.holder()
            assert (holder.identity, holder.token) == ("first", grant.token)
            assert holder.session_id == grant.session_id
        lock.release()
        successor = waiting.result(SOON)
        assert lock.holder().token == waiter.token == successor.token
        successor.release()

    def test_without_an_answer(
        self, make: Make, zklock_proxy: FaultProxy, zklock_connect: Any
    ) -> None:
        lock = make(zklock_connect(zklock_proxy.hosts, timeout=10.0))
        grant = granted(lock)
        zklock_proxy.blackhole()
        for question in (lock.contenders, lock.holder, lock.request_release, grant.verify):
            with Stopwatch() as watch, pytest.raises(zklock.NoAnswer, match=r"0\.2 s"):
                question(timeout=0.2)
            assert watch.total >= 0.2
            assert watch.awake < BOUNDED
        assert grant.held
        zklock_proxy.restore()

    def test_request_and_break(self, make: Make, other: Any, zklock_path: str) -> None:
        asked: list[Any] = []
        heard = threading.Event()

        def on_request(grant: Any) -> None:
            asked.append(grant)
            heard.set()

        losses = Losses()
        lock = make(on_release_requested=on_request, on_lost=losses)
        grant = granted(lock)
        onlooker = make(other)
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
        passes_on(other, zklock_path)


class TestBadInput:
    @pytest.mark.parametrize("name", ["on_lost", "on_suspended", "on_release_requested"])
    def test_of_coroutine_functions_h33(self, make: Make, front: Any, name: str) -> None:
        async def callback(_: Any) -> None: ...

        if front.name == "asyncio":
            make(**{name: callback})
            return
        with pytest.raises(TypeError, match=rf"{name} is a coroutine function.*zklock\.aio"):
            make(**{name: callback})
        with (
            make() as grant,
            pytest.raises(TypeError, match=r"a lost callback is a coroutine function"),
        ):
            grant.add_lost_callback(callback)

    def test_of_the_calls(self, make: Make, client: Any, zklock_path: str) -> None:
        lock = make()
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
        assert client.exists(zklock_path) is None
        with lock as grant:
            with pytest.raises(TypeError):
                grant.verify(timeout="1")
            with pytest.raises(TypeError):
                grant.add_lost_callback(None)
