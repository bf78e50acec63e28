"""Elections for asyncio on a real server: terms, hand-overs, cancellation, faults, observers."""

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
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kazoo.security import make_digest_acl

import zklock
from tests.contract.support import SOON, Losses, boottime, children, gone, queued
from tests.contract.test_aio import aside, forever, on_loop
from tests.contract.test_election import Member as ThreadMember
from zklock import aio
from zklock.testing import wait_for

Connect = Callable[..., Any]


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


class Outcome(BaseException):
    """As a library may have it: no error, and neither the end of a task nor of the program."""


class Member:
    """An election with a ``run`` of its own, whose ``lead`` waits until it is told to end."""

    def __init__(self, client: Any, path: str, identity: str, **options: Any) -> None:
        run_options = {name: options.pop(name) for name in ("on_error", "stop") if name in options}
        self.election = aio.LeaderElection(client, path, identity=identity, **options)
        self.terms: list[aio.Leadership] = []
        self.cancelled = 0
        self.working = 0
        self.running = asyncio.create_task(self.election.run(self.lead, **run_options))

    async def lead(self, leadership: aio.Leadership) -> None:
        self.working += 1
        assert self.working == 1
        self.terms.append(leadership)
        try:
            await leadership.should_stop.wait()
            if not leadership.held:  # what is lost is cancelled
                await forever()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.working -= 1

    async def leads(self, terms: int = 1) -> aio.Leadership:
        """Wait until it leads for the n-th time."""
        await until(lambda: len(self.terms) >= terms, f"{self.election!r}: term {terms}")
        return self.terms[terms - 1]

    async def stop(self) -> None:
        self.election.stop()
        await ended(self.running)


@contextlib.asynccontextmanager
async def crew(client: Any, path: str, *names: str, **options: Any) -> AsyncIterator[list[Member]]:
    """Let members queue, one after the other."""
    async with contextlib.AsyncExitStack() as stack:
        members = []
        for count, name in enumerate(names, 1):
            members.append(Member(client, path, name, **options))
            stack.push_async_callback(members[-1].stop)
            await aside(queued, client, path, count)
        yield members


async def identities(election: aio.LeaderElection) -> list[str]:
    return [member.identity for member in await election.members()]


async def ended(task: asyncio.Task[None]) -> None:
    """Wait for the end, and raise what it raised."""
    async with asyncio.timeout(SOON):
        await task


