"""What only asyncio has: tasks, their cancellation, and one thread for everything."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest

import zklock
from tests.contract.fronts import Behind, Place, on_loop
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, Child, granted, now_of, passes_on, reaches, run
from tests.modes import bounded
from tests.stopwatch import Stopwatch
from zklock import aio
from zklock._ground import async_event
from zklock.testing import FaultProxy, wait_for

__all__ = ["on_loop"]

VARIABLE = ContextVar("VARIABLE", default="of nobody")


@pytest.fixture
def front() -> Any:
    """The front for asyncio, as it is."""
    return aio


async def aside(call: Callable[..., Any], *args: Any) -> Any:
    """Look at ZooKeeper, or wait for it, off the loop."""
    return await asyncio.to_thread(call, *args)


async def acquired(lock: Any) -> aio.Grant:
    grant: aio.Grant | None = await lock.acquire(timeout=SOON)
    assert grant is not None
    return grant


async def forever() -> None:
    await asyncio.Event().wait()


async def gone(theirs: Place, grant: aio.Grant) -> None:
    """Delete the node of a grant, and wait until that is noticed."""
    await aside(theirs.client.delete, grant.path)
    await grant.lost.wait()


async def lost(theirs: Place, grant: aio.Grant) -> None:
    """Delete the node of a grant, and wait for nothing else than to be cancelled."""
    await aside(theirs.client.delete, grant.path)
    await forever()


async def passed_on(theirs: Place) -> None:
    await aside(passes_on, theirs.client, theirs.path)


def uncancelled() -> bool:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling() == 0


def threads_of_kazoo() -> int:
    return sum(each.name.startswith("kazoo-") for each in threading.enumerate())


@pytest.fixture
def no_client_is_left() -> Callable[[], bool]:
    """Return what waits until no more clients run than before."""
    before = threads_of_kazoo()
    return lambda: wait_for(lambda: threads_of_kazoo() == before, SOON, "no client is left")


class TestConnect:
    async def test_as_tasks(self, zklock_hosts: str, zklock_path: str) -> None:
        connecting = aio.connect(zklock_hosts, timeout=20.0)
        tasks = [asyncio.create_task(connecting)]
        async with asyncio.TaskGroup() as group:
            tasks.append(group.create_task(aio.connect(zklock_hosts, timeout=20.0)))
        clients = await asyncio.gather(*tasks, aio.connect(zklock_hosts, timeout=20.0))
        for client in clients:
            async with aio.Lock(client, zklock_path) as grant:
                assert grant.held
            await aside(client.stop)
            client.close()
        with pytest.raises(RuntimeError, match="makes one client"):
            await connecting
        unused = aio.connect(zklock_hosts)
        unused.close()

    async def test_entered(self, zklock_hosts: str, theirs: Place) -> None:
        async with aio.connect(zklock_hosts, timeout=20.0) as client:
            grant = await acquired(aio.Lock(client, theirs.path))
        assert not grant.held
        with pytest.raises(zklock.ClientClosed):
            aio.Lock(client, theirs.path)
        await passed_on(theirs)

    async def test_without_a_server_leaves_the_loop_alone(self, zklock_proxy: FaultProxy) -> None:
        zklock_proxy.cut()
        ticks = [0.0]

        async def tick() -> None:
            while True:
                await asyncio.sleep(0.02)
                ticks.append(watch.awake)

        with Stopwatch() as watch:
            ticking = asyncio.create_task(tick())
            with pytest.raises(zklock.NoAnswer, match=r"answered within 1\.5 s"):
                await aio.connect(zklock_proxy.hosts, start_timeout=1.5)
            ticking.cancel()
        steps = [after - before for before, after in pairwise([*ticks, watch.awake])]
        assert max(steps) < bounded(0.5)
        zklock_proxy.restore()

    async def test_cancelled_at_any_moment_leaves_no_client(
        self, zklock_hosts: str, no_client_is_left: Any
    ) -> None:
        outcomes: Counter[str] = Counter()
        for number in range(25):
            connecting = asyncio.create_task(aio.connect(zklock_hosts, timeout=20.0))
            for _ in range(number):
                await asyncio.sleep(0.0005 if number > 4 else 0)
            connecting.cancel()
            try:
                client = await connecting
            except asyncio.CancelledError:
                outcomes["cancelled"] += 1
            else:
                await aside(client.stop)
                client.close()
        assert outcomes["cancelled"] > 1
        await aside(no_client_is_left)

    async def test_cancelled_without_a_server(
        self, zklock_proxy: FaultProxy, no_client_is_left: Any
    ) -> None:
        zklock_proxy.cut()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await aio.connect(zklock_proxy.hosts)
        await aside(no_client_is_left)
        zklock_proxy.restore()

    @pytest.mark.parametrize("when", ["connecting", "connected", "without a server"])
    def test_on_a_loop_that_is_closed_leaves_no_client(
        self, zklock_proxy: FaultProxy, no_client_is_left: Any, when: str
    ) -> None:
        before = threads_of_kazoo()
        loop, connected = asyncio.new_event_loop(), asyncio.Event()

        async def work() -> None:
            async with aio.connect(zklock_proxy.hosts, start_timeout=1.0):
                connected.set()
                await forever()

        async def main() -> asyncio.Task[None]:
            task = asyncio.create_task(work())
            await (connected.wait() if when == "connected" else asyncio.sleep(0))
            return task

        if when == "connecting":
            zklock_proxy.hold()
        elif when == "without a server":
            zklock_proxy.cut()
        task = loop.run_until_complete(main())
        assert threads_of_kazoo() > before
        loop.close()
        zklock_proxy.release()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task
        gc.collect()
        no_client_is_left()
        zklock_proxy.restore()


class TestFronts:
    async def test_share_a_client_and_a_queue(self, mine: Place, theirs: Place) -> None:
        grant = await acquired(mine.Lock())
        waiting_thread = run(granted, zklock.Lock(mine.client, mine.path))
        await aside(theirs.queued, 2)
        waiting_task = asyncio.create_task(acquired(mine.Lock()))
        await aside(theirs.queued, 3)
        await grant.release()
        second = await asyncio.wrap_future(waiting_thread)
        assert not waiting_task.done()
        await aside(second.release)
        third = await waiting_task
        assert grant.token < second.token < third.token
        await third.release()

    @pytest.mark.parametrize("several", [False, True])
    async def test_a_body_may_be_left_in_another_task(self, mine: Place, several: bool) -> None:
        """The loop finishes a generator that was abandoned in a task of its own."""
        lock = aio.MultiLock([mine.Lock()]) if several else mine.Lock()
        grants = []

        async def holding() -> AsyncIterator[None]:
            async with lock as grant:
                grants.append(grant)
                yield

        async for _ in holding():
            break
        while grants[0].held:
            gc.collect()
            await asyncio.sleep(0.01)
        async with asyncio.timeout(SOON), lock as again:
            assert again.held

    async def test_an_exit_stack_that_is_left_in_another_task_is_told_of(
        self, mine: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        lock = mine.Lock()
        async with AsyncExitStack() as stack:
            grant = await stack.enter_async_context(lock)
            entered = stack.pop_all()

        async def leave() -> None:
            async with entered:
                raise ValueError("of the body")

        with pytest.raises(ValueError, match="of the body"):
            await asyncio.create_task(leave())
        assert "a with body ended without a release" in caplog.text
        assert grant.held, "it belongs to this task"
        await lock.release()

    @LASTING
    async def test_tasks_that_are_over_are_forgotten(self, mine: Place) -> None:
        lock = mine.Lock()
        task = asyncio.create_task(acquired(lock))  # and is never heard of again
        grant = await task
        ended = weakref.ref(task)
        del task
        # The loop itself holds it for this step, a collection on another thread for a while.
        while ended() is not None:
            await asyncio.sleep(0.01)
            gc.collect()
        assert grant.held
        await grant.release()

    @pytest.mark.parametrize("name", ["a\0b", "\ud800", "é" * 1_000_000])
    async def test_a_task_may_have_any_name(self, mine: Place, name: str) -> None:
        lock = mine.Lock()
        grant = await asyncio.create_task(lock.acquire(), name=name)
        mine.Lock(identity=grant.identity)  # which is checked
        assert (await lock.holder()).identity == grant.identity
        await grant.release()

    async def test_needs_a_task(self, mine: Place) -> None:
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def without_a_task() -> None:
            with pytest.raises(RuntimeError, match="inside a task"):
                mine.Lock().acquire().send(None)
            outcome.set_result(None)

        asyncio.get_running_loop().call_soon(without_a_task)
        await outcome


class TestCallbacks:
    async def test_run_on_the_loop(self, mine: Place, theirs: Place) -> None:
        told: list[tuple[str, Any, bool]] = []
        everything = asyncio.Event()

        def note(name: str, what: Any) -> None:
            told.append((name, what, threading.current_thread() is threading.main_thread()))
            if len(told) == 5:
                everything.set()

        async def slowly(loss: zklock.Loss) -> None:
            await asyncio.sleep(0.01)
            note("coroutine", loss)

        lock = mine.Lock(
            on_lost=lambda loss: note("lost", loss),
            on_release_requested=lambda grant: note("requested", grant),
        )
        grant = await acquired(lock)
        grant.add_lost_callback(slowly)
        await theirs.Lock().request_release()
        await aside(wait_for, lambda: told, SOON)
        await gone(theirs, grant)
        assert not grant.held
        grant.add_lost_callback(lambda loss: note("late", loss))
        grant.add_lost_callback(slowly)
        await everything.wait()
        assert {here for _, _, here in told} == {True}
        assert told[0][:2] == ("requested", grant)
        assert told[1][:2] == ("lost", told[1][1])
        assert {loss for _, loss, _ in told[1:]} == {told[1][1]}
        assert Counter(name for name, _, _ in told)["coroutine"] == 2

    async def test_see_nothing_of_the_task_that_has_them_called(
        self, mine: Place, theirs: Place
    ) -> None:
        told: list[tuple[str, str]] = []

        async def slowly(loss: zklock.Loss) -> None:
            told.append(("coroutine", VARIABLE.get()))

        async def late(grant: aio.Grant) -> None:
            VARIABLE.set("of a request")
            grant.add_lost_callback(slowly)
            grant.add_lost_callback(lambda loss: told.append(("function", VARIABLE.get())))

        grant = await acquired(mine.Lock())
        await gone(theirs, grant)
        await asyncio.create_task(late(grant))
        while len(told) < 2:
            await asyncio.sleep(0)
        assert sorted(told) == [("coroutine", "of nobody"), ("function", "of nobody")]

    async def test_errors_are_logged_and_stop_no_other(
        self, mine: Place, theirs: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        told = asyncio.Event()

        def wrong(loss: zklock.Loss) -> None:
            raise ValueError("in a function")

        async def wrong_too(loss: zklock.Loss) -> None:
            raise ValueError("in a coroutine")

        grant = await acquired(mine.Lock(on_lost=wrong))
        grant.add_lost_callback(wrong_too)
        grant.add_lost_callback(lambda loss: told.set())
        await aside(theirs.client.delete, grant.path)
        await told.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        errors = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
        assert sorted(errors) == ["in a coroutine", "in a function"]

    async def test_what_it_awaits_is_cancelled(
        self, mine: Place, theirs: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nobody has cancelled the callback itself: that is an error, too."""
        job = asyncio.create_task(forever(), name="job")
        called = asyncio.Event()

        async def wait_for_job(loss: zklock.Loss) -> None:
            called.set()
            await job

        grant = await acquired(mine.Lock(on_lost=wait_for_job))
        await aside(theirs.client.delete, grant.path)
        await called.wait()
        await asyncio.sleep(0)
        job.cancel()
        await aside(wait_for, lambda: "a callback of a lock raised" in caplog.text, SOON)

    async def test_suspended(self, behind: Behind) -> None:
        warned: asyncio.Queue[Any] = asyncio.Queue()
        far = behind()
        async with far.Lock(on_suspended=warned.put) as grant:
            behind.proxy.drop()
            assert await warned.get() is grant
            await aside(wait_for, lambda: far.client.connected, SOON)
            await grant.verify()

    def test_a_closed_loop_is_left_alone(
        self, mine: Place, theirs: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        called: list[object] = []
        grant = asyncio.run(acquired(mine.Lock(on_lost=called.append)))
        assert grant.held
        with caplog.at_level(logging.WARNING, "zklock"):
            theirs.client.delete(grant.path)
            wait_for(grant.lost.is_set, SOON)
            wait_for(lambda: "its event loop is closed" in caplog.text, SOON)
        assert grant.remaining() == 0.0
        assert not called
        theirs.passes_on()

    def test_a_grant_for_a_closed_loop_is_given_back(self, mine: Place, theirs: Place) -> None:
        loop = asyncio.new_event_loop()
        holder = granted(zklock.Lock(theirs.client, theirs.path))
        acquiring = loop.create_task(mine.Lock().acquire())
        loop.run_until_complete(asyncio.sleep(0))
        theirs.queued(2)
        loop.close()  # and the task is kept
        holder.release()
        theirs.passes_on()
        acquiring._log_destroy_pending = False  # type: ignore[attr-defined]
        acquiring.get_coro().close()


class TestCancelledAcquire:
    @pytest.mark.parametrize("how", ["free", "taken", "handed over"])
    async def test_after_any_number_of_iterations_leaves_nothing(
        self, mine: Place, theirs: Place, how: str
    ) -> None:
        outcomes: Counter[str] = Counter()
        lock, holder = mine.Lock(), theirs.Lock()
        number = 0
        while number < 150 or (how != "taken" and outcomes["granted"] < 5):
            number += 1 + number // 50
            held = None if how == "free" else await acquired(holder)
            task = asyncio.create_task(lock.acquire())
            if how == "handed over":
                assert held is not None
                await aside(theirs.queued, 2)
                held.abandon()
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            try:
                grant = await task
            except asyncio.CancelledError:
                outcomes["cancelled"] += 1
            else:
                assert grant.held
                outcomes["granted"] += 1
                await grant.release()
            if how == "taken":
                assert held is not None
                await aside(theirs.queued, 1)
                await held.release()
            await aside(theirs.gone)
        assert outcomes["cancelled"] > 0
        await passed_on(theirs)

    @pytest.mark.parametrize("how", ["acquire", "async with"])
    async def test_in_the_very_step_of_the_grant_gives_it_back(
        self, mine: Place, theirs: Place, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        settle, tasks = async_event.settle, list[asyncio.Task[None]]()

        def settle_and_cancel(future: asyncio.Future[Any], value: Any) -> None:
            settle(future, value)
            tasks[0].cancel()

        monkeypatch.setattr("zklock.aio.waiting.settle", settle_and_cancel)
        lock = mine.Lock()

        async def acquire() -> None:
            if how == "acquire":
                await lock.acquire()
            else:
                async with lock:
                    pytest.fail("entered")

        tasks.append(asyncio.create_task(acquire()))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        monkeypatch.undo()
        assert not lock.held
        await passed_on(theirs)

    async def test_while_disconnected(self, behind: Behind, theirs: Place) -> None:
        far = behind()
        async with theirs.Lock():
            task = asyncio.create_task(far.Lock().acquire())
            await aside(theirs.queued, 2)
            behind.proxy.cut()
            await aside(wait_for, lambda: not far.client.connected, SOON)
            with Stopwatch() as watch, pytest.raises(asyncio.CancelledError):
                task.cancel()
                await task
            assert watch.awake < bounded(1.0)
            behind.proxy.restore()
            await aside(theirs.queued, 1)


class TestBurst:
    """A burst of acquires is started a few at a time."""

    @LASTING
    async def test_lets_the_loop_go_on(self, mine: Place, theirs: Place) -> None:
        lock, count = mine.Lock(), 300
        holder = await acquired(lock)
        tasks = [asyncio.create_task(lock.acquire()) for _ in range(count)]
        turns = 0
        while len(lock._session._attempts) < count:
            await asyncio.sleep(0)
            turns += 1
        assert turns > count / 50
        lock.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await aside(theirs.queued, 1)
        await holder.release()

    @pytest.mark.parametrize("path", ["there", "missing"])
    async def test_keeps_the_order_of_asking(self, mine: Place, theirs: Place, path: str) -> None:
        lock, count = mine.Lock(), 100
        order: list[int] = []
        if path == "there":
            await aside(theirs.client.ensure_path, theirs.path)

        async def wait(number: int) -> None:
            async with lock:
                order.append(number)

        await asyncio.gather(*map(wait, range(count)))
        # A task that asks before the path is there asks again, behind those that came meanwhile.
        assert (order if path == "there" else sorted(order)) == list(range(count))

    async def test_keeps_nobody_from_acquiring_what_it_holds(
        self, mine: Place, theirs: Place
    ) -> None:
        lock = mine.RLock()
        grant = await lock.acquire()
        tasks = [asyncio.create_task(lock.acquire()) for _ in range(100)]
        await asyncio.sleep(0)  # they have asked
        assert await lock.acquire(blocking=False) is grant
        lock.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {zklock.AcquireCancelled}
        await lock.release()
        await lock.release()
        await passed_on(theirs)

    async def test_does_not_outlive_its_client(self, mine: Place, theirs: Place) -> None:
        lock = mine.Lock()
        holder = await acquired(theirs.Lock())
        tasks = [asyncio.create_task(lock.acquire(timeout=SOON)) for _ in range(100)]
        await asyncio.sleep(0)  # they have asked
        await aside(mine.client.stop)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {zklock.ClientClosed}
        assert len(set(map(id, outcomes))) == len(outcomes), "each has a traceback of its own"
        await holder.release()

    async def test_leaves_nothing_behind_in_the_lock(self, mine: Place, theirs: Place) -> None:
        lock = mine.Lock()

        async def hold() -> None:
            async with lock:
                pass

        for _ in range(20):
            await asyncio.gather(*[hold() for _ in range(50)])
        assert len(lock._users) < 150
        await passed_on(theirs)

    async def test_nobody_overtakes_who_has_to_make_the_path(self, behind: Behind) -> None:
        far = behind()
        lock = far.Lock()
        made = behind.proxy.hold_before_reply(
            op={"create", "create2"}, where=lambda frame: frame.path == far.path
        )
        first = asyncio.create_task(lock.acquire())
        await aside(made.wait, SOON)
        second = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)  # it has asked
        behind.proxy.release()
        before, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        assert before == {first}
        for task in (first, second):
            await (await task).release()

    @LASTING
    @pytest.mark.parametrize(
        ("how", "expected"),
        [
            ("cancel()", zklock.AcquireCancelled),
            ("task.cancel()", asyncio.CancelledError),
            ("timeout", type(None)),
        ],
    )
    async def test_is_given_up_before_it_has_begun(
        self,
        mine: Place,
        theirs: Place,
        requests_take_time: Callable[[], AbstractContextManager[None]],
        how: str,
        expected: type,
    ) -> None:
        lock, count = mine.Lock(), 300
        timeout = 0.001 if how == "timeout" else None
        holder = await acquired(theirs.Lock())
        with requests_take_time():
            tasks = [asyncio.create_task(lock.acquire(timeout=timeout)) for _ in range(count)]
            await asyncio.sleep(0)
            if timeout is not None:
                reaches(mine.client, now_of(mine.client) + timeout)  # the loop stands still
            elif how == "cancel()":
                lock.cancel()
            else:
                for task in tasks:
                    task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {expected}
        await aside(theirs.queued, 1)
        await holder.release()
        async with mine.Lock() as grant:
            between = grant.token.sequence - holder.token.sequence
            assert between < count  # most have never been created

    def test_of_a_loop_that_is_over_is_forgotten(self, mine: Place) -> None:
        """With its loop, once another loop has come."""
        loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

        async def begin() -> None:
            loops.append(weakref.ref(asyncio.get_running_loop()))
            lock = mine.Lock()
            tasks = [asyncio.create_task(lock.acquire()) for _ in range(500)]
            await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)

        async def hold() -> None:
            async with mine.Lock():
                pass

        asyncio.run(begin())
        asyncio.run(hold())
        gc.collect()
        assert [loop() for loop in loops] == [None]


