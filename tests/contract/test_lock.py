"""What a lock does while nothing goes wrong, and when it is used wrongly."""

from __future__ import annotations

import asyncio
import enum
import functools
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

import zklock
import zklock.aio
from tests.contract.fronts import Behind, Place, Threads
from tests.contract.lasting import LASTING
from tests.contract.support import (
    SOON,
    Losses,
    attempts_of,
    descriptors,
    granted,
    queued,
    run,
    tree,
)
from tests.modes import bounded
from tests.stopwatch import Stopwatch
from zklock.fencing import ZooKeeperGuard, verify_owner
from zklock.testing import ZooKeeperServer, expire_session, four_letter, wait_for

Connect = Callable[..., Any]

BOUNDED = bounded(2.0)
"""Seconds that a bounded moment takes at most, on a busy machine."""


@pytest.fixture
def front() -> Threads:
    return Threads()


class TestGrant:
    def test_token_grows_h1(self, mine: Place) -> None:
        lock = mine.Lock()
        tokens = []
        for _ in range(3):
            for _ in range(3):
                with lock as grant:
                    tokens.append(grant.token)
            mine.client.delete(mine.path)
            mine.client.create(mine.path)
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
        self, mine: Place, theirs: Place, between: int
    ) -> None:
        """Behind several others, a heartbeat finds that it is gone."""
        holder = granted(theirs.Lock())
        others = [theirs.waits(theirs.Lock(), 2 + number) for number in range(between)]
        waiting = theirs.waits(mine.Lock(), 2 + between)
        *before, name = theirs.nodes()
        theirs.client.delete(f"{mine.path}/{name}")
        again = wait_for(
            lambda: names[-1] if len(names := theirs.nodes()) > len(before) else None, SOON
        )
        assert again[-10:] > name[-10:]
        holder.release()
        for each in others:
            each.result(SOON).release()
        grant = waiting.result(SOON)
        assert grant.path == f"{mine.path}/{again}"
        grant.release()


class TestNotBlocking:
    @pytest.mark.parametrize("state", ["disconnected", "silence"])
    @pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0.5}], ids=str)
    def test_is_bounded_without_zookeeper_h8(
        self, behind: Behind, theirs: Place, state: str, how: dict[str, Any]
    ) -> None:
        far = behind()
        lock = far.Lock()
        granted(lock).release()
        if state == "silence":
            behind.proxy.blackhole()
        else:
            behind.proxy.cut()
            wait_for(lambda: not far.client.connected, SOON)
        with Stopwatch() as watch:
            assert lock.acquire(**how) is None
        assert watch.total >= how.get("timeout", 0)
        assert watch.awake < how.get("timeout", 0) + BOUNDED
        behind.proxy.restore()
        theirs.passes_on()
        granted(lock).release()

    def test_release_is_bounded_without_zookeeper_h8(self, behind: Behind, theirs: Place) -> None:
        lock = behind().Lock()
        granted(lock)
        behind.proxy.blackhole()
        with Stopwatch() as watch:
            lock.release()
        assert watch.awake < BOUNDED
        assert not lock.held
        assert len(theirs.nodes()) == 1
        behind.proxy.restore()
        theirs.passes_on()


class TestGivingUp:
    def test_at_a_deadline_that_covers_two_sessions(self, mine: Place, theirs: Place) -> None:
        with theirs.Lock():
            with Stopwatch() as watch:
                waiting = run(mine.Lock().acquire, timeout=3.0)
                first = theirs.queued(2)
                expire_session(mine.client)
                wait_for(lambda: len(now := theirs.nodes()) == 2 and now != first, SOON)
                assert waiting.result(SOON) is None
            assert watch.total >= 3.0
            assert watch.awake < 3.0 + BOUNDED
            theirs.queued(1)

    def test_by_a_cancel_while_disconnected(self, behind: Behind, theirs: Place) -> None:
        far = behind()
        lock = far.Lock()
        with theirs.Lock():
            waiting = theirs.waits(lock, 2, timeout=None)
            behind.proxy.cut()
            wait_for(lambda: not far.client.connected, SOON)
            with Stopwatch() as watch, pytest.raises(zklock.AcquireCancelled):
                lock.cancel()
                watch.result(waiting, BOUNDED)
            behind.proxy.restore()
            theirs.queued(1)


