"""Events and hooks: what a session tells, and that no hook can harm anything but itself."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import pytest

import zklock
from tests.at_once import at_once
from tests.fakes import interrupted_starter, no_thread
from tests.unit.sessions import PATH, TIMEOUT, World
from zklock import LossReason, telemetry
from zklock._core.attempt import Attempt
from zklock._core.grant import GrantOptions
from zklock._recipes import semaphore
from zklock._recipes.names import Kind
from zklock._telemetry import subscriptions as hub
from zklock._telemetry.subscriptions import Over, emit
from zklock.fencing import MemoryGuard
from zklock.telemetry import (
    Connected,
    Disconnected,
    Event,
    Granted,
    HeartbeatAnswered,
    HeartbeatLate,
    HeartbeatSent,
    Lost,
    Proof,
    Released,
    SessionEnded,
    SessionEvent,
    StaleTokenRefused,
    Subscription,
    Suspended,
)
from zklock.testing import wait_for

SOON = 10.0
E = TypeVar("E", bound=Event)
Subscribe = Callable[..., Subscription]


@pytest.fixture
def subscribe() -> Iterator[Subscribe]:
    with ExitStack() as stack:

        def subscribed(hook: Any, **options: Any) -> Subscription:
            subscription = telemetry.subscribe(hook, **options)
            stack.callback(subscription.close)
            return subscription

        yield subscribed


class Heard:
    """Keeps the events that it is told."""

    def __init__(self, subscribe: Subscribe) -> None:
        self._events: list[Event] = []
        self.subscription = subscribe(self._events.append)

    def all(self, *kinds: type[E]) -> list[E]:
        """Return the events of these kinds so far."""
        assert self.subscription.flush(SOON)
        return [event for event in self._events if isinstance(event, kinds)]

    def one(self, kind: type[E]) -> E:
        (event,) = self.all(kind)
        return event


@pytest.fixture
def heard(subscribe: Subscribe) -> Heard:
    return Heard(subscribe)


@pytest.fixture
def world(heard: Heard) -> World:
    made = World()
    made.connect()
    return made


def event(at: float = 0.0) -> Event:
    return Event(at=at)


def emit_often(times: int) -> None:
    for _ in range(times):
        emit(event())


def tellers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "zklock-telemetry"]


async def awaited(it: Event) -> None:
    """Nobody runs this."""


class TestSubscription:
    def test_what_was_dropped_is_logged_once_in_a_while(
        self, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
    ) -> None:
        go = threading.Event()
        subscription = subscribe(lambda it: go.wait(SOON), most=1)
        for _ in range(100):
            emit(event())
        dropped = subscription.dropped
        assert dropped >= 98  # one is with the hook, and one waits
        go.set()
        assert subscription.flush(SOON)
        for _ in range(100):
            emit(event())
        subscription.flush(SOON)
        (message,) = [each.getMessage() for each in caplog.records]
        assert f"{dropped} telemetry events dropped" in message

    def test_its_thread_does_not_see_the_variables_of_who_subscribes(
        self, subscribe: Subscribe
    ) -> None:
        seen: list[str | None] = []
        variable = ContextVar[str | None]("variable", default=None)
        variable.set("of who subscribes")
        subscription = subscribe(lambda it: seen.append(variable.get()))
        emit(event())
        assert subscription.flush(SOON)
        assert seen == [None]

    def test_events_of_many_threads_are_all_told_or_counted(self, subscribe: Subscribe) -> None:
        go = threading.Event()
        told: list[Event] = []

        def hook(it: Event) -> None:
            go.wait(SOON)
            told.append(it)

        subscription = subscribe(hook, most=1)
        at_once(*[partial(emit_often, 2000)] * 4)
        go.set()
        assert subscription.flush(SOON)
        assert subscription.dropped + len(told) == 8000

    def test_events_are_told_while_others_subscribe(self, subscribe: Subscribe) -> None:
        told: list[Event] = []
        subscription = subscribe(told.append)

        def come_and_go() -> None:
            for _ in range(200):
                for each in [telemetry.subscribe(lambda it: None) for _ in range(3)]:
                    each.close()

        at_once(come_and_go, partial(emit_often, 3000), partial(emit_often, 3000))
        assert subscription.flush(SOON)
        assert len(told) + subscription.dropped == 6000

    @pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
    def test_one_that_raises_is_told_on_and_logged_once_in_a_while(
        self, subscribe: Subscribe, caplog: pytest.LogCaptureFixture, error: type[BaseException]
    ) -> None:
        told: list[Event] = []

        def hook(it: Event) -> None:
            told.append(it)
            raise error

        subscription = subscribe(hook)
        for at in range(3):
            emit(event(at))
        assert subscription.flush(SOON)
        assert [it.at for it in told] == [0, 1, 2]
        (record,) = caplog.records
        assert record.getMessage() == "a telemetry hook raised"
        assert record.levelno == logging.ERROR

    @pytest.mark.parametrize("at", ["the start of its thread", "its entry"])
    def test_an_interrupted_subscribe_leaves_no_thread(
        self, at: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Struck(dict[Subscription, None]):
            """Hooks, and an interrupt as one is added."""

            def __setitem__(self, key: Subscription, value: None) -> None:
                raise KeyboardInterrupt

        before = set(tellers())
        with monkeypatch.context() as patch:
            if at == "its entry":
                patch.setattr(hub, "hooks", Struck())
            else:
                patch.setattr(threading.Thread, "start", interrupted_starter())
            with pytest.raises(KeyboardInterrupt):
                telemetry.subscribe(print)
        wait_for(lambda: set(tellers()) <= before, SOON)

    def test_without_a_subscription_there_is_no_thread_and_no_hook(self) -> None:
        assert not hub.hooks
        wait_for(lambda: not tellers(), SOON)
        World().connect()
        assert not tellers()

    def test_one_end_of_a_grant_is_told_and_nothing_after_it(
        self, heard: Heard, subscribe: Subscribe
    ) -> None:
        other = Heard(subscribe)
        grant: Any = {
            "path": "/lock",
            "kind": "exclusive",
            "identity": "me",
            "token": zklock.FencingToken(1, 0),
            "node": "/lock/0000000000",
            "session_id": 1,
        }
        over: Over = {}
        emit(Suspended(at=0.0, remaining=1.0, **grant), over)
        for at in (1.0, 2.0, 3.0):
            emit(Released(at=at, lasted=None, **grant), over)
        emit(Suspended(at=4.0, remaining=1.0, **grant), over)
        assert [it.at for it in heard.all(Event)] == [0.0, 1.0]
        assert [it.at for it in other.all(Event)] == [0.0, 1.0]

    def test_an_event_is_not_kept(self, heard: Heard) -> None:
        class Weak(Event):
            """One that can be referred to weakly."""

        told = Weak(at=1.0)
        forgotten = weakref.ref(told)
        emit(told)
        assert heard.subscription.flush(SOON)
        heard._events.clear()
        del told
        wait_for(lambda: forgotten() is None, SOON)

    @pytest.mark.parametrize(
        ("hook", "options", "wrong"),
        [
            (None, {}, "a telemetry hook"),
            ("print", {}, "a telemetry hook"),
            (awaited, {}, "coroutine function"),
            *((print, {"most": most}, "most") for most in (0, -1, 1.5, True)),
        ],
    )
    def test_what_is_wrong_is_told_at_once(self, hook: Any, options: Any, wrong: str) -> None:
        with pytest.raises((TypeError, ValueError), match=wrong):
            telemetry.subscribe(hook, **options)

    def test_without_a_thread_nothing_is_subscribed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(zklock.ZkLockError, match="its thread cannot be started"):
            telemetry.subscribe(print)
        assert not hub.hooks

    def test_a_fork_goes_on_with_a_thread_of_its_own(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = sorted(json.loads(line) for line in done.stdout.splitlines())
        assert lines == [["child", [2.0, 3.0]], ["parent", [1.0, 4.0]]]


FORKS = """
import json, os, threading
from zklock import telemetry
from zklock._telemetry.subscriptions import emit