async def test_other_tasks_have_their_turn_while_one_acquires_and_releases(mine: Place) -> None:
    counted = 0

    async def turns() -> None:
        nonlocal counted
        while True:
            counted += 1
            await asyncio.sleep(0)

    lock = mine.Lock()
    task = asyncio.create_task(turns())
    for done in range(200):
        before = counted
        async with lock:
            assert counted > before, done
            before = counted
        assert counted > before, done
    task.cancel()


class TestCancelledRelease:
    @pytest.mark.parametrize("how", ["release", "async with"])
    async def test_goes_on(self, behind: Behind, theirs: Place, how: str) -> None:
        lock = behind().Lock()
        hold = behind.proxy.hold_before_reply(op="delete")

        async def hold_and_release() -> None:
            if how == "release":
                await acquired(lock)
                await lock.release()
            else:
                async with lock:
                    pass

        task = asyncio.create_task(hold_and_release())
        await aside(hold.wait, SOON)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not lock.held
        behind.proxy.release()
        await passed_on(theirs)

    async def test_after_any_number_of_iterations(self, mine: Place, theirs: Place) -> None:
        lock = mine.Lock()

        async def cycle(entered: asyncio.Event) -> None:
            async with lock:
                entered.set()

        for number in range(30):
            entered = asyncio.Event()
            task = asyncio.create_task(cycle(entered))
            await entered.wait()
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not lock.held
            await aside(theirs.gone)


