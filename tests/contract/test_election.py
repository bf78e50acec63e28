"""Leader election on a real server: terms, fencing, hand-overs, faults, observers; both fronts."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

import zklock
from tests.contract.fronts import Behind, Loop, Place, Steps, Threads
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, Child, boottime, freeze, now_of, run
from tests.modes import bounded
from zklock._election.changes import Feed
from zklock.fencing import MemoryGuard, verify_owner
from zklock.testing import FrameKind, expire_session, wait_for

Connect = Callable[..., Any]


class Member:
    """An election with a ``run`` of its own, whose ``lead`` waits until it is told to end.

    Or until ``hold`` is set. ``times`` are those at which a ``lead`` has begun or ended.
    """

    def __init__(
        self, place: Place, identity: str, hold: threading.Event | None = None, **options: Any
    ) -> None:
        run_options = {name: options.pop(name) for name in ("on_error", "stop") if name in options}
        self.election = place.LeaderElection(identity=identity, **options)
        self.terms: list[Any] = []
        self.times: list[float] = []
        self.working = 0
        self.hold = hold
        self.done = run(self.election.run, place.front.script(self.lead), **run_options)

    def lead(self, leadership: Any) -> Steps:
        self.working += 1
        assert self.working == 1
        self.times.append(boottime())
        self.terms.append(leadership)
        try:
            yield self.hold or leadership.should_stop
        finally:
            self.times.append(boottime())
            self.working -= 1

    def leads(self, terms: int = 1) -> Any:
        """Wait until it leads for the n-th time."""
        wait_for(
            lambda: len(self.terms) >= terms,
            SOON,
            lambda: f"{self.election!r}: term {terms}; members: {self.election.members()}",
        )
        return self.terms[terms - 1]

    def stop(self) -> None:
        self.election.stop()
        self.done.result(SOON)


def identities(election: Any) -> list[str]:
    return [member.identity for member in election.members()]


def joined(place: Place, name: str, **options: Any) -> Member:
    """Let one more member stand; return once it is in the queue."""
    member = Member(place, name, **options)
    wait_for(lambda: name in identities(member.election), SOON, f"{name} in the queue")
    return member


class Outcome(BaseException):
    """As a library may have it: no error, and neither the end of a task nor of the program."""


@contextmanager
def crew(place: Place, *names: str, **options: Any) -> Iterator[list[Member]]:
    """Let members queue, one after the other."""
    with ExitStack() as stack:
        members = []
        for name in names:
            members.append(joined(place, name, **options))
            stack.callback(members[-1].stop)
        yield members


@pytest.fixture
def ours(client: Any, zklock_path: str) -> Place:
    """The path of the test, for threads and a client."""
    return Place(Threads(), client, zklock_path)


@pytest.fixture
def others(other: Any, zklock_path: str) -> Place:
    """The same path, for threads and another client."""
    return Place(Threads(), other, zklock_path)


@pytest.fixture
def both(ours: Place, others: Place) -> Iterator[list[Place]]:
    """The same path, for each client on each front, which are there at a time."""
    loop = Loop()
    yield [Place(front, it.client, it.path) for front in (Threads(), loop) for it in (ours, others)]
    loop.close()


class TestTerms:
    @pytest.mark.hazard("H44")
    def test_that_end_at_once_do_not_spin(self, ours: Place) -> None:
        tokens: list[zklock.FencingToken] = []

        def lead(leadership: zklock.Leadership) -> None:
            leadership.check()
            leadership.verify()
            assert leadership.held
            assert leadership.remaining() > 0
            assert leadership.identity == election.identity
            assert election.leadership is leadership
            assert election.is_leader
            tokens.append(leadership.token)
            if len(tokens) == 6:
                election.stop()

        election = ours.LeaderElection()
        began = boottime()
        election.run(lead, on_error="raise")
        assert boottime() - began >= 5 * 0.2
        assert tokens == sorted(set(tokens))
        assert len(tokens) == 6
        assert election.leadership is None
        assert not election.is_leader
        ours.gone()

    @pytest.mark.parametrize("how", ["stop", "event"])
    def test_that_end_at_once_are_stopped_at_once(
        self, mine: Place, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        monkeypatch.setattr("zklock._election.base.TERM_PAUSE", 10 * SOON)
        event, led = mine.front.event(), threading.Event()

        def lead(leadership: Any) -> Steps:
            led.set()
            yield 0.0

        election = mine.LeaderElection()
        running = run(election.run, mine.front.script(lead), event)
        assert led.wait(SOON)
        mine.gone()
        election.stop() if how == "stop" else event.set()
        running.result(SOON)

    def test_are_one_at_a_time_threads_or_tasks(self, both: list[Place]) -> None:
        leading: list[zklock.FencingToken] = []
        tokens: list[zklock.FencingToken] = []

        def lead(leadership: Any) -> Steps:
            leading.append(leadership.token)
            assert leading == [leadership.token]
            tokens.append(leadership.token)
            yield 0.002
            leading.clear()

        elections = [
            (place.LeaderElection(), place.front.script(lead)) for place in (*both, *both[2:])
        ]
        running = [run(each.run, script, on_error="raise") for each, script in elections]
        wait_for(lambda: len(tokens) >= 70 or any(each.done() for each in running), SOON)
        for each, _ in elections:
            each.stop()
        for one in running:
            one.result(SOON)
        assert tokens == sorted(set(tokens))
        both[0].gone()

    def test_that_last_are_followed_by_no_pause(
        self, ours: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("zklock._election.base.TERM_PAUSE", 0.001)
        tokens: list[zklock.FencingToken] = []

        def lead(leadership: zklock.Leadership) -> None:
            tokens.append(leadership.token)
            leadership.should_stop.wait(0.002)
            if len(tokens) == 50:
                election.stop()

        election = ours.LeaderElection()
        began = now_of(ours.client)
        election.run(lead)
        assert now_of(ours.client) - began < bounded(50 * 0.2)

    def test_are_fenced(self, ours: Place, others: Place) -> None:
        with crew(ours, "a", "b", payload="http://a:80/") as (first, second):
            early = first.leads().token
            owner = verify_owner(others.client, others.path, early)
            assert (owner.identity, owner.payload) == ("a", b"http://a:80/")
            first.election.resign()
            late = second.leads().token
            assert late > early
            assert verify_owner(others.client, others.path, late).identity == "b"
            with pytest.raises(zklock.NotOwner) as refused:
                verify_owner(others.client, others.path, early)
            assert refused.value.holder == "b"
            ours.queued(2)
            waiting = second.election.members()[1]
            assert waiting.token is not None
            with pytest.raises(zklock.NotOwner):
                verify_owner(others.client, others.path, waiting.token)

    def test_are_named_as_curators(self, ours: Place) -> None:
        with crew(ours, "java sees this") as (member,):
            (name,) = ours.nodes()
            assert zklock._recipes.names.parse(name).kind is zklock._recipes.names.Kind.LATCH  # type: ignore[union-attr]
            assert ours.client.get(f"{ours.path}/{name}")[0] == b"java sees this"
            assert member.leads().path == f"{ours.path}/{name}"

    def test_wait_for_members_of_other_clients(self, ours: Place, others: Place) -> None:
        others.client.ensure_path(ours.path)
        foreign = others.client.create(
            f"{ours.path}/_c_6a3b1d5c-0000-4000-8000-000000000000-latch-",
            b"a LeaderLatch",
            ephemeral=True,
            sequence=True,
        )
        member = Member(ours, "ours")
        others.queued(2)
        leader = member.election.leader()
        assert leader is not None
        assert (leader.identity, leader.path) == ("a LeaderLatch", foreign)
        assert not member.terms
        others.client.delete(foreign)
        member.leads()
        member.stop()

    def test_survive_callbacks_that_fail(
        self, ours: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(what: object) -> None:
            raise RuntimeError(f"callback of {type(what).__name__}")

        with crew(ours, "a", on_elected=fail, on_lost=fail) as (member,):
            ours.client.delete(member.leads().path)
            member.leads(2)
            for what, count in (("Loss", 1), ("Leadership", 2)):
                said = f"callback of {what}"
                wait_for(lambda said=said, count=count: caplog.text.count(said) == count, SOON)  # type: ignore[misc]


class TestMembers:
    def test_are_told_in_order_with_payload(self, ours: Place, others: Place) -> None:
        asking = others.LeaderElection()
        assert asking.leader() is None
        assert asking.members() == []
        payload = bytes(range(256)) * 64
        with ExitStack() as stack:
            for name, what in (("a", payload), ("b", "ä"), ("c", b"")):
                stack.callback(Member(ours, name, payload=what).stop)
                wait_for(lambda name=name: name in identities(asking), SOON)  # type: ignore[misc]
            members = asking.members()
            assert [one.identity for one in members] == ["a", "b", "c"]
            assert [one.payload for one in members] == [payload, "ä".encode(), b""]
            assert [one.holds for one in members] == [True, False, False]
            tokens = [one.token for one in members]
            assert tokens == sorted(tokens)
            assert asking.leader() == members[0]

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"identity": ""}, ValueError),
            ({"identity": 7}, TypeError),
            ({"payload": 7}, TypeError),
            ({"payload": b"x" * 16385}, ValueError),
            ({"payload": "ä" * 8193}, ValueError),
            ({"on_elected": 7}, TypeError),
            ({"on_lost": 7}, TypeError),
            ({"grace": 0}, ValueError),
            ({"grace": float("nan")}, ValueError),
            ({"grace": "10"}, TypeError),
            ({"retry": 1}, TypeError),
            ({"retry": (2, 1)}, ValueError),
            ({"retry": (0, 1)}, ValueError),
            ({"path": "relative"}, ValueError),
            ({"path": 7}, TypeError),
        ],
    )
    def test_bad_input_is_refused_at_once(
        self, mine: Place, wrong: dict[str, Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            mine.front.LeaderElection(mine.client, **{"path": mine.path, **wrong})
        assert mine.client.exists(mine.path) is None

    def test_a_coroutine_that_comes_of_a_plain_function_is_told_of(
        self, ours: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def never(what: object) -> None:
            raise AssertionError("never run")

        def plain(what: object) -> object:
            return never(what)

        election = ours.LeaderElection()
        with election.observe(plain):
            with pytest.raises(TypeError, match=r"lead returned a coroutine.*zklock\.aio"):
                election.run(plain, on_error="raise")
            wait_for(lambda: "an observer returned a coroutine" in caplog.text, SOON)
        ours.gone()

    def test_coroutine_functions_are_told_where_they_belong(self, ours: Place) -> None:
        async def forever(what: object) -> None:
            raise AssertionError("never run")

        election = ours.LeaderElection()
        with pytest.raises(TypeError, match=r"lead is a coroutine function.*zklock\.aio"):
            election.run(forever)
        with pytest.raises(TypeError, match=r"callback is a coroutine function.*zklock\.aio"):
            election.observe(forever)
        makers: tuple[tuple[Any, tuple[str, ...]], ...] = (
            (zklock.LeaderElection, ("on_elected", "on_lost")),
            (zklock.WorkerPool, ("on_assigned", "on_revoked")),
        )
        for make, names in makers:
            for name in names:
                with pytest.raises(TypeError, match=rf"{name} is a coroutine.*zklock\.aio"):
                    make(ours.client, ours.path, **{name: forever})

    @pytest.mark.parametrize(
        ("call", "error"),
        [
            (lambda it, lead: it.run(7), TypeError),
            (lambda it, lead: it.run(None), TypeError),
            (lambda it, lead: it.run(lead, stop=7), TypeError),
            (lambda it, lead: it.run(lead, on_error="ignore"), ValueError),
            (lambda it, lead: it.observe(7), TypeError),
            (lambda it, lead: it.observe(None), TypeError),
            (lambda it, lead: it.observe_membership(None), TypeError),
            (lambda it, lead: it.changes(timeout=-1), ValueError),
            (lambda it, lead: it.leader(timeout="1"), TypeError),
            (lambda it, lead: it.transfer(7), TypeError),
            (lambda it, lead: it.transfer("b"), zklock.NotHeld),
            (lambda it, lead: it.resign(), zklock.NotHeld),
        ],
    )
    def test_calls_that_make_no_sense_are_refused_at_once(
        self, mine: Place, call: Callable[[Any, Any], object], error: type[Exception]
    ) -> None:
        def lead(leadership: Any) -> Steps:
            yield leadership.should_stop

        with pytest.raises(error):
            call(mine.LeaderElection(), mine.front.script(lead))
        assert mine.client.exists(mine.path) is None

    def test_signals_are_handled_by_the_main_thread(self, ours: Place) -> None:
        with pytest.raises(ValueError, match="main thread"):
            run(ours.LeaderElection().run, print, handle_signals=True).result(SOON)

    def test_a_second_run_at_a_time_is_refused(self, ours: Place) -> None:
        with crew(ours, "a") as (member,):
            member.leads()
            with pytest.raises(zklock.ZkLockError, match="already runs"):
                member.election.run(print)


class TestResigning:
    def test_goes_to_the_back_of_the_queue(self, mine: Place) -> None:
        with crew(mine, "a", "b", "c") as (a, b, c):
            a.leads()
            a.election.resign()
            b.leads()
            mine.queued(3)
            assert identities(a.election) == ["b", "c", "a"]
            with pytest.raises(zklock.NotHeld):
                a.election.resign()
            b.election.resign()
            c.leads()
            c.terms[0].resign()
            a.leads(2)

    @pytest.mark.parametrize("how", ["resign", "release", "abandon"])
    def test_nobody_else_leads_before_lead_has_returned(self, mine: Place, how: str) -> None:
        may_end, told = threading.Event(), threading.Event()

        def lead(leadership: Any) -> Steps:
            yield ready
            yield leadership.should_stop
            assert leadership.held
            told.set()
            yield may_end

        ready = threading.Event()
        election = mine.LeaderElection()
        done = run(election.run, mine.front.script(lead))
        wait_for(lambda: election.is_leader, SOON)
        getattr(election.leadership, how)()
        ready.set()
        assert told.wait(SOON)
        other = joined(mine, "b")
        assert not other.terms
        election.stop()
        may_end.set()
        done.result(SOON)
        other.leads()
        other.stop()


class TestTransferring:
    def test_to_a_member_far_behind(self, ours: Place) -> None:
        names = ["a", "b", "c", "d", "e"]
        with crew(ours, *names) as members:
            early = members[0].leads().token
            successor = members[0].election.transfer("d", timeout=SOON)
            assert successor.identity == "d"
            leadership = members[3].leads()
            assert leadership.token == successor.token
            assert leadership.token > early
            ours.queued(5)
            order = identities(members[0].election)
            assert order[:2] == ["d", "e"]
            assert sorted(order[2:]) == ["a", "b", "c"]
            assert [len(member.terms) for member in members] == [1, 0, 0, 1, 0]

    def test_by_lead_itself(self, mine: Place) -> None:
        done: list[Any] = []

        def lead(leadership: Any) -> Steps:
            done.append((yield election.transfer("c")))
            assert leadership.should_stop.is_set()
            election.stop()

        with crew(mine, "first", "b", "c") as (first, b, c):
            first.leads()
            election = mine.LeaderElection(identity="x")
            running = run(election.run, mine.front.script(lead))
            mine.queued(4)
            first.election.transfer("x")
            running.result(SOON)
            assert [one.identity for one in done] == ["c"]
            c.leads()
            assert not b.terms

    def test_to_nobody(self, ours: Place) -> None:
        with crew(ours, "a", "b") as (a, _):
            leadership = a.leads()
            for nobody in ("z", "a"):
                with pytest.raises(zklock.NoSuchMember, match=nobody):
                    a.election.transfer(nobody)
            assert leadership.held
            assert not leadership.should_stop.is_set()

    def test_past_a_lock_of_somebody_else(self, ours: Place) -> None:
        with crew(ours, "a") as (a,):
            leadership = a.leads()
            lock = ours.Lock()
            waiting = run(lock.acquire)
            ours.queued(2)
            b = joined(ours, "b")
            with pytest.raises(zklock.NoSuchMember, match="-lock-"):
                a.election.transfer("b")
            assert leadership.held
            lock.cancel()
            with pytest.raises(zklock.AcquireCancelled):
                waiting.result(SOON)
            ours.queued(2)
            a.election.transfer("b")
            b.leads()
            b.stop()

    def test_two_at_a_time_to_different_members(self, ours: Place) -> None:
        may_end = threading.Event()
        a = Member(ours, "a", hold=may_end)
        term = a.leads() and a.election._term
        b = joined(ours, "b")
        c = joined(ours, "c")
        first = run(a.election.transfer, "b")
        wait_for(lambda: term.candidacy.successor == "b", SOON)
        second = run(a.election.transfer, "c")
        wait_for(lambda: term.candidacy.successor == "c", SOON)
        may_end.set()
        with pytest.raises(zklock.ZkLockError, match=r"to 'b': .* named 'c'") as late:
            first.result(SOON)
        assert late.value.token is not None
        assert second.result(SOON).identity == "c"
        c.leads()
        assert not b.terms
        for member in (a, b, c):
            member.stop()

    def test_not_even_begun_in_time(self, behind: Behind, theirs: Place) -> None:
        with crew(behind(), "a") as (a,):
            leadership = a.leads()
            b = joined(theirs, "b")
            behind.proxy.hold()
            with pytest.raises(zklock.NoAnswer, match="has not begun, and 'a' still leads") as late:
                a.election.transfer("b", timeout=0.2)
            behind.proxy.release()
            assert "goes on" not in str(late.value)
            assert not leadership.should_stop.is_set()
            assert [one.identity for one in b.election.members()] == ["a", "b"]
            assert a.election.transfer("b", timeout=SOON).identity == "b"
            b.leads()
            b.stop()

    def test_many_times_nobody_leads_but_the_successor(self, both: list[Place]) -> None:
        names = ["a", "b", "c", "d"]
        with ExitStack() as stack:
            members = {}
            for name, place in zip(names, both, strict=True):
                members[name] = joined(place, name)
                stack.callback(members[name].stop)
            led = ["a"]
            members["a"].leads()
            for step in range(20):
                place.queued(4)
                now = led[-1]
                following = names[(names.index(now) + 1 + step % 3) % 4]
                count = led.count(following) + 1
                members[now].election.transfer(following, timeout=SOON)
                members[following].leads(count)
                led.append(following)
            terms = sorted(
                (term.token, name) for name, member in members.items() for term in member.terms
            )
            assert [name for _, name in terms] == led


class TestStopping:
    def test_by_an_event(self, mine: Place) -> None:
        stop = mine.front.event()
        members = [Member(mine, name, stop=stop) for name in "ab"]
        mine.queued(2)
        stop.set()
        for member in members:
            member.done.result(SOON)
        mine.gone()

    def test_before_it_has_begun(self, ours: Place) -> None:
        election = ours.LeaderElection()
        election.stop()
        election.run(lambda leadership: pytest.fail("led"))
        stop = threading.Event()
        stop.set()
        ours.LeaderElection().run(lambda leadership: pytest.fail("led"), stop=stop)
        assert ours.client.exists(ours.path) is None

    def test_a_waiting_member(self, ours: Place) -> None:
        with crew(ours, "a", "b") as (a, b):
            a.leads()
            b.stop()
            ours.queued(1)
            assert a.terms[0].held

    def test_a_client_that_is_stopped(self, mine: Place, theirs: Place) -> None:
        a = Member(mine, "a")
        a.leads()
        b = joined(theirs, "b")
        theirs.client.stop()
        with pytest.raises(zklock.ClientClosed):
            b.done.result(SOON)
        mine.client.stop()
        with pytest.raises(zklock.ClientClosed):
            a.done.result(SOON)
        assert a.terms[0].lost.is_set()


class TestErrorsOfLead:
    def test_are_retried_after_growing_pauses(
        self, ours: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        times, tokens = [], []

        def lead(leadership: zklock.Leadership) -> None:
            times.append(boottime())
            tokens.append(leadership.token)
            if len(times) < 4:
                raise RuntimeError(f"failure {len(times)}")
            election.stop()

        election = ours.LeaderElection(retry=(0.2, 10.0))
        election.run(lead)
        pauses = [later - sooner for sooner, later in pairwise(times)]
        for pause, least in zip(pauses, (0.1, 0.2, 0.4), strict=True):
            assert pause >= least
        assert tokens == sorted(set(tokens))
        for number in (1, 2, 3):
            assert f"failure {number}" in caplog.text

    def test_hand_over_before_the_pause(self, ours: Place) -> None:
        def lead(leadership: zklock.Leadership) -> None:
            ours.queued(2)
            raise RuntimeError("not I")

        election = ours.LeaderElection(retry=(SOON, SOON))
        running = run(election.run, lead)
        wait_for(lambda: election.is_leader, SOON)
        member = Member(ours, "b")
        member.leads()
        assert identities(election) == ["b"]
        began = boottime()
        election.stop()
        running.result(SOON)
        assert boottime() - began < SOON / 4
        member.stop()

    @pytest.mark.parametrize("error", [RuntimeError, SystemExit])
    def test_are_raised_if_asked(self, ours: Place, error: type[BaseException]) -> None:
        def lead(leadership: zklock.Leadership) -> None:
            raise error("enough")

        with pytest.raises(error, match="enough"):
            ours.LeaderElection().run(lead, on_error="raise")
        ours.gone()

    @pytest.mark.parametrize("grouped", [False, True])
    def test_a_loss_is_none(
        self, mine: Place, caplog: pytest.LogCaptureFixture, grouped: bool
    ) -> None:
        terms: list[Any] = []

        def lead(leadership: Any) -> Steps:
            terms.append(leadership)
            if len(terms) == 2:
                election.stop()
                return
            try:
                yield leadership.lost  # which cancels a task
            finally:
                try:
                    leadership.check()
                except zklock.LockLost as lost:
                    if grouped:
                        raise ExceptionGroup("in tasks", [lost]) from None
                    raise

        election = mine.LeaderElection(retry=(SOON, SOON))
        began = boottime()
        running = run(election.run, mine.front.script(lead), on_error="raise")
        wait_for(lambda: terms, SOON)
        mine.client.delete(terms[0].path)
        running.result(SOON)
        assert boottime() - began < SOON / 2
        assert len(terms) == 2
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


class TestLosing:
    def test_in_lead_is_raised_where_the_leadership_is_given_back(self, ours: Place) -> None:
        raised: list[str] = []

        def lead(leadership: zklock.Leadership) -> None:
            election.stop()
            try:
                with leadership:
                    ours.client.delete(leadership.path)
                    assert leadership.lost.wait(SOON)
            except zklock.LockLost:
                raised.append("body")
            try:
                leadership.release()
            except zklock.LockLost:
                raised.append("release")
            leadership.abandon()

        election = ours.LeaderElection()
        election.run(lead, on_error="raise")
        assert raised == ["body", "release"]

    def test_a_late_write_that_is_refused_is_no_failure(
        self, ours: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        refused: list[zklock.StaleToken] = []

        def lead(leadership: zklock.Leadership) -> None:
            election.stop()
            ours.client.delete(leadership.path)
            assert leadership.lost.wait(SOON)
            guard = MemoryGuard("report")
            guard.claim(zklock.FencingToken(leadership.token.epoch, 1 + leadership.token.sequence))
            try:
                guard.claim(leadership.token)
            except zklock.StaleToken as error:
                refused.append(error)
                raise

        election = ours.LeaderElection()
        election.run(lead, on_error="raise")
        assert refused
        assert "raised" not in caplog.text

    @pytest.mark.hazard("H19")
    def test_a_leader_that_loses_its_session_is_told(self, mine: Place, theirs: Place) -> None:
        a = Member(mine, "a")
        a.leads()
        b = joined(theirs, "b")
        expire_session(mine.client)
        early, late = a.leads(), b.leads()
        wait_for(early.lost.is_set, SOON)
        assert early.should_stop.is_set()
        with pytest.raises(zklock.LockLost):
            early.check()
        assert late.token > early.token
        theirs.queued(2)
        b.election.resign()
        assert a.leads(2).token > late.token
        a.stop()
        b.stop()

    @pytest.mark.hazard("H19")
    def test_a_leader_that_is_cut_off_ends_before_the_next_begins(
        self, behind: Behind, theirs: Place
    ) -> None:
        a = Member(behind(timeout=6.0), "a")
        a.leads()
        b = joined(theirs, "b")
        behind.proxy.cut()
        b.leads()
        behind.proxy.restore()
        assert a.times[1] < b.times[0]
        a.stop()
        b.stop()

    @pytest.mark.hazard("H19")
    def test_no_second_term_while_the_old_lead_runs(self, mine: Place) -> None:
        may_end = threading.Event()
        terms: list[Any] = []

        def body(leadership: Any) -> Steps:
            terms.append(leadership)
            if len(terms) == 1:
                yield may_end
            else:
                election.stop()

        lead = mine.front.script(body, stubborn=True)
        election = mine.LeaderElection(grace=0.5)
        running = run(election.run, lead)
        wait_for(lambda: terms, SOON)
        mine.client.delete(terms[0].path)
        with pytest.raises(zklock.LeaderStuck) as stuck:
            running.result(SOON)
        assert stuck.value.token == terms[0].token
        with pytest.raises(zklock.LeaderStuck):
            election.run(lead)
        assert len(terms) == 1
        assert mine.nodes() == []
        may_end.set()
        wait_for(lambda: election.leadership is None, SOON)
        election.run(lead)
        assert len(terms) == 2

    @pytest.mark.hazard("H19")
    def test_what_is_stuck_keeps_what_it_holds(self, mine: Place) -> None:
        may_end = threading.Event()

        def lead(leadership: Any) -> Steps:
            yield may_end

        election = mine.LeaderElection(identity="a", grace=0.3)
        running = run(election.run, mine.front.script(lead, stubborn=True))
        wait_for(lambda: election.is_leader, SOON)
        b = joined(mine, "b")
        election.stop()
        with pytest.raises(zklock.LeaderStuck):
            running.result(SOON)
        assert election.is_leader
        assert not b.terms
        may_end.set()
        b.leads()
        b.stop()

    def test_a_pause_is_none_of_the_grace(self, zklock_hosts: str, zklock_path: str) -> None:
        with Child("elect", hosts=zklock_hosts, path=zklock_path, grace=6.0, last=1.0) as child:
            assert child.hears()["leads"]
            child.tell("resign")
            assert child.hears() == "told"
            freeze(child.process.pid)
            threading.Event().wait(7.0)  # longer than the grace
            os.kill(child.process.pid, signal.SIGCONT)
            assert child.hears() == "ended"
            assert child.hears()["leads"]


class TestInterrupts:
    @pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.3])
    def test_leave_no_member_behind_h9(
        self, others: Place, zklock_hosts: str, delay: float
    ) -> None:
        with Child("interrupted", hosts=zklock_hosts, path=others.path) as child:
            assert child.hears() == "ready"
            for _ in range(5):
                child.tell(str(delay))
                assert child.hears() == "KeyboardInterrupt"
                others.gone()

    def test_sigterm_hands_over_at_once(self, others: Place, zklock_hosts: str) -> None:
        times = []
        for _ in range(3):
            with Child("elect", hosts=zklock_hosts, path=others.path) as child:
                early = zklock.FencingToken.parse(child.hears()["leads"])
                b = joined(others, "b")
                asked = boottime()
                os.kill(child.process.pid, signal.SIGTERM)
                assert b.leads().token > early
                times.append(b.times[0] - asked)
                for word in ("told", "ended", "stopped"):
                    assert child.hears() == word
                assert child.process.wait(SOON) == 0
                b.stop()
        print(f"handed over in {', '.join(f'{1000 * each:.1f} ms' for each in times)}")
        assert min(times) < 9.0  # before its session of 10 s could have ended


def next_change(changes: zklock.LeaderChanges) -> zklock.LeaderChange:
    change = changes.next(SOON)
    assert change is not None
    return change


def name_of(change: zklock.LeaderChange) -> tuple[str | None, bool]:
    return (None if change.leader is None else change.leader.identity, change.gap)


class TestObserving:
    def test_every_change_is_told(self, mine: Place, theirs: Place) -> None:
        with theirs.LeaderElection().changes() as changes:
            assert name_of(next_change(changes)) == (None, False)
            with crew(mine, "a", "b", "c", payload="here") as (a, b, c):
                change = next_change(changes)
                assert name_of(change) == ("a", False)
                assert change.token == a.leads().token
                assert change.leader is not None
                assert change.leader.payload == b"here"
                a.election.resign()
                assert name_of(next_change(changes)) == ("b", False)
                a.election.stop()
                a.done.result(SOON)
                b.leads()
                b.election.transfer("c", SOON)
                change = next_change(changes)
                assert name_of(change) == ("c", False)
                assert change.token == c.leads().token
                mine.queued(2)
                b.stop()
                mine.queued(1)
                c.stop()
                assert name_of(next_change(changes)) == (None, True)  # b might have led
            assert changes.next(timeout=0) is None

    def test_the_present_leader_comes_first(self, mine: Place, theirs: Place) -> None:
        with crew(mine, "a", "b") as (a, _):
            a.leads()
            changes = theirs.LeaderElection().changes(timeout=0.3)
            assert name_of(next_change(changes)) == ("a", False)
            assert list(changes) == []

    def test_an_observer_leaves_nothing_and_wakes_nobody(
        self, behind: Behind, theirs: Place
    ) -> None:
        with crew(theirs, "a") as (a,), behind().LeaderElection().changes() as changes:
            a.leads()
            assert name_of(next_change(changes)) == ("a", False)
            seen = len(behind.proxy.frames)
            for number in range(10):  # members come and go behind the leader
                member = joined(theirs, f"m{number}")
                member.stop()
                theirs.queued(1)
            busy = behind.proxy.frames[seen:]
            assert not [frame for frame in busy if frame.path == theirs.path]
            assert not [frame for frame in busy if frame.kind is FrameKind.EVENT]
            assert theirs.nodes() == [a.terms[0].path.rpartition("/")[2]]

    def test_a_slow_observer_gets_the_present_leader(
        self, ours: Place, others: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("zklock._election.base.TERM_PAUSE", 0.001)
        monkeypatch.setattr(Feed.__init__, "__defaults__", (3,))
        tokens: list[zklock.FencingToken] = []
        quick: list[zklock.LeaderChange] = []
        heard: list[zklock.LeaderChange] = []
        watching = others.LeaderElection()
        with (
            crew(ours, "a", "b") as (a, b),
            watching.observe(quick.append),
            watching.changes() as changes,
        ):
            tokens.append(a.leads().token)
            for count in range(1, 6):
                for now, later, terms in ((a, b, count), (b, a, count + 1)):
                    ours.queued(2)
                    now.election.resign()
                    tokens.append(later.leads(terms).token)
            wait_for(lambda: quick[-1:] and quick[-1].token == tokens[-1], SOON)
            while not heard or heard[-1].token != tokens[-1]:
                heard.append(next_change(changes))
        told = [each.token for each in heard if each.token in tokens]
        assert told == sorted(set(told) & set(tokens))
        assert len(told) < len(tokens)
        assert any(each.gap for each in heard)

    def test_changes_while_disconnected(self, behind: Behind, theirs: Place) -> None:
        watching = behind(timeout=20.0).LeaderElection()
        with crew(theirs, "a", "b", "c") as (a, b, c):
            a.leads()
            with watching.changes() as changes:
                assert name_of(next_change(changes)) == ("a", False)
                behind.proxy.cut()
                a.election.resign()
                b.leads()
                b.election.resign()
                c.leads()
                behind.proxy.restore()
                assert name_of(next_change(changes)) == ("c", True)

    def test_after_a_lost_session(self, mine: Place, theirs: Place) -> None:
        with crew(theirs, "a", "b") as (a, b):
            a.leads()
            with mine.LeaderElection().changes() as changes:
                assert name_of(next_change(changes)) == ("a", False)
                expire_session(mine.client)
                a.election.resign()
                b.leads()
                assert name_of(next_change(changes)) == ("b", False)

    def test_callbacks_come_in_order_and_may_fail(
        self, mine: Place, theirs: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        heard: list[zklock.LeaderChange] = []
        later: list[zklock.LeaderChange] = []

        def hear(change: zklock.LeaderChange) -> None:
            heard.append(change)
            raise RuntimeError("an observer that fails")

        def hear_later(change: zklock.LeaderChange) -> Steps:
            yield 0.01
            later.append(change)
            raise Outcome("another one")

        def told(token: zklock.FencingToken | None) -> None:
            wait_for(lambda: [it[-1].token for it in (heard, later) if it] == [token] * 2, SOON)

        election = theirs.LeaderElection()
        observers = [election.observe(it) for it in (hear, mine.front.script(hear_later))]
        gc.collect()  # who observes need not keep them
        for name in "ab":
            with mine.LeaderElection(identity=name).acquire() as leadership:
                told(leadership.token)
            told(None)
        for said in ("an observer that fails", "another one"):
            wait_for(partial(caplog.text.__contains__, said), SOON)
        for each in observers:
            each.close()
        count = len(heard) + len(later)
        with mine.LeaderElection().acquire():
            pass
        assert len(heard) + len(later) == count

    def test_a_client_that_is_stopped(self, mine: Place) -> None:
        with mine.LeaderElection().changes() as changes:
            assert name_of(next_change(changes)) == (None, False)
            mine.client.stop()
            with pytest.raises(zklock.ClientClosed):
                changes.next(SOON)

    def test_what_is_closed_or_forgotten_is_over(self, ours: Place) -> None:
        election = ours.LeaderElection()
        forgotten = election.changes()
        next_change(forgotten)
        attempt = forgotten._attempt
        del forgotten
        wait_for(lambda: attempt.done, SOON)
        closed = election.changes()
        closed.close()
        assert closed.next(timeout=0) is None

    @LASTING
    def test_five_hundred(self, zklock_connect: Connect, others: Place) -> None:
        clients = [zklock_connect() for _ in range(5)]
        heard: list[list[tuple[str | None, bool]]] = []

        def note(kept: list[tuple[str | None, bool]]) -> Callable[[zklock.LeaderChange], object]:
            return lambda change: kept.append(name_of(change))

        with crew(others, "a", "b", "c") as members, ExitStack() as stack:
            members[0].leads()
            for client in clients:
                election = zklock.LeaderElection(client, others.path)
                for _ in range(100):
                    kept: list[tuple[str | None, bool]] = []
                    heard.append(kept)
                    stack.enter_context(election.observe(note(kept)))
            expected: list[tuple[str | None, bool]] = [("a", False)]
            for leader, following in (("a", "b"), ("b", "c"), ("c", "a")):
                wait_for(lambda: all(len(kept) == len(expected) for kept in heard), SOON)
                now = next(one for one in members if one.election.identity == leader)
                others.queued(3)
                now.election.resign()
                expected.append((following, False))
            wait_for(lambda: all(kept == expected for kept in heard), SOON)
        assert len(heard) == 500


def test_nothing_is_left_of_a_path_that_cannot_be(others: Place) -> None:
    others.client.create(others.path, ephemeral=True)
    election = others.LeaderElection("/below")
    with pytest.raises(zklock.ZkLockError, match="ephemeral"):
        election.run(lambda leadership: pytest.fail("led"))
    with pytest.raises(NoNodeError):
        others.client.get(f"{others.path}/below")
