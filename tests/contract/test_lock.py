"""What a lock does while nothing goes wrong, and when it is used wrongly."""

from __future__ import annotations

import enum
import functools
import gc
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

import zklock
import zklock.aio
from tests.contract.lasting import LASTING
from tests.contract.support import (
    SOON,
    Losses,
    attempts_of,
    children,
    descriptors,
    granted,
    passes_on,
    queued,
    run,
    tree,
)
from tests.modes import bounded
from tests.stopwatch import Stopwatch
from zklock.fencing import ZooKeeperGuard, verify_owner
from zklock.testing import FaultProxy, ZooKeeperServer, four_letter, wait_for

Make = Callable[..., zklock.Lock]
Connect = Callable[..., Any]

BOUNDED = bounded(2.0)
"""Seconds that a bounded moment takes at most, on a busy machine."""


class TestGrant:
    def test_token_grows_h1(self, make_lock: Make, client: Any, zklock_path: str) -> None:
        lock = make_lock()
        tokens = []
        for _ in range(3):
            for _ in range(3):
                with lock as grant:
                    tokens.append(grant.token)
            client.delete(zklock_path)
            client.create(zklock_path)
        assert [token.sequence for token in tokens] == [0, 1, 2] * 3
        assert tokens == sorted(set(tokens))
        texts = [str(token) for token in tokens]
        assert texts == sorted(texts)

    def test_survives_several_session_timeouts(
        self, zklock_connect: Connect, zklock_path: str
    ) -> None:
        timeout = 9.0
        with zklock.Lock(zklock_connect(timeout=timeout), zklock_path) as grant:
            until = time.monotonic() + 2.5 * timeout
            while time.monotonic() < until:
                assert 0 < grant.remaining() <= 2 / 3 * timeout
                assert not grant.lost.wait(0.02)
            grant.verify()

    def test_by_a_member_of_an_enum(self, client: KazooClient, zklock_path: str) -> None:
        enumerated: Any = enum.Enum
        names = enumerated("Names", {"REPORT": zklock_path, "ME": "ödön"}, type=str)
        path, who = names.REPORT, names.ME  # formatted as "Names.REPORT" and "Names.ME"
        with zklock.Lock(client, path, identity=who, timeout=SOON) as grant:
            assert (grant.lock_path, grant.identity) == (zklock_path, "ödön")
            assert grant.path.startswith(f"{zklock_path}/_c_")
            verify_owner(client, path, grant)
        assert f"{ZooKeeperGuard(client, path).resource}" == zklock_path


class TestTurns:
    @pytest.mark.parametrize("between", [0, 1])
    def test_a_waiter_whose_node_is_deleted_queues_again(
        self, make_lock: Make, other: Any, zklock_path: str, between: int
    ) -> None:
        """Behind several others, a heartbeat finds that it is gone."""
        holder, waiter = zklock.Lock(other, zklock_path), make_lock()
        granted(holder)
        others = [run(granted, zklock.Lock(other, zklock_path)) for _ in range(between)]
        queued(other, zklock_path, 1 + between)
        waiting = run(granted, waiter)
        *before, name = queued(other, zklock_path, 2 + between)
        other.delete(f"{zklock_path}/{name}")
        again = wait_for(
            lambda: names[-1] if len(names := children(other, zklock_path)) > len(before) else None,
            SOON,
        )
        assert again[-10:] > name[-10:]
        holder.release()
        for each in others:
            each.result(SOON).release()
        grant = waiting.result(SOON)
        assert grant.path == f"{zklock_path}/{again}"
        grant.release()


class TestNotBlocking:
    @pytest.mark.parametrize("state", ["disconnected", "silence"])
    def test_is_bounded_without_zookeeper_h8(
        self,
        zklock_proxy: FaultProxy,
        zklock_connect: Connect,
        other: Any,
        zklock_path: str,
        state: str,
    ) -> None:
        client = zklock_connect(zklock_proxy.hosts)
        lock = zklock.Lock(client, zklock_path)
        granted(lock)
        lock.release()
        if state == "silence":
            zklock_proxy.blackhole()
        else:
            zklock_proxy.cut()
            wait_for(lambda: not client.connected, SOON)
        with Stopwatch() as watch:
            assert lock.acquire(blocking=False) is None
        assert watch.awake < BOUNDED
        zklock_proxy.restore()
        passes_on(other, zklock_path)

    def test_release_is_bounded_without_zookeeper_h8(
        self, zklock_proxy: FaultProxy, zklock_connect: Connect, other: Any, zklock_path: str
    ) -> None:
        lock = zklock.Lock(zklock_connect(zklock_proxy.hosts), zklock_path)
        granted(lock)
        zklock_proxy.blackhole()
        with Stopwatch() as watch:
            lock.release()
        assert watch.awake < BOUNDED
        assert not lock.held
        assert len(children(other, zklock_path)) == 1
        zklock_proxy.restore()
        passes_on(other, zklock_path)