class TestLossInTheBody:
    """How leaving ends is what ``asyncio.timeout()`` would do, with ``LockLost``.

    See also ``test_aio_family.py::test_a_loss_cancels_the_body``, of every kind.
    """

    async def test_before_it_begins_cancels_it(self, mine: Place, theirs: Place) -> None:
        grant = await acquired(mine.Lock())
        await gone(theirs, grant)
        with pytest.raises(zklock.LockLost):
            async with grant:
                await forever()
        assert uncancelled()

    async def test_is_raised_though_the_cancellation_was_swallowed(
        self, mine: Place, theirs: Place
    ) -> None:
        with pytest.raises(zklock.LockLost) as caught:
            async with mine.Lock() as grant:
                with contextlib.suppress(asyncio.CancelledError):
                    await lost(theirs, grant)
        assert caught.value.__cause__ is None
        assert uncancelled()

    async def test_that_comes_to_nothing_before_the_end_is_raised(
        self, mine: Place, theirs: Place
    ) -> None:
        with pytest.raises(zklock.LockLost):
            async with mine.Lock() as grant:
                theirs.client.delete(grant.path)  # the loop hears nothing meanwhile
                wait_for(lambda: not grant.held, SOON)
        assert uncancelled()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def test_lets_a_cancellation_by_others_go_on(self, mine: Place, theirs: Place) -> None:
        seen: list[int] = []

        async def hold(task: asyncio.Task[Any] | None) -> None:
            assert task is not None
            try:
                async with mine.Lock() as grant:
                    await gone(theirs, grant)
                    await forever()
            finally:
                seen.append(task.cancelling())

        async def hold_and_be_cancelled(task: asyncio.Task[Any] | None) -> None:
            assert task is not None
            async with mine.Lock() as grant:
                try:
                    await lost(theirs, grant)
                finally:
                    task.cancel()

        async def as_task(work: Any) -> None:
            await work(asyncio.current_task())

        with pytest.raises(zklock.LockLost):
            await asyncio.create_task(as_task(hold))
        assert seen == [0]
        task = asyncio.create_task(as_task(hold_and_be_cancelled))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    async def test_lets_an_earlier_cancellation_go_on(self, mine: Place, theirs: Place) -> None:
        entered = asyncio.Event()
        grants: list[aio.Grant] = []

        async def hold() -> None:
            async with mine.Lock() as grant:
                grants.append(grant)
                entered.set()
                try:
                    await forever()
                finally:
                    await gone(theirs, grant)

        task = asyncio.create_task(hold())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not grants[0].held

    async def test_within_and_around_timeouts(self, mine: Place, theirs: Place) -> None:
        lock = mine.Lock()
        with pytest.raises(zklock.LockLost):
            async with asyncio.timeout(SOON):
                async with lock as grant:
                    async with asyncio.timeout(SOON):
                        await lost(theirs, grant)
        assert uncancelled()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), lock:
                await forever()
        assert uncancelled()
        assert not lock.held
        with pytest.raises(TimeoutError):
            async with lock, asyncio.timeout(0.1):
                await forever()
        assert uncancelled()
        async with theirs.Lock():  # and around an acquire
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await lock.acquire()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lock.acquire(), 0.2)
            await aside(theirs.queued, 1)

    async def test_cancels_a_task_group(self, mine: Place, theirs: Place) -> None:
        ended: list[str] = []

        async def child(name: str) -> None:
            try:
                await forever()
            finally:
                ended.append(name)

        with pytest.raises(zklock.LockLost):
            async with mine.Lock() as grant, asyncio.TaskGroup() as group:
                group.create_task(child("a"))
                group.create_task(child("b"))
                await aside(theirs.client.delete, grant.path)
        assert sorted(ended) == ["a", "b"]
        assert uncancelled()

    @pytest.mark.parametrize("first", ["inner", "outer", "both"])
    async def test_of_two_locks(self, mine: Place, theirs: Place, first: str) -> None:
        outer, inner = mine.Lock("/a"), mine.Lock("/b")
        inside: list[str | None] = []
        with pytest.raises(zklock.LockLost) as caught:
            async with outer as one:
                try:
                    async with inner as two:
                        if first != "inner":
                            await aside(theirs.client.delete, one.path)
                        if first != "outer":
                            await aside(theirs.client.delete, two.path)
                        await forever()
                except zklock.LockLost as loss:
                    inside.append(loss.path)
                    assert uncancelled()
                    one.check()
                    await lost(theirs, one)
        assert caught.value.path == outer.path
        assert inside == ([inner.path] if first == "inner" else [])
        assert uncancelled()
        assert not inner.held

    async def test_of_one_of_two_tasks(self, mine: Place, theirs: Place) -> None:
        """One object, two tasks: the loss of the one's grant is not the other's."""
        lock = mine.Lock()
        holding = asyncio.Event()

        async def lose() -> None:
            async with lock as grant:
                holding.set()
                await aside(theirs.queued, 2)
                await lost(theirs, grant)

        async def wait_and_hold() -> Any:
            await holding.wait()
            async with lock as grant:
                await asyncio.sleep(0.05)
                grant.check()
                return grant.token

        outcomes = await asyncio.gather(lose(), wait_and_hold(), return_exceptions=True)
        assert isinstance(outcomes[0], zklock.LockLost)
        assert isinstance(outcomes[1], zklock.FencingToken)

    async def test_of_a_grant_that_two_tasks_have_entered(self, mine: Place, theirs: Place) -> None:
        """Each task takes its own cancellation back, in whichever order they leave."""
        grant = await acquired(mine.Lock())
        entered: list[str] = []
        first_left, at_once = asyncio.Event(), asyncio.Event()
        at_once.set()

        async def enter(name: str, leaves: asyncio.Event) -> bool:
            waiting = asyncio.ensure_future(leaves.wait())
            with pytest.raises(zklock.LockLost):
                async with grant:
                    entered.append(name)
                    try:
                        await forever()
                    finally:
                        await waiting
            return uncancelled()

        first = asyncio.create_task(enter("first", at_once))
        second = asyncio.create_task(enter("second", first_left))
        while len(entered) < 2:
            await asyncio.sleep(0)
        await aside(theirs.client.delete, grant.path)
        assert await first
        first_left.set()
        assert await second

    async def test_after_the_body_cancels_nothing(self, mine: Place) -> None:
        """The loss that is told while the release is under way."""
        async with mine.Lock() as grant:
            pass
        grant._tell()
        await asyncio.sleep(0)
        assert uncancelled()


