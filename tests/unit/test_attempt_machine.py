"""An attempt under any news in any order, held against the table of its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.fakes import NoSession, failure
from tests.modes import examples
from tests.unit.test_attempt_state import CASES
from zklock._engine.attempt import Attempt
from zklock._engine.attempt_state import AttemptEvent, Stage
from zklock._engine.transition_table import IllegalStep
from zklock._recipes.effects import (
    Batch,
    Cancelled,
    Claim,
    Create,
    Event,
    Failed,
    Failure,
    Node,
    Pause,
    Recipe,
    SessionReplaced,
    Wait,
)
from zklock.errors import ClientClosed, ZkLockError
from zklock.token import FencingToken

BUSY = Failed(Failure.DROPPED, failure(Failure.DROPPED, "/lock").error, busy=True)
ASKED: dict[str, Any] = {
    "batch": (Create("/lock/c-", b""),),
    "claim": Claim("/lock/c-0", FencingToken(1, 0), lambda: iter(())),  # type: ignore[arg-type, return-value]
    "wait": Wait("/lock/b-0", None),
    "pause": Pause(1.0),
    "end": None,
}


@dataclass(eq=False)
class Call:
    """A batch that is not answered, or a pause that is not over."""

    done: Callable[..., object]
    off: bool = False


class Host(NoSession):
    """Does what it is told, and nothing by itself. ``meanwhile`` is called in its next call."""

    def __init__(self) -> None:
        self.interrupted = False
        self.connected = True
        self.entered: set[Attempt[Any]] = set()
        self.batches: list[Call] = []
        self.pauses: list[Call] = []
        self.swept: list[str] = []
        self.disowned: list[tuple[str, str]] = []
        self.jobs: list[Callable[[], object]] = []
        self.meanwhile: Callable[[], object] | None = None

    def _called(self) -> None:
        call, self.meanwhile = self.meanwhile, None
        if call is not None:
            call()

    def enter(self, attempt: Attempt[Any]) -> None:
        self.entered.add(attempt)

    def leave(self, attempt: Attempt[Any]) -> None:
        self.entered.discard(attempt)

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        raise AssertionError("nobody waits here")

    def park(self, attempt: Attempt[Any]) -> None:
        self._called()

    def send_batch(
        self, batch: Batch, done: Callable[[tuple[Any, ...]], None], awaited: bool = False
    ) -> None:
        self.batches.append(Call(done))
        self._called()

    def pause(self, seconds: float, done: Callable[[], object]) -> Callable[[], object]:
        call = Call(done)
        self.pauses.append(call)
        self._called()

        def call_off() -> None:
            call.off = True

        return call_off

    def watch(self, attempt: Attempt[Any], paths: Iterable[str]) -> None:
        raise NotImplementedError

    def claim(self, attempt: Attempt[Any], claim: Claim) -> Any:
        self._called()

    def delete_orphan(self, node: str) -> None:
        self.swept.append(node)

    def abandon_create(self, path: str, uuid: str) -> None:
        self.disowned.append((path, uuid))

    def later(self, job: Callable[[], object]) -> None:
        self.jobs.append(job)


asks = st.sampled_from([*ASKED, "batch", "wait"])
some = st.integers(0, 7)


class AnyNews(RuleBasedStateMachine):
    """The recipe asks for what each rule says, whenever it is advanced in that rule."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host()
        self.ask = "end"
        self.heard: list[Any] = []
        self.attempt: Attempt[str] = Attempt(self.host, self.recipe())
        self.stage = Stage.NEW
        self.given_up = False

    def recipe(self) -> Recipe[str]:
        while self.ask != "end":
            try:
                self.heard.append((yield ASKED[self.ask]))
            except SessionReplaced as replaced:
                if replaced.final is not None:
                    raise replaced.final from None
                self.heard.append(replaced)
            except (Cancelled, ZkLockError) as error:
                self.heard.append(error)
        return "the end"

    def expect(self, news: AttemptEvent, meanwhile: AttemptEvent | None = None) -> None:
        """Note the stage to which news leads; ``meanwhile`` comes while the host is called."""
        then = CASES[self.stage, news]
        assert then is not None
        self.stage = then
        if then is not Stage.RUNNING:
            return
        if news is AttemptEvent.CLIENT_OVER:
            self.stage = Stage.OVER
            return
        flies = Stage.BATCH if self.host.connected else Stage.PARKED
        landings = {"batch": flies, "claim": Stage.CLAIM, "wait": Stage.WAIT}
        landings |= {"pause": Stage.PAUSE, "end": Stage.OVER}
        if news is AttemptEvent.CONNECTED:
            self.stage = flies  # the recipe goes on asking for the same
        else:
            self.stage = landings[self.ask]
        if meanwhile is not None and self.stage not in {Stage.WAIT, Stage.OVER}:
            self.expect(meanwhile)

    def tell(
        self, ask: str, news: AttemptEvent, call: Callable[[], object], during: bool = False
    ) -> None:
        """Bring news; ``during``: somebody gives the attempt up while the host is called for it."""
        self.ask = ask
        during = during and not self.given_up and news is not AttemptEvent.CLIENT_OVER
        if during:
            self.host.meanwhile = self.attempt.cancel
        self.expect(news, AttemptEvent.CANCELLED if during else None)
        call()
        if during and self.host.meanwhile is None:
            self.given_up = True
        self.host.meanwhile = None

    @rule(ask=asks, during=st.booleans())
    def start(self, ask: str, during: bool) -> None:
        if CASES[self.stage, AttemptEvent.START] is None:
            with pytest.raises(IllegalStep):
                self.attempt.start()
            self.host.jobs.pop()()
        else:
            self.tell(ask, AttemptEvent.START, self.attempt.start, during)

    @precondition(lambda self: self.host.batches)
    @rule(ask=asks, number=some, busy=st.booleans(), during=st.booleans())
    def answer(self, ask: str, number: int, busy: bool, during: bool) -> None:
        batches = self.host.batches
        call = batches.pop(number % len(batches))
        # What was sent last is what the recipe waits for, if it waits for a batch at all.
        awaited = self.stage is Stage.BATCH and number % (len(batches) + 1) == len(batches)
        news = AttemptEvent.ANSWERED_LATE
        if awaited:
            news = AttemptEvent.BUSY if busy else AttemptEvent.ANSWERED
        result = BUSY if busy else Node("/lock/c-0", b"", 1, mine=True)
        heard, swept = len(self.heard), len(self.host.swept)
        self.tell(ask, news, lambda: call.done((result,)), during and news is AttemptEvent.ANSWERED)
        if news is AttemptEvent.ANSWERED:
            assert self.heard[heard] == (result,)
        else:
            assert len(self.heard) == heard
        assert len(self.host.swept) - swept == (news is AttemptEvent.ANSWERED_LATE and not busy)

    @precondition(lambda self: self.host.pauses)
    @rule(ask=asks, number=some)
    def elapse(self, ask: str, number: int) -> None:
        call = self.host.pauses.pop(number % len(self.host.pauses))
        self.ask = ask
        if self.stage in {Stage.BACKOFF, Stage.PAUSE} and not call.off:
            self.expect(AttemptEvent.ELAPSED)
        call.done()

    @rule(connected=st.booleans())
    def connect(self, connected: bool) -> None:
        self.host.connected = connected

    @precondition(lambda self: self.stage is not Stage.NEW)
    @rule(ask=asks, during=st.booleans())
    def resume(self, ask: str, during: bool) -> None:
        self.tell(ask, AttemptEvent.CONNECTED, self.attempt.resume, during)

    @precondition(lambda self: self.stage is not Stage.NEW)
    @rule(ask=asks, during=st.booleans())
    def lease_live(self, ask: str, during: bool) -> None:
        self.tell(ask, AttemptEvent.LEASE_LIVE, self.attempt.lease_live, during)

    @precondition(lambda self: self.stage is not Stage.NEW)
    @rule(ask=asks)
    def refuse(self, ask: str) -> None:
        error = ZkLockError("refused", path="/lock")
        self.tell(ask, AttemptEvent.REFUSED, lambda: self.attempt.refused(error))

    @precondition(lambda self: self.stage is not Stage.NEW)
    @rule(ask=asks)
    def watched(self, ask: str) -> None:
        waits = self.stage is Stage.WAIT
        path = "/lock/b-0" if waits else "/lock/of-another-wait"
        self.tell(ask, AttemptEvent.WATCHED, lambda: self.attempt.watched(path, deleted=True))
        if waits:
            assert self.heard[-1] is Event.BLOCKER_GONE

    @rule(ask=asks)
    def cancel(self, ask: str) -> None:
        self.ask = ask
        if not self.given_up:
            self.given_up = self.attempt.done is False
            self.expect(AttemptEvent.CANCELLED)
        self.attempt.cancel()

    @rule(ask=asks)
    def lose_the_session(self, ask: str) -> None:
        self.tell(ask, AttemptEvent.SESSION_GONE, self.attempt.session_replaced)

    @rule(ask=asks)
    def close_the_client(self, ask: str) -> None:
        error = ClientClosed("closed")
        self.tell(ask, AttemptEvent.CLIENT_OVER, lambda: self.attempt.session_replaced(error))

    @invariant()
    def is_where_the_table_says(self) -> None:
        assert self.attempt._stage is self.stage
        assert self.attempt.done == (self.given_up or self.stage is Stage.OVER)
        assert not self.host.jobs, "it was torn apart"

    @invariant()
    def its_host_knows_it_while_it_runs(self) -> None:
        if self.stage is Stage.OVER:
            assert not self.host.entered

    @invariant()
    def it_is_told_to_give_up_once(self) -> None:
        assert sum(isinstance(each, Cancelled) for each in self.heard) <= self.given_up


AnyNews.TestCase.settings = settings(
    max_examples=examples(80), stateful_step_count=25, deadline=None
)
test_any_news_in_any_order = AnyNews.TestCase
