"""A lost lock is known to be lost, and said so, before another can have it.

Times are seconds of ``CLOCK_BOOTTIME``, taken in this process: when the lost callback runs, and
when the other contender's ``acquire`` returns.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

import zklock
from tests.contract.fronts import Behind, Place, Threads
from tests.contract.support import (
    SOON,
    Child,
    Losses,
    boottime,
    freeze,
    granted,
    passes_on,
    queued,
    results,
    run,
)
from tests.modes import bounded, repeated
from tests.stopwatch import Stopwatch
from zklock import LossReason
from zklock.testing import FaultProxy, ZooKeeperServer, expire_session, wait_for

Connect = Callable[..., Any]

SESSION = 6.0
CUTS = 20
LONG = 12 * SESSION
"""Seconds for what takes three sessions: while answers alone are lost, each try to connect renews
the session, until a try waits for longer than a session lives."""
NOTICE = 2.0
"""Seconds within which what is told at once is told, on a busy machine."""


@pytest.fixture
def front() -> Threads:
    return Threads()


def is_told_once(losses: Losses, grant: zklock.Grant, reason: LossReason) -> None:
    loss = losses.one()
    assert loss.grant is grant
    assert loss.reason is reason
    assert losses.threads[0].startswith("zklock-")
    assert not grant.held
    assert grant.remaining() == 0.0
    assert grant.lost.is_set()
    with pytest.raises(zklock.LockLost) as caught:
        grant.check()
    assert caught.value.loss is loss


class TestReasons:
    def test_session_expired_while_disconnected(self, behind: Behind, zklock_hosts: str) -> None:
        losses, far = Losses(), behind(timeout=20.0)
        session = far.client.client_id
        grant = granted(far.Lock(on_lost=losses))
        behind.proxy.cut()
        wait_for(lambda: not far.client.connected, SOON)
        expire_session(session, zklock_hosts)
        assert grant.held  # nobody can have told it
        behind.proxy.restore()
        is_told_once(losses, grant, LossReason.SESSION_EXPIRED)

    def test_lease_lapsed(self, behind: Behind, theirs: Place) -> None:
        losses, far = Losses(), behind(timeout=SESSION)
        losses.client = far.client
        lock = far.Lock(on_lost=losses)
        grant = granted(lock)
        cut = boottime()
        behind.proxy.cut()
        loss = losses.one()
        assert losses.states == ["SUSPENDED"]
        assert cut < loss.lease_end <= loss.noticed <= losses.times[0] < loss.lease_end + NOTICE
        assert loss.lease_end <= cut + 2 / 3 * SESSION
        is_told_once(losses, grant, LossReason.LEASE_LAPSED)
        behind.proxy.restore()
        theirs.gone()
        with lock as again:
            assert again.token > grant.token
        assert len(losses.losses) == 1

    def test_lease_lapsed_of_a_session_that_lives_on(self, behind: Behind, theirs: Place) -> None:
        losses, far = Losses(), behind(timeout=10.0)
        session = far.client.client_id[0]
        lock = far.Lock(on_lost=losses, lease_fraction=0.3)
        grant = granted(lock)
        behind.proxy.cut()
        is_told_once(losses, grant, LossReason.LEASE_LAPSED)
        assert len(theirs.nodes()) == 1  # ZooKeeper still believes in it
        behind.proxy.restore()
        theirs.passes_on()  # it is given back, not left to the session
        wait_for(lambda: far.client.connected, SOON)
        assert far.client.client_id[0] == session
        with lock as again:
            assert again.session_id == session

    def test_forked_h15(self, zklock_hosts: str, other: Any, zklock_path: str) -> None:
        with Child("forked", hosts=zklock_hosts, path=zklock_path) as process:
            child = process.hears()
            assert child == {
                "held": False,
                "lost": True,
                "reason": "FORKED",
                "callbacks": 1,
                "thread": "zklock-callback",
                "check": "LockLost",
                "release": "LockLost",
                "acquire": "ForkedClient",
                "not blocking": "ForkedClient",
                "contenders": "ForkedClient",
                "verify": "LockLost",
                "abandon": "None",
                "lock made in the child": "ForkedClient",
                "client without locks": "ForkedClient",
            }
            assert process.hears() == {"held": True, "lost": False, "callbacks": 0}
            assert process.hears() == "the parent's other client works"
            assert process.process.wait(SOON) == 0
        passes_on(other, zklock_path)


@pytest.mark.parametrize("hooked", [False, True], ids=["", "with telemetry"])
@pytest.mark.parametrize("where", ["lead", "handler", "callback"])
def test_a_child_that_is_forked_on_a_thread_of_zklocks_ends_with_the_code_that_forked(
    zklock_hosts: str, zklock_path: str, where: str, hooked: bool
) -> None:
    given = {"where": where, "hooked": hooked}
    with Child("forks_and_returns", hosts=zklock_hosts, path=zklock_path, **given) as child:
        assert child.hears() == [0]
        assert child.process.wait(SOON) == 0


class TestSuspended:
    def test_is_not_lost(self, behind: Behind) -> None:
        losses, far = Losses(), behind(timeout=10.0)
        warned: list[tuple[zklock.Grant, bool, str]] = []
        warning = threading.Event()

        def suspended(grant: zklock.Grant) -> None:
            warned.append((grant, grant.held, threading.current_thread().name))
            warning.set()

        with far.Lock(on_lost=losses, on_suspended=suspended) as grant:
            behind.proxy.drop()
            assert warning.wait(SOON)
            assert warned == [(grant, True, "zklock-callback")]
            wait_for(lambda: far.client.connected, SOON)
            grant.verify()
            assert grant.held
        assert losses.losses == []
        before = len(behind.proxy.connections)
        behind.proxy.drop()
        wait_for(lambda: len(behind.proxy.connections) > before and far.client.connected, SOON)
        assert len(warned) == 1


def test_a_stopping_client_holds_nothing_before_the_next_is_granted(
    behind: Behind, theirs: Place
) -> None:
    losses, far = Losses(), behind()
    grant = granted(far.Lock(on_lost=losses))
    waiting = run(granted, theirs.Lock())
    fault = behind.proxy.hold_before_reply(op="closeSession")
    stopped = run(far.client.stop)
    fault.wait(SOON)
    # The server has ended the session, and the client has not heard of it yet.
    assert waiting.result(SOON).token > grant.token
    assert not grant.held
    assert grant.lost.wait(SOON)
    behind.proxy.release()
    stopped.result(SOON)
    loss = losses.one()
    assert loss.reason is LossReason.CLIENT_CLOSED
    assert loss.noticed < loss.lease_end


@dataclass
class Holder:
    """One that holds a lock through a proxy, and one that waits for it past the proxy."""

    proxy: FaultProxy
    client: Any
    losses: Losses
    grant: zklock.Grant
    other: zklock.Lock
    next_at: float = field(init=False)

    def margin(self) -> float:
        """Return by how many seconds the callback came before the next grant."""
        return self.next_at - self.losses.times[0]

    def wait(self) -> None:
        grant = granted(self.other, timeout=LONG)
        self.next_at = boottime()
        assert grant.token > self.grant.token
        grant.release()


def told_before_the_next_grant(
    hosts: str, path: str, fault: Callable[[list[Holder]], object], count: int = CUTS
) -> None:
    """Do something to so many holders, with one waiting behind each; tell of the margins."""
    with ExitStack() as stack:
        others = stack.enter_context(zklock.connect(hosts, timeout=20.0))

        def holder(number: int) -> Holder:
            proxy, losses = stack.enter_context(FaultProxy(hosts)), Losses()
            client = stack.enter_context(zklock.connect(proxy.hosts, timeout=SESSION))
            lock = zklock.Lock(client, f"{path}/{number}", on_lost=losses)
            other = zklock.Lock(others, lock.path)
            return Holder(proxy, client, losses, granted(lock), other)

        with ThreadPoolExecutor(4) as pool:
            holders = list(pool.map(holder, range(count)))
        waiting = [run(each.wait) for each in holders]
        for each in holders:
            queued(others, each.other.path, 2)
        began = boottime()
        fault(holders)
        results(waiting, LONG)
        for each in holders:
            is_told_once(each.losses, each.grant, LossReason.LEASE_LAPSED)
            assert each.losses.times[0] > began
            assert each.margin() > 0
            each.proxy.restore()
        margins = sorted(each.margin() for each in holders)
        late = max(each.losses.times[0] - each.losses.losses[0].lease_end for each in holders)
    print(
        f"{count} lost callbacks: seconds before the next grant {margins}, after the lease {late}"
    )


def silence_while_busy(holder: Holder) -> None:
    """A client that sends all the time sends no pings, and is never told of the silence."""

    def keep_busy() -> None:
        while not (holder.losses.told.wait(0.05) or holder.client.client_state == "CLOSED"):
            holder.client.exists_async("/")

    run(keep_busy)
    holder.proxy.blackhole()


CUT_OFF: dict[str, Callable[[Holder], object]] = {
    "silence": lambda it: it.proxy.blackhole(),
    "silence from the server only": lambda it: it.proxy.blackhole(to_server=False),
    "refused": lambda it: it.proxy.cut(),
    "silence while busy": silence_while_busy,
}


@pytest.mark.hazard("H7")
@pytest.mark.parametrize("how", CUT_OFF)
def test_a_holder_that_is_cut_off_is_told_before_the_next_grant(
    zklock_hosts: str, zklock_path: str, how: str
) -> None:
    def cut_off(holders: list[Holder]) -> None:
        for each in holders:
            CUT_OFF[how](each)

    told_before_the_next_grant(zklock_hosts, zklock_path, cut_off, 1 if "busy" in how else CUTS)


def test_a_holder_whose_server_was_killed_is_told_before_the_next_grant(
    zklock_own_server: ZooKeeperServer,
) -> None:
    """The server comes back at once, with its data; the holders do not reach it.

    Back again, it gives every session a full timeout: the next grant comes that much later.
    """
    server = zklock_own_server

    def kill(holders: list[Holder]) -> None:
        server.kill()
        for each in holders:
            each.proxy.cut()
        server.start()

    told_before_the_next_grant(server.hosts, "/killed", kill)


def test_a_paused_holder_knows_at_its_first_look(zklock_hosts: str, zklock_path: str) -> None:
    """Some processes, some times each: stopped past the lease, and looking when they go on."""
    timeout, processes, rounds = 1.0, repeated(10, 5), repeated(5, 4)
    told = []
    with ExitStack() as stack:
        given = {"hosts": zklock_hosts, "timeout": timeout, "rounds": rounds}
        paths = [f"{zklock_path}/{number}" for number in range(processes)]
        paused = [stack.enter_context(Child("paused", path=path, **given)) for path in paths]
        for round_ in range(rounds):
            for each in paused:
                assert each.hears() == "holding"
            stopped = []
            for each in paused:
                freeze(each.process.pid)
                stopped.append(time.monotonic())
            for number, each in enumerate(paused):
                # From just past the lease to well past the session.
                until = stopped[number] + timeout * (0.7 + 1.5 * number / processes)
                wait_for(lambda until=until: time.monotonic() >= until, SOON, interval=0.005)  # type: ignore[misc]
                each.process.send_signal(signal.SIGCONT)
            for each in paused:
                told.append((round_, each.hears()))
                each.tell("on")
        for each in paused:
            assert each.process.wait(SOON) == 0
    assert len(told) == processes * rounds
    assert [look["held"] for _, look in told] == [False] * len(told)
    assert all(look["gap"] > 2 / 3 * timeout for _, look in told)
    assert {look["reason"] for _, look in told} <= {"LEASE_LAPSED", "SESSION_EXPIRED"}


def test_nobody_holds_twice_through_a_restart(
    zklock_own_server: ZooKeeperServer, zklock_path: str
) -> None:
    """Whether a grant outlives the restart or not, its end comes before the next one's begin."""
    with ExitStack() as stack:
        hosts = zklock_own_server.hosts
        clients = [stack.enter_context(zklock.connect(hosts, timeout=4.0)) for _ in range(4)]
        held: list[zklock.Grant] = []
        overlaps: list[object] = []
        stop = threading.Event()

        def work(client: Any) -> int:
            lock = zklock.Lock(client, zklock_path, timeout=SOON)
            count = 0
            while not stop.is_set():
                grant = granted(lock)
                before = [each for each in held if each.held]
                if before:
                    overlaps.append((grant, before))
                held.append(grant)
                stop.wait(0.01)
                held.remove(grant)
                count += 1
                try:
                    lock.release()
                except zklock.LockLost:
                    continue
            return count

        working = [run(work, client) for client in clients]
        for _ in range(2):
            wait_for(lambda: held, SOON)
            zklock_own_server.kill()
            zklock_own_server.start()
        wait_for(lambda: held, SOON)
        stop.set()
        assert sum(results(working, 2 * SOON)) > 2
        assert not overlaps


@pytest.mark.hazard("H25")
def test_a_holder_of_many_locks_is_told_at_once_of_a_deleted_node(
    zklock_connect: Connect, other: Any, zklock_path: str
) -> None:
    """Connected anew, it watches all of its nodes again within two heartbeats."""
    timeout, count = 30.0, repeated(1500, 500)  # so long that a server may stand still meanwhile
    client = zklock_connect(timeout=timeout)
    told: dict[str, float] = {}
    watch = Stopwatch()

    def lost(loss: zklock.Loss) -> None:
        told[loss.grant.path] = watch.awake

    grants = [
        granted(zklock.Lock(client, f"{zklock_path}/{number}", on_lost=lost))
        for number in range(count)
    ]
    states: list[str] = []
    client.add_listener(states.append)
    client.handler.drop()
    wait_for(lambda: states == ["SUSPENDED", "CONNECTED"], SOON, lambda: f"{states}")
    victims = [grants[0], grants[count // 2], grants[-1]]
    with watch:
        for grant in victims:
            other.delete(grant.path)
        wait_for(lambda: len(told) == len(victims), SOON, lambda: f"{told}")
    assert max(told.values()) < bounded(2 * timeout / 10 + NOTICE)
    assert [grant for grant in grants if not grant.held] == victims
