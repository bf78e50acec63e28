"""An exception of a signal handler that strikes where the end of a ``with`` body begins.

The last step of the body is a long call of C's, such as a comparison of two long lists. Python
handles a signal that arrives meanwhile once the next function of Python begins: before the first
line of an ``__exit__``. Here the last step itself makes the signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

import zklock
from tests.contract.support import SOON, granted
from zklock import FencingToken, aio
from zklock.fencing import MemoryGuard
from zklock.testing import wait_for


class Limit(Exception):
    """What the handler of a time limit raises."""


class Late:
    """``-late`` has the signal arrive, in C: Python does not look for signals at its end."""

    __neg__ = staticmethod(partial(interrupt_main, signal.SIGALRM))


@pytest.fixture
def late() -> Iterator[Any]:
    def strike(number: int, frame: FrameType | None) -> None:
        raise Limit

    before = signal.signal(signal.SIGALRM, strike)
    yield Late()
    signal.signal(signal.SIGALRM, before)


KINDS = ["Lock", "RLock", "ReadLock", "WriteLock", "Semaphore", "MultiLock", "LeaderElection"]
TASK_KINDS = ["Lock", "RLock", "Semaphore", "MultiLock", "LeaderElection"]
WAYS: dict[str, Callable[[Any], Any]] = {
    "with lock": lambda lock: lock,
    "with attempt": lambda lock: lock.attempt(),
    "with acquire": lambda lock: lock.acquire(),
}


def make(front: Any, kind: str, client: Any, path: str) -> Any:
    """Return a lock of ``zklock`` or of ``aio``."""
    if kind == "MultiLock":
        return front.MultiLock([front.Lock(client, path + "/a"), front.RLock(client, path + "/b")])
    return getattr(front, kind)(client, path, **({"limit": 1} if kind == "Semaphore" else {}))


def each_way(kinds: list[str]) -> pytest.MarkDecorator:
    """Try each kind in each way; an election is not entered by itself."""
    every = [(kind, way) for kind in kinds for way in WAYS]
    return pytest.mark.parametrize(
        ("kind", "way"), [each for each in every if each != ("LeaderElection", "with lock")]
    )


def is_held(lock: Any) -> bool:
    return bool(lock.is_leader if hasattr(lock, "is_leader") else lock.held)


@pytest.mark.hazard("H9", "H55")
@pytest.mark.parametrize("error", [False, True], ids=["done", "failed"])
@each_way(KINDS)
def test_it_gives_the_lock_back(
    client: Any, other: Any, zklock_path: str, late: Any, kind: str, way: str, error: bool
) -> None:
    lock = make(zklock, kind, client, zklock_path)
    try:
        with WAYS[way](lock) as grant:
            assert grant.held
            try:
                if error:
                    raise KeyError
                _ = -late
            finally:
                if error:
                    _ = -late
    except Limit:
        # At once, even while the traceback lives.
        assert not grant.held
        assert not is_held(lock)
    else:
        pytest.fail("what the handler has raised was swallowed")
    for again in (make(zklock, kind, other, zklock_path), lock):
        granted(again).release()


def test_it_leaves_what_the_thread_has_acquired_before(
    client: Any, zklock_path: str, late: Any
) -> None:
    lock = zklock.RLock(client, zklock_path)
    with lock, contextlib.suppress(Limit):
        for way in WAYS.values():
            with contextlib.suppress(Limit), way(lock) as grant:
                _ = -late
            assert lock.held
    assert not grant.held
    with pytest.raises(zklock.NotHeld):
        lock.release()


def test_a_look_at_the_method_gives_nothing_back(client: Any, zklock_path: str) -> None:
    """As debuggers and serialisers look at all attributes; before, in and after the body.

    Nor does it by an exit stack and by hand.
    """
    lock = zklock.Lock(client, zklock_path)
    for way in WAYS.values():
        manager = way(lock)
        assert callable(manager.__exit__)
        with manager as grant:
            assert callable(manager.__exit__)
            assert callable(grant.__exit__)
            assert grant.held
        assert callable(grant.__exit__)
        with contextlib.ExitStack() as stack:
            grant = stack.enter_context(way(lock))
            assert grant.held
        assert grant.released
        manager = way(lock)
        grant = manager.__enter__()
        assert callable(grant.__enter__)
        assert grant.held
        manager.__exit__(None, None, None)
        assert grant.released


def test_it_ends_the_client(zklock_hosts: str, late: Any) -> None:
    with pytest.raises(Limit), zklock.connect(zklock_hosts) as client:
        _ = -late
    wait_for(lambda: client.client_state == "CLOSED", SOON)


def test_it_ends_the_worker(client: Any, zklock_path: str, late: Any) -> None:
    pool = zklock.WorkerPool(client, zklock_path, shards=2)
    with pytest.raises(Limit), pool:
        _ = -late
    wait_for(lambda: not [each for each in threading.enumerate() if "pool" in each.name], SOON)
    assert pool.members() == []


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_it_ends_the_hold_of_a_guard(late: Any) -> None:
    guard = MemoryGuard("report", timeout=SOON)
    with contextlib.suppress(Limit), guard.hold(FencingToken(1, 1)):
        _ = -late
    with guard.hold(FencingToken(1, 2)):
        assert guard.highest() == FencingToken(1, 2)

    with contextlib.suppress(Limit):
        async with guard.hold_async(FencingToken(1, 3)):
            _ = -late
    async with guard.hold_async(FencingToken(1, 4)):
        assert guard.highest() == FencingToken(1, 4)


class TestAsyncio:
    """The end of an ``async with`` body is struck where its coroutine begins."""

    @pytest.mark.parametrize("error", [False, True], ids=["done", "failed"])
    @each_way(TASK_KINDS)
    async def test_it_gives_the_lock_back(
        self, client: Any, other: Any, zklock_path: str, late: Any, kind: str, way: str, error: bool
    ) -> None:
        held: list[Any] = []

        async def work(lock: Any) -> None:
            manager = WAYS[way](lock)
            if way == "with acquire":
                manager = await manager
            async with manager as grant:
                held.append(grant)
                assert grant.held
                try:
                    if error:
                        raise KeyError
                    _ = -late
                finally:
                    if error:
                        _ = -late

        lock = make(aio, kind, client, zklock_path)
        try:
            await work(lock)
        except Limit:
            assert not held[0].held
            assert not is_held(lock)
        else:
            pytest.fail("what the handler has raised was swallowed")
        await (await lock.acquire(timeout=SOON)).release()
        granted(make(zklock, kind, other, zklock_path)).release()

    async def test_a_look_at_the_method_gives_nothing_back(
        self, client: Any, zklock_path: str
    ) -> None:
        lock = aio.Lock(client, zklock_path)
        grant: Any
        for way in WAYS.values():
            made = way(lock)
            manager = await made if asyncio.iscoroutine(made) else made
            assert callable(manager.__aexit__)
            async with manager as grant:
                assert callable(manager.__aexit__)
                assert grant.held
            assert grant.released
            assert callable(grant.__aexit__)
        async with contextlib.AsyncExitStack() as stack:
            grant = await stack.enter_async_context(lock)
            assert grant.held
        assert grant.released
        grant = await lock.__aenter__()
        assert grant.held
        await lock.__aexit__(None, None, None)
        assert grant.released

    def test_it_ends_the_client(self, zklock_hosts: str, late: Any) -> None:
        clients: list[Any] = []

        async def main() -> None:
            async with aio.connect(zklock_hosts) as client:
                clients.append(client)
                _ = -late

        with pytest.raises(Limit):
            asyncio.run(main())
        wait_for(lambda: clients[0].client_state == "CLOSED", SOON)

    def test_it_ends_the_worker(self, client: Any, zklock_path: str, late: Any) -> None:
        async def main() -> None:
            async with aio.WorkerPool(client, zklock_path, shards=2):
                _ = -late

        with pytest.raises(Limit):
            asyncio.run(main())
        pool = zklock.WorkerPool(client, zklock_path, shards=2)
        wait_for(lambda: not pool.members(), SOON)
