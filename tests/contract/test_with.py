"""The ``with`` forms: a grant, a try that may fail, a client; for threads and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest

import zklock
from tests.contract.fronts import Place
from tests.contract.support import SOON, Child, children, granted, program, queued, run
from zklock import aio
from zklock.testing import wait_for


class Broken(Exception):
    """An error of a body."""


@pytest.fixture
def session_seconds() -> float:
    """Sessions outlast whatever keeps the processors busy."""
    return 30.0


@pytest.fixture
def zklock_path(zklock_path: str) -> str:
    """The path of a lock, with room for another one beside it."""
    return f"{zklock_path}/lock"


Make = Callable[[], Any]


@pytest.fixture(params=["Lock", "MultiLock"])
def make(request: pytest.FixtureRequest, theirs: Place) -> Make:
    """Return ``make()``: a lock on the path of the test, or several, one of them there."""
    if request.param == "Lock":
        return theirs.Lock
    return lambda: theirs.front.MultiLock([theirs.Lock(), theirs.Lock("-too")])


@pytest.fixture
def holder(theirs: Place, zklock_connect: Any) -> Any:
    """Somebody else's grant, where a test begins by it."""
    return granted(zklock.Lock(zklock_connect(), theirs.path))


def break_it(client: Any, path: str) -> None:
    """Delete the node of the holder."""
    (name,) = queued(client, path, 1)
    client.delete(f"{path}/{name}")


WAYS: dict[str, Callable[[Any], Any]] = {
    "with lock": lambda lock: lock,
    "with lock.acquire()": lambda lock: lock.acquire(),
    "with lock.attempt()": lambda lock: lock.attempt(timeout=SOON),
}


@pytest.mark.parametrize("way", WAYS)
class TestBodies:
    @pytest.mark.parametrize("raises", [False, True])
    def test_release_at_the_end(self, make: Make, theirs: Place, way: str, raises: bool) -> None:
        lock, error = make(), Broken()
        expected: Any = pytest.raises(Broken) if raises else contextlib.nullcontext()
        with expected as caught, WAYS[way](lock) as grant:
            assert grant.held
            assert lock.grant == grant
            theirs.queued(1)
            if raises:
                raise error
        assert getattr(caught, "value", error) is error
        assert not hasattr(error, "__notes__")
        assert not grant.held
        assert (lock.held, lock.grant) == (False, None)
        theirs.passes_on()

    @pytest.mark.parametrize("told", [False, True])
    def test_raise_a_loss_once(self, make: Make, theirs: Place, way: str, told: bool) -> None:
        lock = make()
        with pytest.raises(zklock.LockLost) as caught, WAYS[way](lock) as grant:
            break_it(theirs.client, theirs.path)
            assert grant.lost.wait(SOON)
            if told:
                grant.check()
        assert caught.value.path == theirs.path
        assert not hasattr(caught.value, "__notes__")
        with pytest.raises(Broken) as failed, WAYS[way](lock) as grant:
            break_it(theirs.client, theirs.path)
            assert grant.lost.wait(SOON)
            raise Broken
        assert "the lock was also lost" in "".join(failed.value.__notes__)
        with lock:
            pass

    def test_that_have_released_are_told_so(self, make: Make, theirs: Place, way: str) -> None:
        lock = make()
        with pytest.raises(zklock.NotHeld), WAYS[way](lock) as grant:
            grant.release()
        with pytest.raises(Broken), WAYS[way](lock):
            lock.release()
            raise Broken
        with pytest.raises(Broken), WAYS[way](lock) as grant:
            grant.abandon()
            raise Broken
        theirs.passes_on()

    def test_may_be_left_by_another_thread(self, other: Any, zklock_path: str, way: str) -> None:
        """As frameworks leave a generator, on whichever thread of theirs is free."""

        def steps(lock: Any) -> Generator[Any, None, None]:
            with WAYS[way](lock) as grant:
                yield grant

        one = zklock.Lock(other, zklock_path)
        both = zklock.MultiLock([one, zklock.RLock(other, f"{zklock_path}-too")])
        for lock in (one, both):
            returning, raising = steps(lock), steps(lock)
            grant = next(returning)
            run(partial(next, returning, None)).result(SOON)
            assert (grant.held, one.grant) == (False, None)
            grant = next(raising)
            with pytest.raises(Broken):
                run(partial(raising.throw, Broken())).result(SOON)
            assert (grant.held, one.grant) == (False, None)


class TestGrants:
    """``with lock.acquire() as grant``."""

    def test_in_a_body_of_the_lock_end_what_that_body_has(self, make: Make, theirs: Place) -> None:
        with pytest.raises(zklock.NotHeld), make() as outer:
            with outer:
                pass
            assert not outer.held
        theirs.passes_on()

    def test_may_be_entered_by_another_thread_or_task(self, make: Make, theirs: Place) -> None:
        grant = make().acquire()

        def work() -> None:
            with grant as entered:
                assert entered == grant
                assert grant.held

        run(work).result(SOON)
        assert not grant.held
        theirs.passes_on()

    def test_of_a_lock_that_is_acquired_again(self, theirs: Place) -> None:
        lock = theirs.RLock()
        with lock.acquire() as outer:
            for way in WAYS.values():
                with way(lock) as again:
                    assert again == outer
                assert outer.held
        assert not outer.held
        theirs.gone()