told = []
go, entered = threading.Event(), threading.Event()

def hook(it):
    entered.set()
    go.wait(10)
    told.append(it.at)

subscription = telemetry.subscribe(hook)
emit(telemetry.Event(at=1.0))
entered.wait(10)  # the fork comes while the parent's thread is in the hook
child = os.fork()
go.set()
for at in (2.0, 3.0) if child == 0 else (4.0,):
    emit(telemetry.Event(at=at))
assert subscription.flush(10)
line = json.dumps(["parent" if child else "child", told]) + "\\n"
os.write(1, line.encode())  # at once: both write into one pipe
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("kind", [getattr(telemetry, name) for name in telemetry.__all__])
def test_events_are_frozen(kind: Any) -> None:
    if isinstance(kind, type) and issubclass(kind, Event):
        assert dataclasses.is_dataclass(kind)
        fields = {field.name: 1.0 for field in dataclasses.fields(kind)}
        made: Any = kind(**fields)
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.at = 2.0
        assert made == kind(**fields)
        assert kind.__doc__


def permit(world: World, limit: int | None = None) -> Attempt[Any]:
    """Ask for a permit of a semaphore."""
    path = semaphore.locks(PATH)
    entry = semaphore.PermitEntry(path, b"me", Kind.EXCLUSIVE, root=PATH, limit=limit, permits=1)
    return world._stand(entry, GrantOptions(PATH, "me", zklock.Grant))


