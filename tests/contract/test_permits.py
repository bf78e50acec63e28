"""Semaphores whose limit changes, whose connection goes, and whose permits are idle."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.contract.fronts import Behind, Place, Places
from tests.contract.support import SOON, granted, results, run
from tests.modes import bounded
from tests.stopwatch import Stopwatch
from zklock.testing import FaultProxy, FrameKind, wait_for

BOUNDED = bounded(2.0)
STEPS = range(1, 7)
"""The requests of one acquisition, and of its withdrawal or a heartbeat beside it."""


def is_free(place: Place, limit: int) -> None:
    """Insist that nothing is left behind, and that all permits can be had at once."""
    place.gone("/locks")
    place.gone("/leases")
    granted(place.Semaphore(limit=None), permits=limit).release()


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
    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("way", ["request", "reply"])
    def test_is_kept_whenever_it_is_lowered(
        self, behind: Behind, theirs: Place, step: int, way: str
    ) -> None:
        slow = behind()
        holder = theirs.Semaphore(limit=3)
        first = granted(holder)
        hold = getattr(behind.proxy, f"hold_before_{way}")
        held = hold(step, where=lambda frame: frame.op == "multi" or slow.path in str(frame.path))
        pending = run(granted, slow.Semaphore(limit=None))
        wait_for(lambda: pending.done() or held.frame is not None, SOON)
        holder.set_limit(1)
        given = len(theirs.nodes("/leases")) == 2 and not theirs.nodes("/locks")
        behind.proxy.release()
        if given:
            pending.result(SOON).release()
        else:
            waits(behind.proxy, slow.path)
            assert not pending.done()
        first.release()
        if not given:
            pending.result(SOON).release()
        is_free(theirs, 1)

    def test_that_was_lowered_hides_no_holder(self, mine: Place, theirs: Place) -> None:
        semaphore = theirs.Semaphore(limit=3, identity="one of us")
        grants = [granted(semaphore) for _ in range(3)]
        semaphore.set_limit(1)
        pending = theirs.waits(mine.Semaphore(limit=None), 4, "/leases")
        found = semaphore.contenders(SOON)
        assert [one.holds for one in found] == [True, True, True, False]
        assert [one.token for one in found] == [*(grant.token for grant in grants), None]
        assert semaphore.break_lock(grants[2].token).token == grants[2].token
        assert grants[2].lost.wait(SOON)
        for grant in grants[:2]:
            grant.release()
        pending.result(SOON).release()
        is_free(theirs, 1)


@pytest.mark.hazard("H8")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0.3}], ids=str)
def test_every_acquire_is_bounded_without_a_connection(
    behind: Behind, theirs: Place, step: int, how: dict[str, Any]
) -> None:
    slow = behind()
    granted(theirs.Semaphore(limit=1)).release()
    behind.proxy.hold_before_request(
        step, where=lambda frame: frame.op == "multi" or slow.path in str(frame.path)
    )
    with Stopwatch() as watch:
        grant = slow.Semaphore(limit=1).acquire(**how)
    assert watch.awake < BOUNDED
    behind.proxy.restore()
    if grant is not None:
        assert grant.held
        grant.release()
    is_free(theirs, 1)


class TestIdlePermits:
    @pytest.mark.hazard("H35")
    @pytest.mark.parametrize("callers", [2, 8])
    def test_are_given_to_those_who_do_not_wait(
        self, places: Places, callers: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A busy machine may need more than a second.
        monkeypatch.setattr("zklock._core.holdings.MOMENT", SOON)
        two = places(2, timeout=3 * SOON)
        semaphores = [two[number % 2].Semaphore(limit=callers) for number in range(callers)]
        for _ in range(5):
            begin = threading.Barrier(callers)

            def ask(semaphore: Any, begin: threading.Barrier = begin) -> Any:
                begin.wait(SOON)
                return semaphore.acquire(blocking=False)

            grants = results([run(ask, semaphore) for semaphore in semaphores])
            assert None not in grants
            assert semaphores[0].acquire(blocking=False) is None
            for grant in grants:
                grant.release()
        is_free(two[0], callers)

    def test_are_not_waited_for_where_there_are_none(self, mine: Place, theirs: Place) -> None:
        """Somebody who wants more than there are has gathered them."""
        first = granted(mine.Semaphore(limit=3))
        many = theirs.waits(mine.Semaphore(limit=3), 4, "/leases", permits=3)
        assert theirs.Semaphore(limit=3).acquire(blocking=False) is None
        first.release()
        many.result(SOON).release()
        is_free(theirs, 3)

    def test_that_are_taken_meanwhile(self, behind: Behind, theirs: Place) -> None:
        """One that does not wait is told as soon as the one before it has the last permit."""
        slow = behind()
        theirs.Semaphore(limit=1).set_limit(1)
        leaves = behind.proxy.hold_before_request(op="multi")
        before = run(granted, slow.Semaphore(limit=1))
        leaves.wait(SOON)
        hasty = run(theirs.Semaphore(limit=1).acquire, blocking=False)
        assert hasty.result(SOON) is None
        behind.proxy.release()
        before.result(SOON).release()
        is_free(theirs, 1)