def test_a_fork_h15(zklock_hosts: str, theirs: Place) -> None:
    with Child("aio_forked", hosts=zklock_hosts, path=theirs.path) as process:
        assert process.hears() == {
            "held": False,
            "lost": True,
            "check": "LockLost",
            "release": "LockLost",
            "acquire": "ForkedClient",
            "contenders": "ForkedClient",
            "abandon": "None",
        }
        assert process.hears() == {"held": True, "lost": False, "callbacks": 0}
        assert process.process.wait(SOON) == 0
    theirs.passes_on()


@LASTING
async def test_a_thousand_tasks_wait_for_one_lock(mine: Place, theirs: Place) -> None:
    count = 1000
    order: list[int] = []
    inside = 0
    gate = await acquired(theirs.Lock())
    lock = mine.Lock()

    async def work() -> None:
        nonlocal inside
        async with lock as grant:
            inside += 1
            assert inside == 1
            order.append(grant.token.sequence)
            inside -= 1

    before = threading.active_count()
    tasks = [asyncio.create_task(work()) for _ in range(count)]
    await aside(wait_for, lambda: len(theirs.nodes()) == count + 1, 3 * SOON, "all to queue")
    assert threading.active_count() <= before + 2  # of to_thread()
    for task in tasks[::10]:
        task.cancel()
    await gate.release()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(task.cancelled() for task in tasks) == count // 10
    assert len(order) == count - count // 10
    assert order == sorted(order)
    await passed_on(theirs)