class TestTerms:
    @on_loop
    async def test_without_a_task_are_given_back(self, client: Any, zklock_path: str) -> None:
        """With ``asyncio.eager_task_factory``, ``SystemExit`` in ``lead`` comes from its making."""
        loop = asyncio.get_running_loop()

        class Refused(BaseException):
            pass

        def make(its_loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            if options.get("name") == "zklock-lead" or "_lead" in coroutine.__qualname__:
                coroutine.close()
                raise Refused
            return asyncio.Task(coroutine, loop=its_loop, **options)

        async def lead(leadership: aio.Leadership) -> None:
            raise AssertionError("it has no task")

        election = aio.LeaderElection(client, zklock_path)
        loop.set_task_factory(make)
        try:
            with pytest.raises(Refused):
                await election.run(lead)
        finally:
            loop.set_task_factory(None)
        await aside(gone, client, zklock_path)
        assert election.leadership is None
        leadership = await election.acquire(timeout=SOON)
        assert leadership is not None
        await leadership.release()

    @pytest.mark.parametrize("how", ["stop", "event", "cancel"])
    @on_loop
    async def test_that_end_at_once_are_stopped_at_once(
        self, client: Any, zklock_path: str, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        monkeypatch.setattr("zklock._election.base.TERM_PAUSE", 10 * SOON)
        led, event = asyncio.Event(), asyncio.Event()

        async def lead(leadership: aio.Leadership) -> None:
            led.set()

        election = aio.LeaderElection(client, zklock_path)
        running = asyncio.create_task(election.run(lead, event))
        await led.wait()
        await aside(gone, client, zklock_path)
        if how == "stop":
            election.stop()
        elif how == "event":
            event.set()
        else:
            running.cancel()
        async with asyncio.timeout(SOON):
            await asyncio.wait([running])
        assert running.cancelled() == (how == "cancel")

    @on_loop
    async def test_are_one_at_a_time_threads_or_tasks(
        self, client: Any, other: Any, zklock_path: str
    ) -> None:
        guard = threading.Lock()
        at_once, most, terms = 0, 0, []

        def enter(token: zklock.FencingToken) -> None:
            nonlocal at_once, most
            with guard:
                at_once += 1
                most = max(most, at_once)
                terms.append(token)

        def leave() -> None:
            nonlocal at_once
            with guard:
                at_once -= 1

        async def lead(leadership: aio.Leadership) -> None:
            enter(leadership.token)
            await asyncio.sleep(0.002)
            leave()

        def lead_in_thread(leadership: zklock.Leadership) -> None:
            enter(leadership.token)
            leadership.should_stop.wait(0.002)
            leave()

        stop = asyncio.Event()
        elections = [
            aio.LeaderElection(each, zklock_path, identity=f"{at}{number}")
            for at, each in enumerate((client, other))
            for number in range(2)
        ]
        tasks = [asyncio.create_task(each.run(lead, stop)) for each in elections]
        in_threads = [zklock.LeaderElection(each, zklock_path) for each in (client, other)]
        tasks += [asyncio.create_task(aside(each.run, lead_in_thread)) for each in in_threads]
        await until(lambda: len(terms) >= 70)
        stop.set()
        for each in in_threads:
            each.stop()
        for task in tasks:
            await ended(task)
        assert most == 1
        assert terms == sorted(set(terms))
        await aside(gone, client, zklock_path)

    @on_loop
    async def test_are_announced_on_the_loop(self, client: Any, zklock_path: str) -> None:
        loop = asyncio.get_running_loop()
        elected: list[aio.Leadership] = []
        losses = Losses()

        async def on_elected(leadership: aio.Leadership) -> None:
            assert asyncio.get_running_loop() is loop
            elected.append(leadership)

        options = {"on_elected": on_elected, "on_lost": losses}
        async with crew(client, zklock_path, "a", **options) as (member,):
            leadership = await member.leads()
            await until(lambda: elected == [leadership])
            await aside(client.delete, leadership.path)
            await member.leads(2)
            await until(losses.told.is_set)
            assert losses.one().grant is leadership
            assert losses.threads == [threading.current_thread().name]

    @pytest.mark.parametrize(
        ("call", "error"),
        [
            (lambda it: it.run(7), TypeError),
            (lambda it: it.run(None), TypeError),
            (lambda it: it.run(print), TypeError),
            (lambda it: it.run(lead_on, stop=threading.Event()), TypeError),
            (lambda it: it.transfer("b"), zklock.NotHeld),
        ],
    )
    @on_loop
    async def test_calls_that_make_no_sense_are_refused(
        self, other: Any, zklock_path: str, call: Callable[[Any], Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            await call(aio.LeaderElection(other, zklock_path))
        assert other.exists(zklock_path) is None

    @on_loop
    async def test_lead_may_be_an_object(self, client: Any, zklock_path: str) -> None:
        election = aio.LeaderElection(client, zklock_path)

        class Leader:
            async def __call__(self, leadership: aio.Leadership) -> None:
                assert leadership.held
                election.stop()

        await election.run(Leader())


class TestTransferring:
    @on_loop
    async def test_between_threads_and_tasks(self, client: Any, zklock_path: str) -> None:
        async with crew(client, zklock_path, "a", "b") as (a, b):
            await a.leads()
            thread = ThreadMember(client, zklock_path, "thread")
            await aside(queued, client, zklock_path, 3)
            await a.election.transfer("thread", SOON)
            await aside(thread.leads)
            await aside(queued, client, zklock_path, 3)
            await aside(thread.election.transfer, "b", SOON)
            await b.leads()
            await aside(thread.stop)

    @on_loop
    async def test_by_lead_itself(self, client: Any, zklock_path: str) -> None:
        done = []

        async def lead(leadership: aio.Leadership) -> None:
            done.append(await election.transfer("c"))
            assert leadership.should_stop.is_set()
            election.stop()

        async with crew(client, zklock_path, "first", "b", "c") as (first, b, c):
            await first.leads()
            election = aio.LeaderElection(client, zklock_path, identity="x")
            running = asyncio.create_task(election.run(lead))
            await aside(queued, client, zklock_path, 4)
            await first.election.transfer("x")
            await ended(running)
            assert [one.identity for one in done] == ["c"]
            await c.leads()
            assert not b.terms

    @on_loop
    async def test_to_one_that_goes_before_the_end(
        self, client: Any, zklock_path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        may_end = asyncio.Event()

        async def lead(leadership: aio.Leadership) -> None:
            await may_end.wait()
            election.stop()

        election = Counting(client, zklock_path, identity="first")
        running = asyncio.create_task(election.run(lead))
        await until(lambda: election.is_leader)
        b = Member(client, zklock_path, "b")
        await aside(queued, client, zklock_path, 2)
        c = Member(client, zklock_path, "c")
        await aside(queued, client, zklock_path, 3)
        transfers = [asyncio.create_task(election.transfer("c")) for _ in range(2)]
        await until(lambda: election.waiting == 2)
        await c.stop()
        await aside(queued, client, zklock_path, 2)
        may_end.set()
        for transfer in transfers:
            with pytest.raises(zklock.NoSuchMember, match="'c'"):
                await transfer
        assert transfers[0].exception() is not transfers[1].exception()
        await ended(running)
        await b.leads()
        await b.stop()
        assert "not handed over" in caplog.text

    @pytest.mark.parametrize("how", ["late", "cancelled"])
    @on_loop
    async def test_goes_on_when_nobody_waits_for_it(
        self, client: Any, zklock_path: str, how: str
    ) -> None:
        may_end = asyncio.Event()

        async def lead(leadership: aio.Leadership) -> None:
            await may_end.wait()
            election.stop()

        election = aio.LeaderElection(client, zklock_path, identity="first")
        running = asyncio.create_task(election.run(lead))
        await until(lambda: election.is_leader)
        async with contextlib.AsyncExitStack() as stack:
            members = []
            for number, name in enumerate("bc", 2):
                members.append(Member(client, zklock_path, name))
                stack.push_async_callback(members[-1].stop)
                await aside(queued, client, zklock_path, number)
            if how == "late":
                said = ""
                while "it continues" not in said:  # on a busy machine it may not begin in time
                    with pytest.raises(zklock.NoAnswer) as caught:
                        await election.transfer("c", timeout=0.3)
                    said = str(caught.value)
            else:
                transfer = asyncio.create_task(election.transfer("c"))
                await until(
                    lambda: election.leadership and election.leadership.should_stop.is_set()
                )
                transfer.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await transfer
            may_end.set()
            await ended(running)
            await members[1].leads()
            assert not members[0].terms


class TestStopping:
    @on_loop
    async def test_by_an_event(self, client: Any, zklock_path: str) -> None:
        stop = asyncio.Event()
        members = [Member(client, zklock_path, name, stop=stop) for name in "ab"]
        await aside(queued, client, zklock_path, 2)
        stop.set()
        for member in members:
            await ended(member.running)
        await aside(gone, client, zklock_path)

    def test_by_an_event_of_another_loop(self, client: Any, zklock_path: str) -> None:
        """It would not be heard. It belongs to the loop on which it was waited for first."""
        stop = asyncio.Event()
        election = aio.LeaderElection(client, zklock_path)

        async def lead(leadership: aio.Leadership) -> None:
            stop.set()
            await leadership.should_stop.wait()

        asyncio.run(election.run(lead, stop))
        stop.clear()
        with pytest.raises(RuntimeError, match="different event loop"):
            asyncio.run(asyncio.wait_for(election.run(lead, stop), SOON))
        stop.set()
        asyncio.run(election.run(lead, stop))

    @on_loop
    async def test_from_another_thread(self, client: Any, zklock_path: str) -> None:
        member = Member(client, zklock_path, "a")
        await member.leads()
        await aside(member.election.stop)
        await ended(member.running)

    @on_loop
    async def test_by_a_signal_handler_of_the_loop(self, client: Any, zklock_path: str) -> None:
        loop = asyncio.get_running_loop()
        async with crew(client, zklock_path, "a", "b") as (a, b):
            await a.leads()
            loop.add_signal_handler(signal.SIGUSR1, a.election.stop)
            try:
                os.kill(os.getpid(), signal.SIGUSR1)
                await ended(a.running)
            finally:
                loop.remove_signal_handler(signal.SIGUSR1)
            await b.leads()


class TestErrorsOfLead:
    @on_loop
    async def test_a_cancellation_by_others_is_one(self, client: Any, zklock_path: str) -> None:
        async def lead(leadership: aio.Leadership) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await forever()

        with pytest.raises(asyncio.CancelledError, match="lead was cancelled"):
            await aio.LeaderElection(client, zklock_path).run(lead, on_error="raise")
        await aside(gone, client, zklock_path)

    @pytest.mark.parametrize("first", ["lead", "run"])
    @on_loop
    async def test_the_end_of_the_loop_is_none(
        self, client: Any, zklock_path: str, caplog: pytest.LogCaptureFixture, first: str
    ) -> None:
        """It cancels all tasks, in no order."""
        leading: list[asyncio.Task[Any] | None] = []

        async def lead(leadership: aio.Leadership) -> None:
            leading.append(asyncio.current_task())
            await forever()

        running = asyncio.create_task(aio.LeaderElection(client, zklock_path).run(lead))
        await until(lambda: leading)
        (task,) = leading
        assert task is not None
        for each in (task, running) if first == "lead" else (running, task):
            each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended(running)
        await aside(gone, client, zklock_path)
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR]

    @pytest.mark.parametrize("how", ["in lead", "in a task group"])
    @on_loop
    async def test_a_loss_is_none(
        self, client: Any, zklock_path: str, caplog: pytest.LogCaptureFixture, how: str
    ) -> None:
        terms = []

        async def work(leadership: aio.Leadership) -> None:
            try:
                await forever()
            finally:
                leadership.check()

        async def lead(leadership: aio.Leadership) -> None:
            terms.append(leadership)
            if len(terms) == 2:
                election.stop()
                return
            await aside(client.delete, leadership.path)
            if how == "in lead":
                await work(leadership)
            else:
                async with asyncio.TaskGroup() as group:
                    group.create_task(work(leadership))
                    group.create_task(work(leadership))

        election = aio.LeaderElection(client, zklock_path, retry=(SOON, SOON))
        began = boottime()
        await election.run(lead, on_error="raise")
        assert boottime() - began < SOON / 2
        assert len(terms) == 2
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


class TestLosing:
    @pytest.mark.parametrize("where", ["lead", "a task of lead"])
    @on_loop
    async def test_in_a_body_cancels_once(
        self, client: Any, zklock_path: str, caplog: pytest.LogCaptureFixture, where: str
    ) -> None:
        terms, cleaned = list[aio.Leadership](), list[type[BaseException]]()
        tasks = list[asyncio.Task[None]]()

        async def work(leadership: aio.Leadership) -> None:
            try:
                async with leadership:
                    while True:
                        await asyncio.sleep(0)
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
            await aside(client.delete, leadership.path)
            if where == "lead":
                await work(leadership)
            else:
                tasks.append(asyncio.create_task(work(leadership)))
                await forever()

        election = aio.LeaderElection(client, zklock_path, retry=(SOON, SOON))
        await election.run(lead, on_error="raise")
        assert len(terms) == 2
        if where == "lead":
            assert cleaned == [asyncio.CancelledError]
        else:
            with pytest.raises(zklock.LockLost):
                await tasks[0]
            assert cleaned == [zklock.LockLost]
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR]

    @on_loop
    async def test_a_lead_that_does_not_heed_is_cancelled_after_its_grace(
        self, client: Any, zklock_path: str
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

        election = aio.LeaderElection(client, zklock_path, grace=0.5)
        await election.run(lead)
        assert 0.4 < times[1] - times[0] < SOON
        await aside(gone, client, zklock_path)

    @pytest.mark.hazard("H19")
    @on_loop
    async def test_no_second_term_while_the_old_lead_runs(
        self, client: Any, zklock_path: str
    ) -> None:
        may_end = asyncio.Event()
        terms: list[aio.Leadership] = []

        async def lead(leadership: aio.Leadership) -> None:
            terms.append(leadership)
            if len(terms) > 1:
                election.stop()
                return
            while not may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()

        election = aio.LeaderElection(client, zklock_path, grace=0.3)
        running = asyncio.create_task(election.run(lead))
        await until(lambda: terms)
        await aside(client.delete, terms[0].path)
        with pytest.raises(zklock.LeaderStuck) as stuck:
            await ended(running)
        assert stuck.value.token == terms[0].token
        with pytest.raises(zklock.LeaderStuck):
            await election.run(lead)
        assert len(terms) == 1
        assert await aside(children, client, zklock_path) == []
        may_end.set()
        await until(lambda: election.leadership is None)
        await election.run(lead)
        assert len(terms) == 2

    @pytest.mark.hazard("H19")
    @pytest.mark.parametrize("how", ["stop", "cancel"])
    @on_loop
    async def test_what_is_stuck_keeps_what_it_holds(
        self, client: Any, zklock_path: str, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        may_end = asyncio.Event()

        async def lead(leadership: aio.Leadership) -> None:
            while not may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()

        election = aio.LeaderElection(client, zklock_path, identity="a", grace=0.3)
        running = asyncio.create_task(election.run(lead))
        await until(lambda: election.is_leader)
        b = Member(client, zklock_path, "b")
        await aside(queued, client, zklock_path, 2)
        if how == "stop":
            election.stop()
            with pytest.raises(zklock.LeaderStuck):
                await ended(running)
        else:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ended(running)
            assert "did not end" in caplog.text
        assert election.is_leader
        assert not b.terms
        may_end.set()
        await b.leads()
        await b.stop()


class TestCancelling:
    @on_loop
    async def test_ends_lead_first(self, client: Any, zklock_path: str) -> None:
        ends: list[bool] = []

        async def lead(leadership: aio.Leadership) -> None:
            try:
                await forever()
            finally:
                await asyncio.sleep(0.05)
                ends.append(leadership.held and leadership.should_stop.is_set())

        election = aio.LeaderElection(client, zklock_path)
        running = asyncio.create_task(election.run(lead))
        await until(lambda: election.is_leader)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended(running)
        assert ends == [True]
        assert election.leadership is None
        await aside(gone, client, zklock_path)

    @on_loop
    async def test_at_any_moment_leaves_no_member_h9(
        self, client: Any, other: Any, zklock_path: str
    ) -> None:
        at: Counter[str] = Counter()
        for number in range(60):
            led = 0

            async def lead(leadership: aio.Leadership) -> None:
                nonlocal led
                led += 1
                await asyncio.sleep(0)

            election = aio.LeaderElection(client, zklock_path)
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
            await aside(gone, other, zklock_path)
        assert len(at) == 2, at

    @on_loop
    async def test_however_often_lets_lead_end_first(self, client: Any, zklock_path: str) -> None:
        """As a scope of anyio does: it cancels again, whatever is awaited."""
        loop, ends = asyncio.get_running_loop(), list[bool]()

        async def lead(leadership: aio.Leadership) -> None:
            try:
                await forever()
            finally:
                for _ in range(20):
                    await asyncio.sleep(0.005)
                ends.append(leadership.held)

        def cancel() -> None:
            if not running.done():
                running.cancel()
                loop.call_soon(cancel)

        election = aio.LeaderElection(client, zklock_path)
        running = asyncio.create_task(election.run(lead))
        await until(lambda: election.is_leader)
        cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended(running)
        assert ends == [True]
        assert election.leadership is None
        await aside(gone, client, zklock_path)

    @on_loop
    async def test_however_often_does_not_lengthen_the_grace(
        self, client: Any, zklock_path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        stop = asyncio.Event()

        async def lead(leadership: aio.Leadership) -> None:
            while not stop.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await stop.wait()

        election = aio.LeaderElection(client, zklock_path, grace=0.2)
        running = asyncio.create_task(election.run(lead))
        await until(lambda: election.is_leader)
        async with asyncio.timeout(SOON):
            while not running.done():
                running.cancel()
                await asyncio.sleep(0.005)
        assert running.cancelled()
        assert "did not end" in caplog.text
        stop.set()
        await aside(gone, client, zklock_path)

    def test_a_loop_that_ends_leaves_no_member(
        self, client: Any, other: Any, zklock_path: str
    ) -> None:
        async def main() -> None:
            member = Member(client, zklock_path, "a")
            await member.leads()
            Member(client, zklock_path, "b")
            await aside(queued, other, zklock_path, 2)

        asyncio.run(main())
        gone(other, zklock_path)

    def test_a_loop_that_is_dropped_at_its_election_leaves_nobody(
        self, client: Any, other: Any, zklock_path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        lock = zklock.Lock(other, zklock_path)
        loop = asyncio.new_event_loop()
        election = aio.LeaderElection(client, zklock_path)
        with lock:
            task = loop.create_task(election.run(lead_on))
            loop.run_until_complete(aside(queued, other, zklock_path, 2))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
        gone(other, zklock_path)
        # Nobody awaits it any more, on purpose.
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    def test_a_loop_that_is_closed_in_a_term_leaves_nobody(
        self, client: Any, other: Any, zklock_path: str
    ) -> None:
        loop = asyncio.new_event_loop()
        election = aio.LeaderElection(client, zklock_path)

        async def lead(leadership: aio.Leadership) -> None:
            await forever()

        async def main() -> None:
            running = asyncio.create_task(election.run(lead))
            await until(lambda: election.is_leader)
            assert not running.done()

        loop.run_until_complete(main())
        left = asyncio.all_tasks(loop)
        loop.close()
        gone(other, zklock_path)
        assert not election.is_leader
        for task in left:  # nobody awaits them any more, on purpose
            task._log_destroy_pending = False  # type: ignore[attr-defined]


def name_of(change: zklock.LeaderChange | None) -> tuple[str | None, bool]:
    assert change is not None
    return (None if change.leader is None else change.leader.identity, change.gap)


class TestObserving:
    @on_loop
    async def test_async_for_ends_after_its_timeout(
        self, client: Any, other: Any, zklock_path: str
    ) -> None:
        async with crew(client, zklock_path, "a", "b") as (a, _):
            await a.leads()
            changes = aio.LeaderElection(other, zklock_path).changes(timeout=0.3)
            assert name_of(await changes.next(SOON)) == ("a", False)
            assert [change async for change in changes] == []

    @pytest.mark.parametrize(("kind", "error"), [("plain", RuntimeError), ("coroutine", Outcome)])
    @on_loop
    async def test_callbacks_come_in_order_and_may_fail(
        self,
        client: Any,
        other: Any,
        zklock_path: str,
        caplog: pytest.LogCaptureFixture,
        kind: str,
        error: type[BaseException],
    ) -> None:
        heard: list[zklock.LeaderChange] = []

        def hear(change: zklock.LeaderChange) -> None:
            heard.append(change)
            raise error("an observer that fails")

        async def hear_later(change: zklock.LeaderChange) -> None:
            await asyncio.sleep(0.01)
            hear(change)

        observer = aio.LeaderElection(other, zklock_path).observe(
            hear if kind == "plain" else hear_later
        )
        gc.collect()
        async with crew(client, zklock_path, "a", "b") as (a, b):
            first = await a.leads()
            await until(lambda: [each.token for each in heard][-1:] == [first.token])
            a.election.resign()
            second = await b.leads()
            await until(lambda: [each.token for each in heard][-1:] == [second.token])
            assert "an observer that fails" in caplog.text
            observer.close()
            count = len(heard)
            await aside(queued, client, zklock_path, 2)
            b.election.resign()
            await a.leads(2)
        assert len(heard) == count

    @on_loop
    async def test_a_callback_that_awaits_what_is_cancelled(
        self, client: Any, zklock_path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The observer is told on. Only a cancellation of its own task ends it."""
        heard: list[zklock.LeaderChange] = []

        async def hear(change: zklock.LeaderChange) -> None:
            heard.append(change)
            job = asyncio.create_task(forever())
            asyncio.get_running_loop().call_soon(job.cancel)
            await job

        election = aio.LeaderElection(client, zklock_path)
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

    @on_loop
    async def test_a_client_that_is_stopped(
        self, zklock_connect: Connect, zklock_path: str
    ) -> None:
        client = zklock_connect()
        election = aio.LeaderElection(client, zklock_path)
        heard: list[zklock.LeaderChange] = []
        with election.changes() as changes, election.observe(heard.append) as observer:
            assert name_of(await changes.next(SOON)) == (None, False)
            await until(lambda: heard)
            await aside(client.stop)
            with pytest.raises(zklock.ClientClosed):
                await changes.next(SOON)
            await until(observer._task.done)
            assert observer._task.exception() is None

    @on_loop
    async def test_what_may_not_be_seen(
        self, client: Any, zklock_path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        client.create(zklock_path, acl=[make_digest_acl("owner", "secret", all=True)])
        election = aio.LeaderElection(client, zklock_path)
        with pytest.raises(zklock.AccessDenied):
            await election.changes().next(SOON)
        with election.observe(print) as observer:
            await until(observer._task.done)
        assert observer._task.exception() is None
        assert "has stopped" in caplog.text
        with pytest.raises(zklock.AccessDenied):
            await election.run(lead_on)
        await aside(client.delete, zklock_path)

    def test_those_of_a_closed_loop_are_over(self, client: Any, zklock_path: str) -> None:
        async def observe() -> asyncio.Task[None]:
            observer = aio.LeaderElection(client, zklock_path).observe(print)
            alive.append(weakref.ref(observer))
            return observer._task

        alive = list[weakref.ref[Any]]()
        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(observe())
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        del task
        asyncio.run(observe())

        def forgotten() -> bool:
            gc.collect()
            return alive[0]() is None

        wait_for(forgotten, SOON, "the observer of the closed loop is forgotten")

    def test_on_another_loop_is_refused(self, client: Any, zklock_path: str) -> None:
        """Nobody would hear of a change there."""
        election = aio.LeaderElection(client, zklock_path)

        async def begin() -> aio.LeaderChanges:
            return election.changes()

        with asyncio.run(begin()) as changes, pytest.raises(RuntimeError, match="another event"):
            asyncio.run(asyncio.wait_for(changes.next(), SOON))

    @on_loop
    async def test_a_wait_that_is_cancelled_misses_nothing(
        self, client: Any, other: Any, zklock_path: str
    ) -> None:
        with aio.LeaderElection(other, zklock_path).changes() as changes:
            assert name_of(await changes.next(SOON)) == (None, False)
            waiter = asyncio.create_task(changes.next())
            await asyncio.sleep(0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            async with crew(client, zklock_path, "a") as (a,):
                await a.leads()
                assert name_of(await changes.next(SOON)) == ("a", False)
