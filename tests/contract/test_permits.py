"""Semaphores whose limit changes, whose connection goes, and whose permits are idle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.support import SOON, children, gone, granted, run
from tests.modes import bounded
from tests.stopwatch import Stopwatch
from zklock.testing import FaultProxy, FrameKind, wait_for

Connect = Callable[..., Any]

BOUNDED = bounded(2.0)
STEPS = range(1, 7)
"""The requests of one acquisition, and of its withdrawal or a heartbeat beside it."""


def is_free(z: Any, client: Any, path: str, limit: int) -> None:
    """Insist that nothing is left behind, and that all permits can be had at once."""
    gone(client, f"{path}/locks")
    gone(client, f"{path}/leases")
    semaphore = z.Semaphore(client, path, limit=None)
    assert semaphore.acquire(timeout=SOON, permits=limit) is not None
    semaphore.release()


def waits(proxy: FaultProxy, path: str) -> None:
    """Insist that a client behind the proxy has looked at permits and limit, and sleeps."""
    proxy.wait_for_frame(
        lambda frame: (
            frame.kind is FrameKind.REPLY
            and frame.op == "getData"
            and f"{path}/locks/" in str(frame.path)
        ),
        SOON,
    )


class TestLimit:
    @pytest.mark.hazard("H34")
    def test_that_was_read_is_not_the_one_that_counts(
        self,
        z: Any,
        zklock_proxy: FaultProxy,
        zklock_connect: Connect,
        other: Any,
        zklock_path: str,
    ) -> None:
        slow = zklock_connect(zklock_proxy.hosts)
        holder = z.Semaphore(other, zklock_path, limit=3)
        first = granted(holder)
        made = zklock_proxy.hold_before_request(
            op={"create", "create2"}, where=lambda frame: "/leases" in str(frame.path)
        )
        pending = run(granted, z.Semaphore(slow, zklock_path, limit=None))
        made.wait(SOON)
        holder.set_limit(1)
        zklock_proxy.release()
        waits(zklock_proxy, zklock_path)
        assert not pending.done()
        first.release()
        pending.result(SOON).release()
        is_free(z, other, zklock_path, 1)

    @pytest.mark.hazard("H34")
    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("way", ["request", "reply"])
    def test_is_kept_whenever_it_is_lowered(
        self,
        z: Any,
        zklock_proxy: FaultProxy,
        zklock_connect: Connect,
        other: Any,
        zklock_path: str,
        step: int,
        way: str,
    ) -> None:
        slow = zklock_connect(zklock_proxy.hosts)
        holder = z.Semaphore(other, zklock_path, limit=3)
        first = granted(holder)
        hold = getattr(zklock_proxy, f"hold_before_{way}")
        held = hold(step, where=lambda frame: frame.op == "multi" or zklock_path in str(frame.path))
        pending = run(granted, z.Semaphore(slow, zklock_path, limit=None))
        wait_for(lambda: pending.done() or held.frame is not None, SOON)
        holder.set_limit(1)
        leases = children(other, f"{zklock_path}/leases")
        given = len(leases) == 2 and not children(other, f"{zklock_path}/locks")
        zklock_proxy.release()
        if given:
            second = pending.result(SOON)
            second.release()
        else:
            waits(zklock_proxy, zklock_path)
            assert not pending.done()
        first.release()
        if not given:
            pending.result(SOON).release()
        is_free(z, other, zklock_path, 1)

    def test_that_was_lowered_hides_no_holder(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        semaphore = z.Semaphore(other, zklock_path, limit=3, identity="one of us")
        grants = [granted(semaphore) for _ in range(3)]
        semaphore.set_limit(1)
        waiter = z.Semaphore(client, zklock_path, limit=None)
        pending = run(granted, waiter)
        wait_for(lambda: len(children(other, f"{zklock_path}/leases")) == 4, SOON)
        found = semaphore.contenders(SOON)
        assert [one.holds for one in found] == [True, True, True, False]
        assert [one.token for one in found] == [*(grant.token for grant in grants), None]
        assert semaphore.break_lock(grants[2].token).token == grants[2].token
        assert grants[2].lost.wait(SOON)
        for grant in grants[:2]:
            grant.release()
        pending.result(SOON).release()
        is_free(z, other, zklock_path, 1)


class TestWithoutAConnection:
    @pytest.mark.hazard("H8")
    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0.3}], ids=str)
    def test_every_acquire_is_bounded(
        self,
        z: Any,
        zklock_proxy: FaultProxy,
        zklock_connect: Connect,
        other: Any,
        zklock_path: str,
        step: int,
        how: dict[str, Any],
    ) -> None:
        slow = zklock_connect(zklock_proxy.hosts)
        granted(z.Semaphore(other, zklock_path, limit=1)).release()
        zklock_proxy.hold_before_request(
            step, where=lambda frame: frame.op == "multi" or zklock_path in str(frame.path)
        )
        with Stopwatch() as watch:
            grant = z.Semaphore(slow, zklock_path, limit=1).acquire(**how)
        assert watch.awake < BOUNDED
        zklock_proxy.restore()
        if grant is not None:
            assert grant.held
            grant.release()
        is_free(z, other, zklock_path, 1)


class TestIdlePermits:
    @pytest.mark.hazard("H35")
    @pytest.mark.parametrize("callers", [2, 8])
    def test_are_given_to_those_who_do_not_wait(
        self,
        z: Any,
        zklock_connect: Connect,
        other: Any,
        zklock_path: str,
        callers: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # A busy machine may need more than a second.
        monkeypatch.setattr("zklock._core.session.MOMENT", SOON)
        clients = [zklock_connect(timeout=3 * SOON), zklock_connect(timeout=3 * SOON)]
        semaphores = [
            z.Semaphore(clients[number % 2], zklock_path, limit=callers)
            for number in range(callers)
        ]
        for _ in range(5):
            begin = threading.Barrier(callers)

            def ask(semaphore: Any, begin: threading.Barrier = begin) -> Any:
                begin.wait(SOON)
                return semaphore.acquire(blocking=False)

            pending = [run(ask, semaphore) for semaphore in semaphores]
            grants = [each.result(SOON) for each in pending]
            assert None not in grants
            assert semaphores[0].acquire(blocking=False) is None
            for grant in grants:
                grant.release()
        is_free(z, other, zklock_path, callers)

    def test_are_not_waited_for_where_there_are_none(
        self, z: Any, client: Any, other: Any, zklock_path: str
    ) -> None:
        """Somebody who wants more than there are has gathered them."""
        first = granted(z.Semaphore(client, zklock_path, limit=3))
        many = run(granted, z.Semaphore(client, zklock_path, limit=3), permits=3)
        wait_for(lambda: len(children(other, f"{zklock_path}/leases")) == 4, SOON)
        assert z.Semaphore(other, zklock_path, limit=3).acquire(blocking=False) is None
        first.release()
        many.result(SOON).release()
        is_free(z, other, zklock_path, 3)

    def test_that_are_taken_meanwhile(
        self,
        z: Any,
        zklock_proxy: FaultProxy,
        zklock_connect: Connect,
        other: Any,
        zklock_path: str,
    ) -> None:
        """One that does not wait is told as soon as the one before it has the last permit."""
        slow = zklock_connect(zklock_proxy.hosts)
        z.Semaphore(other, zklock_path, limit=1).set_limit(1)
        leaves = zklock_proxy.hold_before_request(op="multi")
        before = run(granted, z.Semaphore(slow, zklock_path, limit=1))
        leaves.wait(SOON)
        hasty = run(z.Semaphore(other, zklock_path, limit=1).acquire, blocking=False)
        assert hasty.result(SOON) is None
        zklock_proxy.release()
        before.result(SOON).release()
        is_free(z, other, zklock_path, 1)
