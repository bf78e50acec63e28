"""What a slot does at each event in each state, and the slots of a worker under any events."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from tests.modes import examples
from zklock._pool import slot
from zklock._pool.runners import CannotRun, Task
from zklock._pool.slot import Callbacks, ShardLock, Slot, Slots
from zklock._pool.slot_states import TABLE, WORKED_ON, SlotEvent, SlotState
from zklock._pool.worker import Worker
from zklock.errors import LockLost, StaleToken
from zklock.token import FencingToken

SHARD = 7


class Outcome:
    """An outcome that the test settles; the first one counts."""

    def __init__(self) -> None:
        self._settled: tuple[Any, Exception | None] | None = None
        self._calls: list[Callable[[], object]] = []

    @property
    def done(self) -> bool:
        return self._settled is not None

    def when_done(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        if self.done:
            self._tell()

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        self._settled = self._settled or (value, error)
        self._tell()

    def result(self) -> Any:
        assert self._settled is not None
        value, error = self._settled
        if error is not None:
            raise error
        return value

    def _tell(self) -> None:
        while self._calls:
            self._calls.pop(0)()


class Grant:
    """A grant that is held until it is lost or ended."""

    lock_path = "/pool/shards/0"
    token = FencingToken(7, 33)
    session_id = 0x1000A
    identity = "host-7"

    def __init__(self, world: World) -> None:
        self._world = world
        self._loss: object = None
        self.ended = 0
        self.answer: Outcome = Outcome()

    @property
    def held(self) -> bool:
        return self._loss is None and not self.ended

    def _end(self) -> Outcome:
        self._world.did("release")
        works = [call for call in self._world.calls if call.grant is self]
        assert not works, "work still runs"
        if self._loss is not None:
            raise LockLost("lost")
        if self._world.releases_fail:
            raise MemoryError
        assert not self.ended, "released twice"
        self.ended += 1
        return self.answer


class Attempt(Outcome):
    """An attempt; the test says how it ends, unless it is given up."""

    def __init__(self, world: World, slot: Slot) -> None:
        super().__init__()
        self._world = world
        self.slot = slot
        self.given_up = False

    def cancel(self) -> None:
        self.given_up = True
        self._world.did("give up")


@dataclass(eq=False)
class Call:
    """A callback or a handler that runs."""

    name: str
    grant: Grant
    future: Future[Any] = field(default_factory=Future)


class World:
    """The slots of a worker, and all that they use."""

    def __init__(self) -> None:
        self.acts: list[str] = []
        self.jobs: list[Callable[[], object]] = []
        self.timed: list[Callable[[], object]] = []
        self.attempts: list[Attempt] = []
        self.calls: list[Call] = []
        self.begins_fail = False
        self.releases_fail = False
        self.is_usable = True
        self.stopping = False
        self.asked: list[Callable[[], object]] = []
        self.task_queue = self.pool = self
        self.says_owned = SimpleNamespace(soon=lambda: None)
        callbacks = Callbacks(lambda *_: "on_assigned", lambda *_: "on_revoked", True, (0.5, 30.0))
        self.slots = Slots(cast(Worker, self), "/pool", "w1", callbacks)
        self.slots.runner = cast(Any, self)
        self.slots.caller = cast(Any, SimpleNamespace(submit=self.call_back))

    def did(self, what: str) -> None:
        self.acts.append(what)

    def is_unfit(self) -> None:
        """It is told in the middle of any events."""

    def usable(self) -> bool:
        return self.is_usable

    def once_answered(self, call: Callable[[], object]) -> None:
        self.asked.append(call)

    def call_back(self, callback: Any, *what: Any) -> Future[Any]:
        return self.call(callback(*what), what[1])

    def _lock_of(self, slot: Slot) -> ShardLock:
        return cast(ShardLock, SimpleNamespace(_begin=partial(self.begins, slot)))

    def begins(self, slot: Slot, told: Callable[[Any], object]) -> Attempt:
        self.did("queue")
        attempt = Attempt(self, slot)
        attempt.when_done(lambda: told(attempt))
        if self.begins_fail:
            error = RuntimeError("no thread")
            attempt.settle(error=error)
            raise error
        self.attempts.append(attempt)
        return attempt

    def later(self, job: Callable[[], object]) -> None:
        self.jobs.append(job)

    def now(self) -> float:
        return 0.0

    def at(self, due: float, job: Callable[[], object]) -> None:
        self.did("pause")
        self.timed.append(job)

    def submit(self, number: int, grant: Any) -> Task:
        future = self.call("handle", grant)
        told = {act: partial(self.did, act) for act in ("tell", "lose", "call_off")}
        return cast(Task, SimpleNamespace(future=future, **told))

    def call(self, name: str, grant: Grant) -> Future[Any]:
        self.did(name)
        self.calls.append(Call(name, grant))
        return self.calls[-1].future

    def run(self) -> None:
        """Run the jobs of the pool's thread."""
        while self.jobs:
            self.jobs.pop(0)()

    def returns(self, name: str, error: Exception | None = None) -> None:
        """Have a callback or a handler return, or raise."""
        self.end(next(call for call in self.calls if call.name == name), error)
        self.run()

    def end(self, call: Call, error: Exception | None = None) -> None:
        self.calls.remove(call)
        if error is None:
            call.future.set_result(None)
        else:
            call.future.set_exception(error)

    def time_passes(self) -> None:
        due, self.timed = self.timed, []
        for job in due:
            job()
        self.run()

    def want(self, *numbers: int) -> None:
        self.slots.want(frozenset(numbers))
        self.run()