class TestGrants:
    def test_waited_and_the_gap_after_the_one_before(self, world: World, heard: Heard) -> None:
        first = world.acquire()
        second = world.ask_for()
        world.run(5.0)
        world.latency = 0.25
        first.abandon()
        world.run(2.0)
        assert second.done
        granted = heard.all(Granted)[1]
        assert granted.waited == pytest.approx(5.25, abs=0.3)
        assert granted.gap is not None
        assert 0.0 <= granted.gap < 1.0

    def test_the_margins_of_a_proof_are_never_negative(self, world: World, heard: Heard) -> None:
        grant = world.acquire()
        for left in (0.5, -1.0):
            world.now = world.session.lease_end - left
            world.session.confirmed(grant, 0.0, True)
        world.shell.step(world.session.closing)
        world.session.confirmed(grant, 0.0, True)
        assert world.client.client_id is not None
        session_id, _ = world.client.client_id
        first, *_, short, over, closed = heard.all(Proof)
        assert (first.session_id, first.margin) == (session_id, 0.0)
        assert (short.margin, short.lease) == (0.5, 0.5)
        assert (over.margin, over.lease) == (0.0, 0.0)
        assert closed.session_id == 0

    def test_no_gap_is_known_after_a_lost_connection(self, world: World, heard: Heard) -> None:
        first, second = world.acquire(), world.ask_for()
        third = world.ask_for()
        world.run(1.0)
        second.cancel()  # the third one hears of this
        world.run(4.0)
        assert third.heard is None
        world.disconnect()
        world.server.delete(first.path)
        world.connect()
        world.run(1.0)
        assert third.done
        assert heard.all(Granted)[1].gap is None

    def test_a_semaphores_contender_knows_no_gap(self, world: World, heard: Heard) -> None:
        first = permit(world, limit=1)
        world.run(1.0)
        second, third, fourth = (permit(world) for _ in range(3))
        world.run(1.0)
        first.result().abandon()
        world.run(1.0)
        second_grant = second.result()
        world.server.write(PATH, b"2")
        world.deliver()
        world.run(1.0)
        world.server.delete(second_grant.path)
        world.deliver()
        world.run(1.0)
        assert third.done
        assert fourth.done
        assert [granted.waited for granted in heard.all(Granted)] == [0.0, 1.0, 2.0, 3.0]
        assert [granted.gap for granted in heard.all(Granted)] == [None] * 4

    def test_lost_is_told_once_though_a_signal_handler_saw_it_first(
        self, world: World, heard: Heard
    ) -> None:
        grant = world.acquire()
        world.latency = float("inf")
        world.now += TIMEOUT
        assert not world.shell.step(lambda: grant.held)
        world.run(TIMEOUT)
        assert heard.one(Lost).token == grant.token

    def test_a_grant_from_before_the_subscription(self, subscribe: Subscribe) -> None:
        world = World()
        world.connect()
        grant = world.acquire()
        heard = Heard(subscribe)
        grant.abandon()
        assert heard.one(Released).lasted is None

    def test_suspended(self, world: World, heard: Heard) -> None:
        grant = world.acquire()
        world.disconnect()
        suspended = heard.one(Suspended)
        assert suspended.token == grant.token
        assert suspended.remaining == grant.remaining() > 0
        gone = heard.one(Disconnected)
        assert (gone.session_id, gone.grants) == (grant.session_id, 1)


