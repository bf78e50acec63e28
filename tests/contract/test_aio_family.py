"""What the kinds of locks do that only asyncio has: cancelled bodies, cancelled acquires."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from tests.contract.fronts import Place
from tests.contract.support import SOON
from tests.contract.test_aio import aside, forever, front, gone, lost, uncancelled
from tests.contract.test_with import WAYS
from zklock import aio
from zklock._shell.sessions import session_of
from zklock.testing import wait_for

__all__ = ["front"]


async def test_a_loss_cancels_the_bodies_of_an_rlock_and_is_raised_by_the_outermost(
    mine: Place, theirs: Place
) -> None:
    """As with nested ``asyncio.timeout()`` that pass at the same time."""
    lock = mine.RLock()
    passed = []
    with pytest.raises(zklock.LockLost):
        async with lock as grant:
            try:
                async with lock as inner:
                    assert inner is grant
                    await lost(theirs, grant)
            except asyncio.CancelledError:
                passed.append("inner")
                raise
    assert passed == ["inner"]
    assert uncancelled()
    async with lock as again:
        assert again.token > grant.token


async def test_that_a_grant_was_abandoned_is_told_to_who_gets_the_next(
    mine: Place, theirs: Place
) -> None:
    """A task that is cancelled before it has got its grant is told nothing."""
    lock = mine.Lock(track_abandoned=True)
    await gone(theirs, await lock.acquire())
    getting = asyncio.create_task(lock.acquire())
    await asyncio.sleep(0)
    wait_for(lambda: session_of(mine.client).grants(mine.path), SOON)
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
    await aside(theirs.gone)
    async with lock as grant:
        assert grant.abandoned is True


def make(kind: str, place: Place) -> Any:
    """Return a lock of a kind, or with marks, or of several, or an election."""
    several: dict[str, Callable[[], Any]] = {
        "marks": lambda: place.Lock(track_abandoned=True),
        "Semaphore": lambda: place.Semaphore(limit=1),
        "MultiLock": lambda: aio.MultiLock([place.Lock("/a"), place.Lock("/b")]),
    }
    return several[kind]() if kind in several else getattr(place, kind)()


BELOW = {"Semaphore": ["/locks", "/leases"], "MultiLock": ["/a", "/b"]}
KINDS = ["Lock", "marks", "RLock", "ReadLock", "WriteLock", "Semaphore", "MultiLock"]
EACH_WAY = [(kind, way) for kind in KINDS for way in WAYS]
EACH_WAY += [("LeaderElection", way) for way in WAYS if way != "with lock"]


async def nobody_is_left(kind: str, theirs: Place) -> None:
    for each in BELOW.get(kind, [""]):
        await aside(theirs.gone, each)


@pytest.mark.parametrize(("kind", "way"), EACH_WAY)
async def test_a_loss_cancels_the_body(kind: str, way: str, mine: Place, theirs: Place) -> None:
    made = make(kind, mine)
    entered = WAYS[way](made)
    with pytest.raises(zklock.LockLost) as caught:
        async with await entered if asyncio.iscoroutine(entered) else entered as grant:
            assert grant.held
            last = getattr(grant, "grants", [grant])[-1]
            await lost(theirs, last)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert caught.value.loss is not None
    assert caught.value.loss.reason is zklock.LossReason.NODE_DELETED
    assert (caught.value.path, caught.value.token) == (last.lock_path, last.token)
    assert uncancelled()
    await asyncio.sleep(0)  # nothing of it sticks
    with pytest.raises(TimeoutError):  # an outer cancellation goes on
        async with asyncio.timeout(0.2), made.attempt() as again:
            assert getattr(again, "grants", [again])[-1].token > last.token
            await forever()
    assert uncancelled()
    await nobody_is_left(kind, theirs)


@pytest.mark.parametrize("kind", ["Lock", "RLock", "MultiLock", "LeaderElection"])
async def test_a_grant_that_an_exit_stack_only_leaves(
    kind: str, mine: Place, theirs: Place
) -> None:
    """``push_async_exit()`` enters no body. The end of the stack releases all the same."""
    made = make(kind, mine)
    async with contextlib.AsyncExitStack() as stack:
        grant = await made.acquire()
        stack.push_async_exit(grant)
        assert grant.held
    assert not grant.held
    await nobody_is_left(kind, theirs)
    grant = await made.acquire()
    async with grant:
        pass
    with pytest.raises(zklock.NotHeld):
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_exit(grant)


@pytest.mark.parametrize("kind", [*KINDS, "LeaderElection"])
async def test_an_acquire_that_is_cancelled_leaves_nothing(
    kind: str, mine: Place, theirs: Place
) -> None:
    """After any number of iterations of the loop."""
    for iterations in itertools.count(step=2):
        task = asyncio.create_task(make(kind, mine).acquire())
        for _ in range(iterations):
            await asyncio.sleep(0.0005)
            if task.done():
                break
        task.cancel()
        try:
            grant = await task
        except asyncio.CancelledError:
            continue
        await grant.release()
        break
    async with make(kind, mine).attempt():
        pass
    await nobody_is_left(kind, theirs)


@pytest.mark.parametrize("form", ["acquire", "attempt"])
@pytest.mark.parametrize("kind", [*KINDS, "LeaderElection"])
async def test_one_that_waits_is_cancelled(
    kind: str, form: str, mine: Place, theirs: Place
) -> None:
    at = BELOW.get(kind, [""])[0 if kind == "MultiLock" else -1]

    async def wait() -> None:
        made = make(kind, mine)
        async with await made.acquire() if form == "acquire" else made.attempt():
            pytest.fail("entered")

    held = await make("WriteLock" if kind == "ReadLock" else kind, theirs).acquire()
    waiting = asyncio.create_task(wait())
    await aside(theirs.queued, 2, at)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await aside(theirs.queued, 1, at)
    assert held.held
    await held.release()
    await nobody_is_left(kind, theirs)