class TestDeadline:
    def test_covers_two_sessions(
        self, client: Any, make_lock: Make, other: Any, zklock_path: str, zklock_expire_session: Any
    ) -> None:
        with zklock.Lock(other, zklock_path):
            with Stopwatch() as watch:
                waiting = run(make_lock().acquire, timeout=3.0)
                first = queued(other, zklock_path, 2)
                zklock_expire_session(client)
                wait_for(
                    lambda: len(now := children(other, zklock_path)) == 2 and now != first, SOON
                )
                assert waiting.result(SOON) is None
            assert watch.total >= 3.0
            assert watch.awake < 3.0 + BOUNDED
            queued(other, zklock_path, 1)

    def test_passes_without_a_connection(
        self, zklock_proxy: FaultProxy, zklock_connect: Connect, zklock_path: str
    ) -> None:
        client = zklock_connect(zklock_proxy.hosts)
        lock = zklock.Lock(client, zklock_path)
        zklock_proxy.cut()
        wait_for(lambda: not client.connected, SOON)
        with Stopwatch() as watch:
            assert lock.acquire(timeout=0.5) is None
        assert watch.total >= 0.5
        assert watch.awake < 0.5 + BOUNDED
        zklock_proxy.restore()
        granted(lock)
        lock.release()


class TestCancel:
    def test_while_disconnected(
        self, zklock_proxy: FaultProxy, zklock_connect: Connect, other: Any, zklock_path: str
    ) -> None:
        client = zklock_connect(zklock_proxy.hosts)
        lock = zklock.Lock(client, zklock_path)
        with zklock.Lock(other, zklock_path):
            waiting = run(lock.acquire)
            queued(other, zklock_path, 2)
            zklock_proxy.cut()
            wait_for(lambda: not client.connected, SOON)
            with Stopwatch() as watch, pytest.raises(zklock.AcquireCancelled):
                lock.cancel()
                watch.result(waiting, BOUNDED)
            zklock_proxy.restore()
            queued(other, zklock_path, 1)


class TestRelease:
    def test_with_a_block_that_was_left_by_another_thread(self, make_lock: Make) -> None:
        lock = make_lock()
        lock.__enter__()
        with pytest.raises(zklock.WrongThread):
            run(lock.__exit__, None, None, None).result(SOON)
        lock.__exit__(None, None, None)
        with pytest.raises(zklock.NotHeld):
            lock.__exit__(None, None, None)