class TestAttempts:
    """``with lock.attempt(…) as grant``."""

    @pytest.mark.parametrize("how", [{"timeout": 0.2}, {"blocking": False}])
    def test_that_fail(
        self, holder: zklock.Grant, make: Make, theirs: Place, how: dict[str, Any]
    ) -> None:
        bodies = []
        with make().attempt(**how) as grant:
            bodies.append(grant)
        assert bodies == [None]
        assert theirs.queued(1) == [holder.path.rpartition("/")[2]]
        with pytest.raises(Broken), make().attempt(**how):
            raise Broken
        holder.release()

    def test_are_entered_once(self, make: Make, theirs: Place) -> None:
        attempt = make().attempt(timeout=SOON)
        assert theirs.nodes() == []
        with pytest.raises(TypeError, match="with statement"):
            bool(attempt)
        with attempt as grant:
            pass
        with pytest.raises(RuntimeError, match="once"), attempt:
            pass
        assert not grant.held

    def test_raise_what_acquire_raises(
        self, holder: zklock.Grant, make: Make, theirs: Place
    ) -> None:
        lock = make()

        def wait() -> None:
            with lock.attempt():
                raise AssertionError("the body of a cancelled attempt")

        waiting = run(wait)
        theirs.queued(2)
        lock.cancel()
        with pytest.raises(zklock.AcquireCancelled):
            waiting.result(SOON)
        holder.release()
        with pytest.raises(ValueError, match="blocking=False"), lock.attempt(False, 1.0):
            pass

    def test_at_several_permits(self, theirs: Place) -> None:
        semaphore = theirs.Semaphore(limit=3)
        with semaphore.attempt(timeout=SOON, permits=2) as grant:
            assert len(grant.tokens) == 2
            with semaphore.attempt(blocking=False, permits=2) as too_many:
                assert too_many is None
            with semaphore.attempt(timeout=SOON) as third:
                assert len(third.tokens) == 1
        assert not grant.held


class TestTasks:
    async def test_enter_a_grant_on_its_own_loop(self, other: Any, zklock_path: str) -> None:
        async def enter(grant: Any) -> None:
            async with grant:
                raise AssertionError("entered on another loop")

        plain = aio.Lock(other, zklock_path)
        for lock in (plain, aio.MultiLock([plain])):
            grant = await lock.acquire()
            assert grant is not None
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, enter(grant))
            assert grant.held
            await grant.release()


class TestClients:
    """``with zklock.connect(…) as client``."""

    def test_are_stopped_and_closed_at_the_end(
        self, zklock_hosts: str, zklock_path: str, other: Any
    ) -> None:
        before = threading.active_count()
        with zklock.connect(zklock_hosts, timeout=30.0) as client:
            assert isinstance(client, zklock.Client)
            assert client.connected
            assert repr(client) == f"<Client {zklock_hosts} connected>"
            lock = zklock.Lock(client, zklock_path)
            grant = granted(lock)
        assert repr(client) == f"<Client {zklock_hosts} closed>"
        assert children(other, zklock_path) == []
        assert grant.lost.wait(SOON)
        with pytest.raises(zklock.LockLost) as caught:
            grant.check()
        assert caught.value.loss is not None
        assert caught.value.loss.reason is zklock.LossReason.CLIENT_CLOSED
        wait_for(lambda: threading.active_count() <= before, SOON, "the threads have ended")

    def test_are_stopped_after_an_error(self, zklock_hosts: str) -> None:
        with pytest.raises(Broken), zklock.connect(zklock_hosts, timeout=30.0) as client:
            raise Broken
        assert not client.connected

    def test_may_be_stopped_in_the_body(self, zklock_hosts: str) -> None:
        with zklock.connect(zklock_hosts, timeout=30.0) as client:
            client.stop()
        with zklock.connect(zklock_hosts, timeout=30.0) as client:
            client.stop()
            client.close()
        assert not client.connected

    def test_stay_where_they_are_when_a_child_leaves_the_body(
        self, zklock_hosts: str, zklock_path: str
    ) -> None:
        with Child("leaving", hosts=zklock_hosts, path=zklock_path) as process:
            assert process.hears() == {"left": None, "quickly": True}
            assert process.hears() == {"verified": True}

    def test_need_no_with(self, zklock_hosts: str) -> None:
        """A program that ends without a word on its client ends."""
        program("-c", f"import zklock; zklock.connect({zklock_hosts!r}, timeout=30.0)", timeout=60)