class Counted(dict[Subscription, None]):
    """No hooks; it counts the looks for one."""

    looks = 0

    def __bool__(self) -> bool:
        self.looks += 1
        return False


def test_without_a_hook_a_lock_looks_and_makes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an event was made")

    hooks = Counted()
    world = World()
    world.connect()
    monkeypatch.setattr(hub, "hooks", hooks)
    monkeypatch.setattr(hub, "emit", refuse)
    world.acquire().abandon()
    world.run()
    assert 0 < hooks.looks <= 15
    world.acquire("/second")
    world.disconnect()
    world.stop()


class TestSessions:
    @pytest.mark.parametrize("ended", [False, True])
    def test_heartbeats_name_the_session_and_none_that_has_ended(
        self, world: World, heard: Heard, ended: bool
    ) -> None:
        assert world.client.client_id is not None
        session_id, _ = world.client.client_id
        world.acquire()
        if ended:
            world.shell.step(world.session.closing)
        before = len(heard.all(Event))
        for world.latency in (0.1, math.inf):
            world.run(4.0)
        events = [each for each in heard.all(Event)[before:] if isinstance(each, SessionEvent)]
        kinds = {HeartbeatSent, HeartbeatAnswered, HeartbeatLate}
        assert {type(each) for each in events} & kinds == (set() if ended else kinds)
        assert {each.session_id for each in events} == (set() if ended else {session_id})

    def test_connected_and_ended(self, world: World, heard: Heard) -> None:
        connected = heard.one(Connected)
        assert connected.timeout == TIMEOUT
        world.stop()
        ended = heard.one(SessionEnded)
        assert ended.session_id == connected.session_id
        assert ended.reason is LossReason.CLIENT_CLOSED

    def test_heartbeats_and_proofs(self, world: World, heard: Heard) -> None:
        world.acquire()
        world.latency = 0.5
        world.run(3 * TIMEOUT)
        sent, answered = heard.all(HeartbeatSent), heard.all(HeartbeatAnswered)
        assert len(sent) - len(answered) in {0, 1}
        assert {round(it.took, 6) for it in answered[2:]} == {0.5}
        proof = heard.all(Proof)[-1]
        assert proof.held
        assert proof.age == pytest.approx(0.5)
        assert proof.timeout == TIMEOUT
        assert proof.lease == pytest.approx(2 / 3 * TIMEOUT - 0.5)
        assert proof.margin == pytest.approx(2 / 3 * TIMEOUT - 0.5 - TIMEOUT / 10)

    def test_an_idle_session_proves_nothing_held(self, world: World, heard: Heard) -> None:
        world.acquire().abandon()
        world.run()
        before = len(heard.all(Proof))
        world.acquire("/other").abandon()
        world.run(3 * TIMEOUT)
        proofs = heard.all(Proof)[before:]
        assert proofs
        assert not proofs[-1].held


def test_a_stale_token_that_is_refused(heard: Heard) -> None:
    guard = MemoryGuard("store")
    guard.create()
    old, new = zklock.FencingToken(1, 1), zklock.FencingToken(1, 2)
    guard.claim(new)
    with pytest.raises(zklock.StaleToken):
        guard.claim(old)
    refused = heard.one(StaleTokenRefused)
    assert (refused.resource, refused.token, refused.highest) == ("store", old, new)