class OneSlot(World):
    """A worker with one slot, which is brought to a state, and then to an event."""

    def __init__(self) -> None:
        super().__init__()
        self.grant = Grant(self)
        self.slot = Slot(SHARD, self.slots)

    def begin(self) -> None:
        self.want(SHARD)
        self.slot = self.slots._slots[SHARD]

    def answer(self, value: Any = None, error: Exception | None = None) -> None:
        self.attempts[-1].settle(value, error)
        self.run()

    def reach(self, state: SlotState, event: SlotEvent) -> None:
        """Go to the state; so that the event can come, if its way there matters."""
        if state is SlotState.NEW:
            return
        self.begin()
        if state is SlotState.WITHDRAWING:
            self.want()
        elif state is SlotState.RETRYING or (state, event) == (SlotState.GONE, SlotEvent.DUE):
            self.answer(error=RuntimeError("not now"))
            if state is SlotState.GONE:
                self.want()
        elif state is not SlotState.CONTENDING:
            self.answer(self.grant)
            self.returns("on_assigned")
            if event is SlotEvent.WORK_DUE:
                self.returns("handle", RuntimeError("failed"))
            if state is not SlotState.OWNED:
                self.want()
            if state in {SlotState.RELEASING, SlotState.GONE}:
                self.all_return()
            if state is SlotState.GONE:
                self.grant.answer.settle()
                self.run()

    def all_return(self) -> None:
        """Have all that runs return, the latest first."""
        while self.calls:
            self.returns(self.calls[-1].name)

    def bring(self, event: SlotEvent) -> None:
        match event:
            case SlotEvent.WANTED:
                self.begin()
            case SlotEvent.UNWANTED:
                self.want()
            case SlotEvent.GRANTED:
                self.answer(self.grant)
            case SlotEvent.USELESS:
                self.slots.taking = False
                self.answer(self.grant)
            case SlotEvent.WITHDRAWN:
                self.answer()
            case SlotEvent.FAILED | SlotEvent.HOPELESS:
                self.is_usable = event is SlotEvent.FAILED
                self.answer(error=RuntimeError("not now"))
            case SlotEvent.DUE | SlotEvent.WORK_DUE:
                self.time_passes()
            case SlotEvent.LOST | SlotEvent.LATE:
                grant = self.grant if event is SlotEvent.LOST else Grant(self)
                grant._loss = "session"
                self.slot.lost(cast(Any, grant))
                self.run()
            case SlotEvent.WORK_OVER:
                self.all_return()
            case SlotEvent.RELEASED:
                self.grant.answer.settle()
                self.run()