class TestLostCallbacks:
    def test_are_not_called_for_what_was_released(self, mine: Place, theirs: Place) -> None:
        losses = Losses()
        lock = mine.Lock(on_lost=losses)
        grant = granted(lock)
        grant.add_lost_callback(losses)
        lock.release()
        grant.add_lost_callback(losses)
        second = granted(lock)
        theirs.lose(second)
        assert losses.one().grant is second
        with pytest.raises(zklock.LockLost):
            lock.release()

    @pytest.mark.parametrize("problem", [ValueError("on purpose"), SystemExit(3)])
    def test_that_raise_stop_no_other(
        self, mine: Place, theirs: Place, caplog: pytest.LogCaptureFixture, problem: BaseException
    ) -> None:
        def fail(loss: zklock.Loss) -> None:
            raise problem

        losses = Losses()
        lock = mine.Lock(on_lost=fail)
        grant = granted(lock)
        grant.add_lost_callback(fail)
        grant.add_lost_callback(losses)
        with caplog.at_level(logging.ERROR, "zklock"):
            theirs.client.delete(grant.path)
            losses.one()
        raised = [record.exc_info[1] for record in caplog.records if record.exc_info]
        assert raised == [problem] * 2
        with lock:
            pass

    def test_that_acquire_again(self, mine: Place, theirs: Place) -> None:
        again: list[zklock.Grant] = []
        done = threading.Event()

        def take_again(loss: zklock.Loss) -> None:
            again.append(granted(lock))
            lock.release()
            done.set()

        lock = mine.Lock(on_lost=take_again)
        grant = granted(lock)
        theirs.client.delete(grant.path)
        assert done.wait(SOON)
        assert again[0].token > grant.token


class TestRefusals:
    @pytest.fixture(autouse=True)
    def nothing_is_left_in_zookeeper(self, other: Any) -> Iterator[None]:
        before = tree(other)
        yield
        assert tree(other) == before

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

    def test_of_clients_that_do_not_run(self, mine: Place, zklock_hosts: str) -> None:
        with pytest.raises(zklock.ClientClosed, match="start"):
            zklock.Lock(KazooClient(zklock_hosts, handler=zklock.Handler()), mine.path)
        lock = mine.Lock()
        mine.client.stop()
        for ask in (lock.acquire, lock.contenders, lock.holder, mine.Lock):
            with pytest.raises(zklock.ClientClosed):
                ask()

    @pytest.mark.parametrize("thread", ["listener", "watch", "completion"])
    def test_of_threads_of_kazoo_h18(self, mine: Place, other: Any, thread: str) -> None:
        lock, client, path = mine.Lock(), mine.client, mine.path
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
            client.exists(f"{path}/flag", watch=misuse)
            other.create(f"{path}/flag")
        else:
            client.exists_async(path).rawlink(misuse)
        assert done.wait(SOON)
        assert [type(outcome) for outcome in outcomes[:-1]] == [zklock.WouldDeadlock] * len(calls)
        if thread != "listener":  # there the client was being stopped
            assert outcomes[-1] == (True, grant)
            lock.release()
            if thread == "watch":
                other.delete(f"{path}/flag")
        other.delete(path)


class TestClients:
    def test_chroot(
        self, zklock_hosts: str, zklock_connect: Connect, other: Any, zklock_path: str
    ) -> None:
        other.ensure_path(f"{zklock_path}/root")
        client = zklock_connect(f"{zklock_hosts}{zklock_path}/root")
        lock = zklock.Lock(client, "/deep/lock")
        grant = granted(lock)
        assert grant.path.startswith("/deep/lock/_c_")
        assert other.exists(f"{zklock_path}/root{grant.path}")
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

        async def connects() -> None:
            async with zklock.aio.connect(f"{zklock_hosts}{zklock_path}/root/of/all"):
                pass

        with pytest.warns(UserWarning, match="does not exist: create it"):
            asyncio.run(connects())

    def test_a_client_that_is_started_again(self, mine: Place) -> None:
        losses = Losses()
        lock = mine.Lock(on_lost=losses)
        grant = granted(lock)
        mine.client.stop()
        assert losses.one().reason is zklock.LossReason.CLIENT_CLOSED
        mine.client.start(SOON)
        with pytest.raises(zklock.LockLost):
            lock.release()
        with lock as second:
            assert second.session_id != grant.session_id

    @LASTING
    def test_nothing_piles_up_h14(
        self, mine: Place, theirs: Place, zklock_server: ZooKeeperServer
    ) -> None:
        client, lock = mine.client, mine.Lock()

        def watches() -> int:
            text = four_letter(zklock_server.host, zklock_server.port, "wchp")
            return text.count(f"0x{client.client_id[0]:x}")

        with theirs.Lock():
            for _ in range(60):
                assert lock.acquire(timeout=0.01) is None
            for _ in range(60):
                pending = theirs.waits(lock, 2)
                lock.cancel()
                with pytest.raises(zklock.AcquireCancelled):
                    pending.result(SOON)
                theirs.queued(1)
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