class TestLostCallbacks:
    def test_are_called_once_each_on_threads_of_zklock(
        self, make_lock: Make, other: Any, client: Any
    ) -> None:
        at_lock, at_grant, late = Losses(), Losses(), Losses()
        lock = make_lock(on_lost=at_lock)
        grant = granted(lock)
        grant.add_lost_callback(at_grant)
        other.delete(grant.path)
        assert grant.lost.wait(SOON)
        grant.add_lost_callback(late)
        for losses in (at_lock, at_grant, late):
            loss = losses.one()
            assert loss.grant is grant
            assert loss.reason is zklock.LossReason.NODE_DELETED
            assert losses.threads[0].startswith("zklock-")
            assert loss.noticed <= losses.times[0]
            assert str(grant.token) in str(loss)
        zklock.Lock(client, lock.path + "/x").contenders()
        assert len(at_lock.losses) == len(at_grant.losses) == len(late.losses) == 1

    def test_are_not_called_for_what_was_released(self, make_lock: Make, other: Any) -> None:
        losses = Losses()
        lock = make_lock(on_lost=losses)
        grant = granted(lock)
        grant.add_lost_callback(losses)
        lock.release()
        grant.add_lost_callback(losses)
        second = granted(lock)
        other.delete(second.path)
        assert second.lost.wait(SOON)
        assert losses.one().grant is second
        with pytest.raises(zklock.LockLost):
            lock.release()

    @pytest.mark.parametrize("problem", [ValueError("on purpose"), SystemExit(3)])
    def test_that_raise_stop_no_other(
        self, make_lock: Make, other: Any, caplog: pytest.LogCaptureFixture, problem: BaseException
    ) -> None:
        def fail(loss: zklock.Loss) -> None:
            raise problem

        losses = Losses()
        lock = make_lock(on_lost=fail)
        grant = granted(lock)
        grant.add_lost_callback(fail)
        grant.add_lost_callback(losses)
        with caplog.at_level(logging.ERROR, "zklock"):
            other.delete(grant.path)
            losses.one()
        raised = [record for record in caplog.records if record.exc_info is not None]
        assert [record.exc_info[1] for record in raised if record.exc_info] == [problem] * 2
        with lock:
            pass

    def test_that_acquire_again(self, make_lock: Make, other: Any) -> None:
        again: list[zklock.Grant | None] = []
        done = threading.Event()

        def take_again(loss: zklock.Loss) -> None:
            again.append(lock.acquire(timeout=SOON))
            lock.release()
            done.set()

        lock = make_lock(on_lost=take_again)
        grant = granted(lock)
        other.delete(grant.path)
        assert done.wait(SOON)
        assert again[0] is not None
        assert again[0].token > grant.token


class TestContenders:
    def test_are_told_in_order(
        self, make_lock: Make, client: Any, other: Any, zklock_path: str
    ) -> None:
        lock = make_lock(identity="holder")
        assert lock.contenders() == []
        assert lock.holder() is None
        grant = granted(lock)
        waiting = run(granted, zklock.Lock(other, zklock_path, identity="waiter"))
        queued(other, zklock_path, 2)
        strange = other.create(f"{zklock_path}/not-a-contender")
        stone = other.create(f"{zklock_path}/_c_{uuid.uuid4()}-lock-", b"\xff!", sequence=True)
        holder, waiter, foreign = lock.contenders()
        assert (holder.identity, waiter.identity, foreign.identity) == (
            "holder",
            "waiter",
            "\ufffd!",
        )
        assert holder.sequence == 0
        assert holder.sequence < waiter.sequence < foreign.sequence
        assert holder.token == grant.token
        assert holder.path == grant.path
        assert holder.session_id == client.client_id[0]
        assert waiter.session_id == other.client_id[0]
        assert (foreign.session_id, foreign.path) == (0, stone)
        assert [one.holds for one in (holder, waiter, foreign)] == [True, False, False]
        assert lock.holder() == holder
        lock.release()
        successor = waiting.result(SOON)
        assert waiter.token == successor.token
        now = lock.holder()
        assert now == waiter
        assert now.holds
        successor.release()
        assert lock.holder() == foreign
        for node in (strange, stone):
            other.delete(node)

    @LASTING
    def test_many(self, make_lock: Make, other: Any, zklock_path: str) -> None:
        other.ensure_path(zklock_path)
        nodes = [
            other.create_async(f"{zklock_path}/_c_{uuid.uuid4()}-lock-", sequence=True)
            for _ in range(600)
        ]
        for node in nodes:
            node.get(timeout=SOON)
        told = make_lock().contenders()
        assert [contender.sequence for contender in told] == list(range(600))


BAD_OPTIONS: list[dict[str, Any]] = [
    {"identity": ""},
    {"identity": b"x"},
    {"identity": 3},
    {"identity": "ö" * 2049},
    {"identity": "\ud800"},
    {"timeout": -1},
    {"timeout": "1"},
    {"timeout": float("nan")},
    {"timeout": True},
    {"on_lost": 1},
    {"on_lost": "print"},
    {"on_suspended": 0.5},
    {"session_timeout": 0},
    {"session_timeout": -4},
    {"session_timeout": "4"},
    {"lease_fraction": 0},
    {"lease_fraction": 0.1},
    {"lease_fraction": 0.9},
    {"lease_fraction": float("nan")},
    {"lease_fraction": True},
]


