"""What the kinds of locks do that only asyncio has: cancelled bodies, cancelled acquires."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from tests.contract.support import SOON, gone, granted, passes_on, queued
from tests.contract.test_aio import aside, forever, on_loop, uncancelled
from zklock import aio
from zklock._shell.sessions import session_of
from zklock.testing import wait_for


@pytest.fixture
def client(zklock_connect: Callable[..., Any]) -> Any:
    return zklock_connect()


class TestRLock:
    @on_loop
    async def test_a_loss_cancels_the_bodies_and_is_raised_by_the_outermost(
        self, client: Any, other: Any, zklock_path: str
    ) -> None:
        """As with nested ``asyncio.timeout()`` that pass at the same time."""
        lock = aio.RLock(client, zklock_path)
        passed = []
        with pytest.raises(zklock.LockLost):
            async with lock as grant:
                try:
                    async with lock as inner:
                        assert inner is grant
                        await aside(other.delete, grant.path)
                        await forever()
                except asyncio.CancelledError:
                    passed.append("inner")
                    raise
        assert passed == ["inner"]
        assert uncancelled()
        async with lock as again:
            assert again.token > grant.token


class TestAbandoned:
    @on_loop
    async def test_is_told_to_who_gets_it(self, client: Any, other: Any, zklock_path: str) -> None:
        """A task that is cancelled before it has got its grant is told nothing."""
        lock = aio.Lock(client, zklock_path, track_abandoned=True)
        lost = await lock.acquire()
        await aio.Lock(other, zklock_path).break_lock()
        assert lost is not None
        await asyncio.wait_for(lost.lost.wait(), SOON)
        getting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        wait_for(lambda: session_of(client).grants(zklock_path), SOON)
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        await aside(gone, other, zklock_path)
        async with lock as grant:
            assert grant.abandoned is True


class TestMultiLock:
    @on_loop
    async def test_a_loss_cancels_the_body(self, client: Any, other: Any, zklock_path: str) -> None:
        paths = [f"{zklock_path}-{name}" for name in "ab"]
        losses: list[zklock.Loss] = []
        multi = aio.MultiLock([aio.Lock(client, path) for path in paths], on_lost=losses.append)
        with pytest.raises(zklock.LockLost, match=paths[1]):
            async with multi as grant:
                await aside(other.delete, grant.grants[1].path)
                await forever()
        assert uncancelled()
        assert [loss.grant for loss in losses] == [grant.grants[1]]
        assert grant.lost.is_set()
        for path in paths:
            await aside(passes_on, other, path)
            await aside(other.delete, path)

    @on_loop
    async def test_keeps_nothing_that_is_over(self, client: Any, zklock_path: str) -> None:
        multi = aio.MultiLock([aio.Lock(client, zklock_path)])

        async def over() -> weakref.ref[aio.MultiGrant]:
            grant = await multi.acquire()
            assert grant is not None
            await grant.release()
            return weakref.ref(grant)

        known = [await over() for _ in range(20)]
        assert multi.grant is None
        async with multi:
            gc.collect()
            assert [each() for each in known] == [None] * 20

    @on_loop
    async def test_an_outer_cancellation_goes_on(
        self, client: Any, other: Any, zklock_path: str
    ) -> None:
        multi = aio.MultiLock([aio.Lock(client, zklock_path)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), multi:
                await forever()
        assert uncancelled()
        await aside(passes_on, other, zklock_path)


@pytest.mark.parametrize("kind", ["Lock", "RLock", "MultiLock", "LeaderElection"])
@on_loop
async def test_a_grant_that_an_exit_stack_only_leaves(
    kind: str, client: Any, other: Any, zklock_path: str
) -> None:
    """``push_async_exit()`` enters no body. The end of the stack releases all the same."""
    made: Any = (
        aio.MultiLock([aio.Lock(client, zklock_path)])
        if kind == "MultiLock"
        else getattr(aio, kind)(client, zklock_path)
    )
    async with contextlib.AsyncExitStack() as stack:
        grant = await made.acquire()
        stack.push_async_exit(grant)
        assert grant.held
    assert not grant.held
    await aside(gone, other, zklock_path)
    grant = await made.acquire()
    async with grant:
        pass
    with pytest.raises(zklock.NotHeld):
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_exit(grant)


@pytest.mark.parametrize(
    "kind", ["Lock", "marks", "RLock", "ReadLock", "WriteLock", "Semaphore", "MultiLock"]
)
@on_loop
async def test_an_acquire_that_is_cancelled_leaves_nothing(
    client: Any, other: Any, zklock_path: str, kind: str
) -> None:
    """After any number of iterations of the loop."""

    def make() -> Any:
        match kind:
            case "marks":
                return aio.Lock(client, zklock_path, track_abandoned=True)
            case "Semaphore":
                return aio.Semaphore(client, zklock_path, limit=2)
            case "MultiLock":
                return aio.MultiLock([aio.Lock(client, f"{zklock_path}/{n}") for n in "ab"])
            case _:
                return getattr(aio, kind)(client, zklock_path)

    for iterations in itertools.count(step=2):
        lock = make()
        task = asyncio.create_task(lock.acquire())
        for _ in range(iterations):
            await asyncio.sleep(0.0005)
            if task.done():
                break
        task.cancel()
        try:
            grant = await task
        except asyncio.CancelledError:
            continue
        assert grant is not None
        await grant.release()
        break
    lock = make()
    async with asyncio.timeout(SOON):
        async with lock:
            pass
    below = {"Semaphore": ["locks", "leases"], "MultiLock": ["a", "b"]}.get(kind, [""])
    for name in below:
        await aside(gone, other, f"{zklock_path}/{name}".rstrip("/"))


@on_loop
async def test_a_semaphore_that_is_waited_for_is_cancelled(
    client: Any, other: Any, zklock_path: str
) -> None:
    held = await aside(granted, zklock.Semaphore(other, zklock_path, limit=1))
    waiting = asyncio.create_task(aio.Semaphore(client, zklock_path, limit=1).acquire())
    await aside(queued, other, f"{zklock_path}/leases", 2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await aside(queued, other, f"{zklock_path}/leases", 1)
    await aside(gone, other, f"{zklock_path}/locks")
    await aside(held.release)
