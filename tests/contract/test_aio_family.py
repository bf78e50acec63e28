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


class TestMultiLock:
    async def test_a_loss_cancels_the_body(self, mine: Place, theirs: Place) -> None:
        losses: list[zklock.Loss] = []
        multi = aio.MultiLock([mine.Lock("/a"), mine.Lock("/b")], on_lost=losses.append)
        with pytest.raises(zklock.LockLost, match=f"{mine.path}/b"):
            async with multi as grant:
                await lost(theirs, grant.grants[1])
        assert uncancelled()
        assert [loss.grant for loss in losses] == [grant.grants[1]]
        assert grant.lost.is_set()
        for each in ("/a", "/b"):
            await aside(theirs.gone, each)
        with pytest.raises(TimeoutError):  # an outer cancellation goes on
            async with asyncio.timeout(0.2), multi:
                await forever()
        assert uncancelled()
        for each in ("/a", "/b"):
            await aside(theirs.gone, each)


def make(kind: str, place: Place) -> Any:
    """Return a lock of a kind, or with marks, or of several, or an election."""
    several: dict[str, Callable[[], Any]] = {
        "marks": lambda: place.Lock(track_abandoned=True),
        "Semaphore": lambda: place.Semaphore(limit=2),
        "MultiLock": lambda: aio.MultiLock([place.Lock("/a"), place.Lock("/b")]),
    }
    return several[kind]() if kind in several else getattr(place, kind)()


BELOW = {"Semaphore": ["/locks", "/leases"], "MultiLock": ["/a", "/b"]}


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
    for each in BELOW.get(kind, [""]):
        await aside(theirs.gone, each)
    grant = await made.acquire()
    async with grant:
        pass
    with pytest.raises(zklock.NotHeld):
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_exit(grant)


@pytest.mark.parametrize(
    "kind", ["Lock", "marks", "RLock", "ReadLock", "WriteLock", "Semaphore", "MultiLock"]
)
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
    async with asyncio.timeout(SOON), make(kind, mine):
        pass
    for each in BELOW.get(kind, [""]):
        await aside(theirs.gone, each)


async def test_a_semaphore_that_is_waited_for_is_cancelled(mine: Place, theirs: Place) -> None:
    held = await theirs.Semaphore(limit=1).acquire()
    waiting = asyncio.create_task(mine.Semaphore(limit=1).acquire())
    await aside(theirs.queued, 2, "/leases")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await aside(theirs.queued, 1, "/leases")
    await aside(theirs.gone, "/locks")
    await held.release()