class TestRefusals:
    @pytest.fixture(autouse=True)
    def nothing_is_left_in_zookeeper(self, other: Any) -> Iterator[None]:
        before = tree(other)
        yield
        assert tree(other) == before

    @pytest.mark.parametrize("options", BAD_OPTIONS, ids=repr)
    def test_of_options(
        self, zklock_client: Any, zklock_path: str, options: dict[str, Any]
    ) -> None:
        (name,) = options
        with pytest.raises((TypeError, ValueError), match=name):
            zklock.Lock(zklock_client, zklock_path, **options)

    def test_of_terms_that_differ_on_one_client(self, zklock_client: Any, zklock_path: str) -> None:
        zklock.Lock(zklock_client, zklock_path, lease_fraction=0.5)
        zklock.Lock(zklock_client, zklock_path)
        with pytest.raises(ValueError, match="one lease"):
            zklock.Lock(zklock_client, zklock_path, lease_fraction=0.6)

    @pytest.mark.parametrize("what", [None, "127.0.0.1:2181", {}, KazooClient], ids=repr)
    def test_of_what_is_no_client(self, zklock_path: str, what: Any) -> None:
        with pytest.raises(TypeError, match="connect"):
            zklock.Lock(what, zklock_path)

    def test_of_other_handlers(self, zklock_hosts: str, zklock_path: str) -> None:
        pytest.importorskip("gevent", reason="no gevent: install the extra test")
        from kazoo.handlers.gevent import SequentialGeventHandler

        client = KazooClient(zklock_hosts, handler=SequentialGeventHandler())
        with pytest.raises(zklock.ClientUnusable, match="SequentialGeventHandler"):
            zklock.Lock(client, zklock_path)

    def test_of_handlers_that_serve_another_client(
        self, zklock_hosts: str, zklock_path: str
    ) -> None:
        shared = zklock.Handler()
        with zklock.connect(zklock_hosts, handler=shared) as first:
            zklock.Lock(first, zklock_path)
            for connect in (zklock.connect, zklock.aio.connect):
                with pytest.raises(zklock.ClientUnusable, match="serves another client"):
                    connect(zklock_hosts, handler=shared)
            with zklock.Lock(first, zklock_path, tidy=True) as grant:
                grant.verify(SOON)
        with (
            zklock.connect(zklock_hosts, handler=shared) as second,
            zklock.Lock(second, zklock_path, tidy=True) as grant,
        ):
            for other in (first, KazooClient(zklock_hosts, handler=shared)):
                with pytest.raises(zklock.ClientUnusable, match="serves another client"):
                    other.start()
            grant.verify(SOON)

    def test_of_clients_that_are_not_started(self, zklock_hosts: str, zklock_path: str) -> None:
        client = KazooClient(zklock_hosts, handler=zklock.Handler())
        with pytest.raises(zklock.ClientClosed, match="start"):
            zklock.Lock(client, zklock_path)

    def test_of_clients_that_were_stopped(self, make_lock: Make, client: Any) -> None:
        lock = make_lock()
        client.stop()
        for ask in (lock.acquire, lock.contenders, lock.holder, make_lock):
            with pytest.raises(zklock.ClientClosed):
                ask()

    @pytest.mark.parametrize("thread", ["listener", "watch", "completion"])
    def test_of_threads_of_kazoo_h18(
        self, make_lock: Make, client: Any, other: Any, zklock_path: str, thread: str
    ) -> None:
        lock = make_lock()
        grant = granted(lock)
        calls: list[Callable[[], Any]] = [
            lock.acquire,
            functools.partial(lock.acquire, blocking=False),
            lock.release,
            lock.contenders,
            lock.holder,
            lock.__enter__,
            grant.release,
            grant.verify,
        ]
        outcomes: list[Any] = []
        done = threading.Event()

        def misuse(*ignored: Any) -> None:
            if not done.is_set():
                for call in calls:
                    try:
                        outcomes.append(call())
                    except Exception as error:
                        outcomes.append(error)
                outcomes.append((grant.held, lock.grant))
                done.set()

        if thread == "listener":
            client.add_listener(misuse)
            client.stop()
            client.start(SOON)
        elif thread == "watch":
            client.exists(f"{zklock_path}/flag", watch=misuse)
            other.create(f"{zklock_path}/flag")
        else:
            client.exists_async(zklock_path).rawlink(misuse)
        assert done.wait(SOON)
        assert [type(outcome) for outcome in outcomes[:-1]] == [zklock.WouldDeadlock] * len(calls)
        if thread != "listener":  # there the client was being stopped
            assert outcomes[-1] == (True, grant)
            lock.release()
            if thread == "watch":
                other.delete(f"{zklock_path}/flag")
        other.delete(zklock_path)