S, E = SlotState, SlotEvent
ACTS = {
    (S.NEW, E.WANTED): "queue",
    (S.CONTENDING, E.UNWANTED): "give up",
    (S.CONTENDING, E.GRANTED): "on_assigned",
    (S.CONTENDING, E.USELESS): "release",
    (S.CONTENDING, E.FAILED): "pause",
    (S.WITHDRAWING, E.GRANTED): "release",
    (S.WITHDRAWING, E.USELESS): "release",
    (S.RETRYING, E.DUE): "queue",
    (S.OWNED, E.UNWANTED): "call_off, tell, on_revoked",
    (S.OWNED, E.LOST): "lose, tell, on_revoked",
    (S.OWNED, E.WORK_DUE): "handle",
    (S.ENDING, E.UNWANTED): "call_off",
    (S.ENDING, E.LOST): "lose",
    (S.ENDING, E.WORK_OVER): "release",
}
"""What is done at the events that are allowed. In all other states and events, nothing is."""


@pytest.mark.parametrize(("state", "event"), TABLE)
def test_every_event_that_is_allowed(
    state: SlotState, event: SlotEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought: list[SlotEvent] = []
    happens = Slot._apply

    def noted(slot: Slot, event: SlotEvent, grant: Any = None) -> None:
        brought.append(event)
        happens(slot, event, grant)

    monkeypatch.setattr(Slot, "_apply", noted)
    world = OneSlot()
    world.reach(state, event)
    assert world.slot.state is state
    world.acts.clear()
    brought.clear()
    world.bring(event)
    assert event in brought
    slot, then = world.slot, TABLE[state, event]
    assert slot.state is then
    assert ", ".join(world.acts) == ACTS.get((state, event), "")
    assert (SHARD in world.slots.owned) == (then in WORKED_ON and event is not E.LOST)
    assert (slot in world.slots._slots.values()) == (then is not S.GONE)


# What follows from several events.


def owned() -> OneSlot:
    world = OneSlot()
    world.reach(SlotState.OWNED, SlotEvent.WANTED)
    world.acts.clear()
    return world


STALE = StaleToken("stale", resource="report", token=Grant.token, highest=None)


def test_a_refusal_before_the_loss_is_heard_of_is_told_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = owned()
    for _ in range(3):
        world.returns("handle", STALE)
        assert world.timed, "it is tried again later"
        world.time_passes()
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert caplog.records[0].exc_info is None


@pytest.mark.parametrize(
    "error",
    [
        LockLost("lost"),
        ExceptionGroup("in tasks", [LockLost("lost"), LockLost("lost")]),
        ExceptionGroup("in tasks", [LockLost("lost"), STALE]),
        STALE,
    ],
)
def test_a_shard_that_is_lost_is_queued_for_again(error: Exception) -> None:
    world = owned()
    world.bring(SlotEvent.LOST)
    assert world.slots.worked_on() == [SHARD]
    world.returns("on_revoked")
    assert "queue" not in world.acts, "its handler still runs"
    world.returns("handle", error)
    assert world.acts == ["lose", "tell", "on_revoked", "release", "queue"]
    assert world.slots._slots[SHARD].state is SlotState.CONTENDING
    assert not world.timed, "that its shard is lost is no failure"


def test_a_grant_that_is_lost_before_it_is_heard_of_is_queued_for_again() -> None:
    world = OneSlot()
    world.begin()
    world.grant._loss = "session"
    world.slot.lost(cast(Any, world.grant))
    world.answer(world.grant)
    assert world.acts == ["queue", "release", "queue"]
    assert world.slots.owned == {}


def test_so_many_are_queued_for_before_there_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of requests at once would hold up the heartbeats."""
    monkeypatch.setattr(slot, "AT_ONCE", 3)
    world = World()
    world.want(*range(8))
    assert len(world.attempts) == 3
    assert len(world.asked) == 1
    for attempt in world.attempts[:3]:
        attempt.settle(Grant(world))
        world.run()
    assert len(world.attempts) == 3, "who has them is of no account"
    world.asked.pop()()
    world.run()
    assert len(world.attempts) == 6
    world.want(*range(3), 7)
    assert len(world.attempts) == 6
    world.asked.pop()()
    world.run()
    assert sorted(world.slots._slots) == [0, 1, 2, 3, 4, 5, 7]
    assert not world.asked, "there is room for others"


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("state", [S.WITHDRAWING, S.ENDING, S.RELEASING])
def test_a_shard_that_is_wanted_again_is_queued_for_when_the_slot_is_gone(
    state: SlotState, again: bool
) -> None:
    world = OneSlot()
    world.reach(state, SlotEvent.RELEASED)
    if again:
        world.want(SHARD)
    else:
        world.slots.take(False)
        world.slots.want(frozenset({SHARD}))
    assert world.acts.count("queue") == 1
    if state is S.WITHDRAWING:
        world.answer()
    if state is S.ENDING:
        world.bring(SlotEvent.WORK_OVER)
    if state is not S.WITHDRAWING:
        world.bring(SlotEvent.RELEASED)
    assert world.slot.state is S.GONE
    assert world.acts.count("queue") == 1 + again
    assert world.slots.empty is not again


def test_a_release_that_cannot_be_begun_holds_up_nobody() -> None:
    world = owned()
    world.releases_fail = True
    world.bring(SlotEvent.UNWANTED)
    world.bring(SlotEvent.WORK_OVER)
    assert world.slot.state is S.GONE
    assert SHARD not in world.slots.owned


def test_a_drained_worker_keeps_what_it_owns_until_another_is_to_have_it() -> None:
    world = owned()
    world.want(SHARD, 8)
    world.slots.take(False)
    states = [slot.state for slot in world.slots._slots.values()]
    assert states == [S.OWNED, S.WITHDRAWING]
    world.want()
    assert world.slot.state is S.ENDING


# Any events in any order.

NUMBERS = (1, 2, 3)
some = st.integers(0, 7)
mostly = st.sampled_from([True, True, True, False])


class AnyEvents(RuleBasedStateMachine):
    """A worker whose leader, locks, callbacks and handlers do what they like, at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.grants: list[tuple[Slot, Grant]] = []
        self.made: list[Slot] = []
        self.history: dict[Grant, list[str]] = {}
        self.wrong: list[Any] = []  # an error in a callback would be caught
        self.lock, self.call = self.world._lock_of, self.world.call
        self.world._lock_of = self.lock_made  # type: ignore[method-assign]
        self.world.call = self.called  # type: ignore[method-assign]

    def lock_made(self, slot: Slot) -> ShardLock:
        self.made.append(slot)
        return self.lock(slot)

    def called(self, name: str, grant: Grant) -> Future[Any]:
        before = self.history.setdefault(grant, [])
        running = [call.name for call in self.world.calls if call.grant is grant]
        match name:
            case "on_assigned":
                right = before == []
            case "handle":
                right = "on_assigned" in before and "on_revoked" not in before and running == []
                right = right and not self.world.stopping
            case _:
                right = "on_assigned" in before and "on_revoked" not in before
                right = right and "on_assigned" not in running
        if not right:
            self.wrong.append((name, before, running))
        before.append(name)
        return self.call(name, grant)

    def soon(self, now: bool) -> None:
        """Run the jobs of the pool's thread, or let other things happen first."""
        if now:
            self.world.run()

    @precondition(lambda self: not self.world.stopping)
    @rule(wanted=st.frozensets(st.sampled_from(NUMBERS), min_size=1), now=mostly)
    def want(self, wanted: frozenset[int], now: bool) -> None:
        self.world.later(partial(self.world.slots.want, wanted))
        self.soon(now)

    @rule(taking=mostly, now=mostly)
    def take(self, taking: bool, now: bool) -> None:
        self.world.later(partial(self.world.slots.take, taking))
        self.soon(now)

    @rule(sure=st.integers(0, 9))
    def leave(self, sure: int) -> None:
        if sure == 9:
            self.world.stopping = True
            self.world.later(partial(self.world.slots.want, frozenset()))

    @rule(begin=mostly, usable=mostly)
    def client(self, begin: bool, usable: bool) -> None:
        self.world.begins_fail = not begin
        self.world.is_usable = usable

    @precondition(lambda self: self.world.attempts)
    @rule(at=some, how=st.sampled_from(["granted", "granted", "failed", "withdrawn"]), now=mostly)
    def answer(self, at: int, how: str, now: bool) -> None:
        attempt = self.world.attempts[at % len(self.world.attempts)]
        if how == "withdrawn" and not attempt.given_up:
            return
        self.world.attempts.remove(attempt)
        grant = Grant(self.world) if how == "granted" else None
        if grant is not None:
            self.grants.append((attempt.slot, grant))
        attempt.settle(grant, RuntimeError("not now") if how == "failed" else None)
        self.soon(now)

    @precondition(lambda self: self.grants)
    @rule(at=some, now=mostly)
    def lose(self, at: int, now: bool) -> None:
        slot, grant = self.grants[at % len(self.grants)]
        if not grant.ended:
            grant._loss = "session"
            slot.lost(cast(Any, grant))
            self.soon(now)

    @precondition(lambda self: self.world.calls)
    @rule(
        at=some,
        error=st.sampled_from(
            [None, None, RuntimeError("failed"), LockLost("lost"), CannotRun("no", for_good=True)]
        ),
        now=mostly,
    )
    def end(self, at: int, error: Exception | None, now: bool) -> None:
        self.world.end(self.world.calls[at % len(self.world.calls)], error)
        self.soon(now)

    @precondition(lambda self: self.grants)
    @rule(at=some, now=mostly)
    def released(self, at: int, now: bool) -> None:
        _, grant = self.grants[at % len(self.grants)]
        if grant.ended:
            grant.answer.settle()
            self.soon(now)

    @rule()
    def time_passes(self) -> None:
        due, self.world.timed = self.world.timed, []
        self.world.jobs.extend(due)

    @precondition(lambda self: self.world.jobs)
    @rule(jobs=st.integers(1, 5))
    def run(self, jobs: int) -> None:
        for job in self.world.jobs[:jobs]:
            self.world.jobs.remove(job)
            job()

    @invariant()
    def one_go_at_a_time(self) -> None:
        going = [slot for slot in self.made if slot.state is not SlotState.GONE]
        kept = list(self.world.slots._slots.values())
        assert sorted(slot.shard for slot in going) == sorted(slot.shard for slot in kept)
        assert {*going} == {*kept}

    @invariant()
    def calls_come_in_their_order(self) -> None:
        assert not self.wrong

    @invariant()
    def what_it_owns_is_what_it_says(self) -> None:
        for number in self.world.slots.owned:
            assert number in self.world.slots.worked_on()

    def teardown(self) -> None:
        """Leave, and let all come to an end."""
        world = self.world
        self.leave(sure=9)
        world.run()
        assert not any(slot.state is SlotState.CONTENDING for slot in self.made)
        while world.attempts or world.calls or any(grant.ended for _, grant in self.grants):
            for attempt in world.attempts:
                attempt.settle()
            world.attempts.clear()
            for call in [*world.calls]:
                world.end(call)
            for _, grant in self.grants:
                if grant.ended:
                    grant.answer.settle()
                    assert grant._loss is None
            self.grants = [each for each in self.grants if not each[1].ended]
            self.time_passes()
            world.run()
        assert not self.wrong
        assert world.slots.empty
        assert not world.slots.running
        assert world.slots.owned == {}
        assert not [grant for _, grant in self.grants if grant.held], "never released"
        for calls in self.history.values():
            assert calls.count("on_revoked") == 1


AnyEvents.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
test_any_events_in_any_order = AnyEvents.TestCase
