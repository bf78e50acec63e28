"""What elections for asyncio have of their own: their loop, their tasks, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.security import make_digest_acl

import zklock
from tests.contract.fronts import Place, Threads
from tests.contract.support import SOON, Losses, boottime
from tests.contract.test_aio import aside, forever, front
from tests.contract.test_election import Member, Outcome, joined
from zklock import aio
from zklock.testing import wait_for

__all__ = ["front"]


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait for it, on the loop."""
    try:
        async with asyncio.timeout(SOON):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"{what} did not come about")


async def lead_on(leadership: aio.Leadership) -> None:
    await forever()


class Counting(aio.LeaderElection):
    """It counts the transfers that have asked for the end of a term and wait for it."""

    waiting = 0

    async def _ended(self, *args: Any) -> bool:
        self.waiting += 1
        return await super()._ended(*args)


async def leading(
    place: Place, lead: Any = lead_on, **options: Any
) -> tuple[aio.LeaderElection, asyncio.Task[None]]:
    """Return an election that leads, and its run."""
    election = place.LeaderElection(**options)
    running = asyncio.create_task(election.run(lead))
    await until(lambda: election.is_leader)
    return election, running


class Stubborn:
    """A ``lead`` that heeds no cancellation."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, leadership: aio.Leadership) -> None:
        while not self.may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.may_end.wait()


async def joined_by(place: Place, name: str) -> Member:
    """Let one more member stand, in a thread."""
    member: Member = await aside(joined, Place(Threads(), place.client, place.path), name)
    return member


async def ended(task: asyncio.Task[None]) -> None:
    """Wait for the end, and raise what it raised."""
    async with asyncio.timeout(SOON):
        await task


class TestTerms:
    async def test_without_a_task_are_given_back(self, mine: Place) -> None:
        """With ``asyncio.eager_task_factory``, ``SystemExit`` in ``lead`` comes from its making."""
        loop = asyncio.get_running_loop()

        def make(its_loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            if options.get("name") == "zklock-lead" or "_lead" in coroutine.__qualname__:
                coroutine.close()
                raise Outcome
            return asyncio.Task(coroutine, loop=its_loop, **options)

        async def lead(leadership: aio.Leadership) -> None:
            raise AssertionError("it has no task")

        election = mine.LeaderElection()
        loop.set_task_factory(make)
        try:
            with pytest.raises(Outcome):
                await election.run(lead)
        finally:
            loop.set_task_factory(None)
        await aside(mine.gone)
        assert election.leadership is None
        leadership = await election.acquire(timeout=SOON)
        assert leadership is not None
        await leadership.release()

    async def test_are_announced_on_the_loop(self, mine: Place) -> None:
        loop = asyncio.get_running_loop()
        elected: list[aio.Leadership] = []
        losses = Losses()

        async def on_elected(leadership: aio.Leadership) -> None:
            assert asyncio.get_running_loop() is loop
            elected.append(leadership)

        election = mine.LeaderElection(on_elected=on_elected, on_lost=losses)
        running = asyncio.create_task(election.run(lead_on))
        await until(lambda: elected)
        await aside(mine.client.delete, elected[0].path)
        await until(losses.told.is_set)
        assert losses.one().grant is elected[0]
        assert losses.threads == [threading.current_thread().name]
        election.stop()
        running.cancel()
        await asyncio.wait([running])

    async def test_what_threads_use_is_refused(self, mine: Place) -> None:
        election = mine.LeaderElection()
        for call in (election.run(print), election.run(lead_on, stop=threading.Event())):
            with pytest.raises(TypeError):
                await call
        assert mine.client.exists(mine.path) is None


class TestTransferring:
    async def test_to_one_that_goes_before_the_end(
        self, mine: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        may_end = asyncio.Event()

        async def lead(leadership: aio.Leadership) -> None:
            await may_end.wait()
            election.stop()

        election = Counting(mine.client, mine.path, identity="first")
        running = asyncio.create_task(election.run(lead))
        await until(lambda: election.is_leader)
        b, c = [await joined_by(mine, name) for name in "bc"]
        transfers = [asyncio.create_task(election.transfer("c")) for _ in range(2)]
        await until(lambda: election.waiting == 2)
        await aside(c.stop)
        await aside(mine.queued, 2)
        may_end.set()
        for transfer in transfers:
            with pytest.raises(zklock.NoSuchMember, match="'c'"):
                await transfer
        assert transfers[0].exception() is not transfers[1].exception()
        await ended(running)
        await aside(b.leads)
        await aside(b.stop)
        assert "not handed over" in caplog.text

    @pytest.mark.parametrize("how", ["late", "cancelled"])
    async def test_goes_on_when_nobody_waits_for_it(self, mine: Place, how: str) -> None:
        may_end = asyncio.Event()

        async def lead(leadership: aio.Leadership) -> None:
            await may_end.wait()
            election.stop()

        election, running = await leading(mine, lead, identity="first")
        b, c = [await joined_by(mine, name) for name in "bc"]
        if how == "late":
            said = ""
            while "it continues" not in said:  # on a busy machine it may not begin in time
                with pytest.raises(zklock.NoAnswer) as caught:
                    await election.transfer("c", timeout=0.3)
                said = str(caught.value)
        else:
            transfer = asyncio.create_task(election.transfer("c"))
            await until(lambda: election.leadership and election.leadership.should_stop.is_set())
            transfer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await transfer
        may_end.set()
        await ended(running)
        await aside(c.leads)
        assert not b.terms
        for member in (c, b):
            await aside(member.stop)


class TestStopping:
    def test_by_an_event_of_another_loop(self, mine: Place) -> None:
        """It would not be heard. It belongs to the loop on which it was waited for first."""
        stop = asyncio.Event()
        election = mine.LeaderElection()

        async def lead(leadership: aio.Leadership) -> None:
            stop.set()
            await leadership.should_stop.wait()

        asyncio.run(election.run(lead, stop))
        stop.clear()
        with pytest.raises(RuntimeError, match="different event loop"):
            asyncio.run(asyncio.wait_for(election.run(lead, stop), SOON))
        stop.set()
        asyncio.run(election.run(lead, stop))

    async def test_by_a_signal_handler_of_the_loop(self, mine: Place) -> None:
        loop = asyncio.get_running_loop()
        election, running = await leading(mine, grace=0.1)
        loop.add_signal_handler(signal.SIGUSR1, election.stop)
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            await ended(running)
        finally:
            loop.remove_signal_handler(signal.SIGUSR1)


class TestErrorsOfLead:
    async def test_a_cancellation_by_others_is_one(self, mine: Place) -> None:
        async def lead(leadership: aio.Leadership) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await forever()

        with pytest.raises(asyncio.CancelledError, match="lead was cancelled"):
            await mine.LeaderElection().run(lead, on_error="raise")
        await aside(mine.gone)

    @pytest.mark.parametrize("first", ["lead", "run"])
    async def test_the_end_of_the_loop_is_none(
        self, mine: Place, caplog: pytest.LogCaptureFixture, first: str
    ) -> None:
        """It cancels all tasks, in no order."""
        leading: list[asyncio.Task[Any] | None] = []

        async def lead(leadership: aio.Leadership) -> None:
            leading.append(asyncio.current_task())
            await forever()

        running = asyncio.create_task(mine.LeaderElection().run(lead))
        await until(lambda: leading)
        (task,) = leading
        assert task is not None
        for each in (task, running) if first == "lead" else (running, task):
            each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended(running)
        await aside(mine.gone)
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


class TestLosing:
    @pytest.mark.parametrize("where", ["lead", "a task of lead"])
    async def test_in_a_body_cancels_once(
        self, mine: Place, caplog: pytest.LogCaptureFixture, where: str
    ) -> None:
        terms, cleaned = list[aio.Leadership](), list[type[BaseException]]()
        tasks = list[asyncio.Task[None]]()

        async def work(leadership: aio.Leadership) -> None:
            try:
                async with leadership:
                    await aside(mine.client.delete, leadership.path)
                    await forever()
            except BaseException as error:
                for _ in range(20):
                    await asyncio.sleep(0.001)
                cleaned.append(type(error))
                raise

        async def lead(leadership: aio.Leadership) -> None:
            terms.append(leadership)
            if len(terms) == 2:
                election.stop()
                return
            if where == "lead":
                await work(leadership)
            else:
                tasks.append(asyncio.create_task(work(leadership)))
                await forever()

        election = mine.LeaderElection(retry=(SOON, SOON))
        await election.run(lead, on_error="raise")
        assert len(terms) == 2
        if where == "lead":
            assert cleaned == [asyncio.CancelledError]
        else:
            with pytest.raises(zklock.LockLost):
                await tasks[0]
            assert cleaned == [zklock.LockLost]
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR]

    async def test_a_lead_that_does_not_heed_is_cancelled_after_its_grace(
        self, mine: Place
    ) -> None:
        times: list[float] = []

        async def lead(leadership: aio.Leadership) -> None:
            try:
                election.stop()
                await leadership.should_stop.wait()
                times.append(boottime())
                await forever()
            finally:
                times.append(boottime())
                assert leadership.held

        election = mine.LeaderElection(grace=0.5)
        await election.run(lead)
        assert 0.4 < times[1] - times[0] < SOON
        await aside(mine.gone)


class TestCancelling:
    async def test_at_any_moment_leaves_no_member_h9(self, mine: Place, theirs: Place) -> None:
        at: Counter[str] = Counter()
        for number in range(60):
            led = 0

            async def lead(leadership: aio.Leadership) -> None:
                nonlocal led
                led += 1
                await asyncio.sleep(0)

            election = mine.LeaderElection()
            running = asyncio.create_task(election.run(lead))
            if number % 3 == 0:
                await asyncio.sleep(number * 0.0005)
                turns = 0
            elif number % 3 == 1:
                turns = number
            else:
                await until(lambda: led)  # noqa: B023 - awaited here
                turns = number // 3
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ended(running)
            at["later" if led else "before the first term"] += 1
            await aside(theirs.gone)
        assert len(at) == 2, at

    @pytest.mark.parametrize("often", [False, True])
    async def test_ends_lead_first(self, mine: Place, often: bool) -> None:
        """A scope of anyio cancels again, whatever is awaited."""
        loop, ends = asyncio.get_running_loop(), list[bool]()

        async def lead(leadership: aio.Leadership) -> None:
            try:
                await forever()
            finally:
                for _ in range(20):
                    await asyncio.sleep(0.005)
                ends.append(leadership.held and leadership.should_stop.is_set())

        def cancel() -> None:
            if not running.done():
                running.cancel()
                if often:
                    loop.call_soon(cancel)

        election, running = await leading(mine, lead)
        cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended(running)
        assert ends == [True]
        assert election.leadership is None
        await aside(mine.gone)

    @pytest.mark.hazard("H19")
    async def test_does_not_lengthen_the_grace_of_what_is_stuck(
        self, mine: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        lead = Stubborn()
        election, running = await leading(mine, lead, grace=0.2)
        b = await joined_by(mine, "b")
        async with asyncio.timeout(SOON):
            while not running.done():
                running.cancel()
                await asyncio.sleep(0.005)
        assert running.cancelled()
        assert "did not end" in caplog.text
        assert election.is_leader
        assert not b.terms
        lead.may_end.set()
        await aside(b.leads)
        await aside(b.stop)

    def test_a_loop_that_ends_leaves_no_member(self, mine: Place, theirs: Place) -> None:
        async def main() -> None:
            for count in (1, 2):
                running.append(asyncio.create_task(mine.LeaderElection().run(lead_on)))
                await aside(theirs.queued, count)

        running: list[asyncio.Task[None]] = []
        asyncio.run(main())
        theirs.gone()

    @pytest.mark.parametrize("when", ["it waits", "it leads"])
    def test_a_loop_that_is_closed_leaves_nobody(
        self, mine: Place, theirs: Place, when: str
    ) -> None:
        loop = asyncio.new_event_loop()
        election = mine.LeaderElection()

        async def main() -> None:
            running = asyncio.create_task(election.run(lead_on))
            if when == "it leads":
                await until(lambda: election.is_leader)
            else:
                await aside(theirs.queued, 2)
            assert not running.done()

        before = zklock.Lock(theirs.client, theirs.path)
        with before if when == "it waits" else contextlib.nullcontext():
            loop.run_until_complete(main())
            loop.run_until_complete(loop.shutdown_default_executor())
            left = asyncio.all_tasks(loop)
            loop.close()
        theirs.gone()
        assert not election.is_leader
        for task in left:  # nobody awaits them any more, on purpose
            task._log_destroy_pending = False  # type: ignore[attr-defined]


class TestObserving:
    async def test_a_callback_that_awaits_what_is_cancelled(
        self, mine: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The observer is told on. Only a cancellation of its own task ends it."""
        heard: list[zklock.LeaderChange] = []

        async def hear(change: zklock.LeaderChange) -> None:
            heard.append(change)
            job = asyncio.create_task(forever())
            asyncio.get_running_loop().call_soon(job.cancel)
            await job

        election = mine.LeaderElection()
        with election.observe(hear) as observer:
            await until(lambda: heard)
            leadership = await election.acquire()
            assert leadership is not None
            await until(lambda: heard[-1].token == leadership.token)
            await until(lambda: caplog.text.count("an observer raised") == len(heard))
            observer._task.cancel()
            await until(observer._task.done)
            assert observer._task.cancelled()
            await leadership.release()

    async def test_with_a_client_that_is_stopped_it_ends(self, mine: Place) -> None:
        heard: list[zklock.LeaderChange] = []
        with mine.LeaderElection().observe(heard.append) as observer:
            await until(lambda: heard)
            await aside(mine.client.stop)
            await until(observer._task.done)
        assert observer._task.exception() is None

    async def test_what_may_not_be_seen(
        self, mine: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        mine.client.create(mine.path, acl=[make_digest_acl("owner", "secret", all=True)])
        election = mine.LeaderElection()
        with pytest.raises(zklock.AccessDenied):
            await election.changes().next(SOON)
        with election.observe(print) as observer:
            await until(observer._task.done)
        assert observer._task.exception() is None
        assert "has stopped" in caplog.text
        with pytest.raises(zklock.AccessDenied):
            await election.run(lead_on)
        await aside(mine.client.delete, mine.path)

    def test_those_of_a_closed_loop_are_over(self, mine: Place) -> None:
        async def observe() -> Any:
            observer = mine.LeaderElection().observe(print)
            alive.append(weakref.ref(observer))
            return observer._task

        alive = list[weakref.ref[Any]]()
        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(observe())
        task._log_destroy_pending = False
        loop.close()
        del task
        asyncio.run(observe())

        def forgotten() -> bool:
            gc.collect()
            return alive[0]() is None

        wait_for(forgotten, SOON, "the observer of the closed loop is forgotten")

    def test_on_another_loop_is_refused(self, mine: Place) -> None:
        """Nobody would hear of a change there."""
        election = mine.LeaderElection()

        async def begin() -> Any:
            return election.changes()

        with asyncio.run(begin()) as changes, pytest.raises(RuntimeError, match="another event"):
            asyncio.run(asyncio.wait_for(changes.next(), SOON))

    async def test_a_wait_that_is_cancelled_misses_nothing(
        self, mine: Place, theirs: Place
    ) -> None:
        with theirs.LeaderElection().changes() as changes:
            assert await changes.next(SOON) == zklock.LeaderChange(None)
            waiter = asyncio.create_task(changes.next())
            await asyncio.sleep(0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            async with mine.LeaderElection().attempt() as leadership:
                change = await changes.next(SOON)
                assert leadership is not None
                assert change is not None
                assert (change.token, change.gap) == (leadership.token, False)