class TestClients:
    def test_chroot(
        self, zklock_hosts: str, zklock_connect: Connect, other: Any, zklock_path: str
    ) -> None:
        other.ensure_path(f"{zklock_path}/root")
        client = zklock_connect(f"{zklock_hosts}{zklock_path}/root")
        lock = zklock.Lock(client, "/deep/lock")
        grant = granted(lock)
        assert grant.path.startswith("/deep/lock/_c_")
        assert len(children(other, f"{zklock_path}/root/deep/lock")) == 1
        waiting = run(granted, zklock.Lock(client, "/deep/lock"))
        queued(other, f"{zklock_path}/root/deep/lock", 2)
        assert [each.path.count("root") for each in lock.contenders()] == [0, 0]
        grant.verify()
        lock.release()
        successor = waiting.result(SOON)
        losses = Losses()
        successor.add_lost_callback(losses)
        other.delete(f"{zklock_path}/root{successor.path}")
        assert losses.one().reason is zklock.LossReason.NODE_DELETED

    def test_a_chroot_that_is_missing(
        self, zklock_hosts: str, zklock_connect: Connect, zklock_path: str
    ) -> None:
        with pytest.warns(UserWarning, match="does not exist: create it"):
            client = zklock_connect(f"{zklock_hosts}{zklock_path}/root/of/all")
        with pytest.raises(zklock.ZkLockError, match="the chroot in the client's address does not"):
            granted(zklock.Lock(client, "/lock"))

    def test_a_client_that_is_started_again(self, make_lock: Make, client: Any) -> None:
        losses = Losses()
        lock = make_lock(on_lost=losses)
        grant = granted(lock)
        client.stop()
        assert losses.one().reason is zklock.LossReason.CLIENT_CLOSED
        client.start(SOON)
        with pytest.raises(zklock.LockLost):
            lock.release()
        with lock as second:
            assert second.session_id != grant.session_id

    def test_one_client_carries_many_locks(
        self, client: Any, zklock_path: str, session_seconds: float
    ) -> None:
        locks = [
            zklock.Lock(client, f"{zklock_path}/{number}", session_timeout=session_seconds)
            if not isinstance(client.handler, zklock.Handler)
            else zklock.Lock(client, f"{zklock_path}/{number}")
            for number in range(100)
        ]
        grants = [granted(lock) for lock in locks]
        assert all(grant.held for grant in grants)
        for grant in grants:
            grant.verify()
        for lock in locks:
            lock.release()

    @LASTING
    def test_nothing_piles_up_h14(
        self,
        make_lock: Make,
        client: Any,
        other: Any,
        zklock_path: str,
        zklock_server: ZooKeeperServer,
    ) -> None:
        def watches() -> int:
            text = four_letter(zklock_server.host, zklock_server.port, "wchp")
            return text.count(f"0x{client.client_id[0]:x}")

        with zklock.Lock(other, zklock_path):
            lock = make_lock()
            for _ in range(60):
                assert lock.acquire(timeout=0.01) is None
            for _ in range(60):
                pending = run(lock.acquire)
                queued(other, zklock_path, 2)
                lock.cancel()
                with pytest.raises(zklock.AcquireCancelled):
                    pending.result(SOON)
                queued(other, zklock_path, 1)
            assert watches() <= 1  # on the holder's node, shared by all of them
            del pending
            wait_for(lambda: not attempts_of(client), SOON, "no attempt is left in memory")
        with lock:
            pass
        wait_for(lambda: watches() == 0, SOON)

    def test_descriptors_go_with_stopped_clients(self, zklock_hosts: str, zklock_path: str) -> None:
        def one() -> None:
            client = zklock.connect(zklock_hosts)
            with zklock.Lock(client, zklock_path):
                pass
            client.stop()  # and no close()

        one()
        gc.collect()
        before = len(descriptors())
        for _ in range(10):
            one()
        gc.collect()
        assert len(descriptors()) <= before + 2
