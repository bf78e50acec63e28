"""An attempt whose caller waits, and may read the replies to its batches itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.test_attempt_steps import BUSY, OWN, PATH, Asking, Noting, node
from zklock._engine import attempt as engine
from zklock._recipes.effects import (
    AbandonCreate,
    Batch,
    Cancelled,
    Create,
    Pause,
    Recipe,
    SessionReplaced,
    Sync,
    Wait,
)

pytestmark = pytest.mark.timeout(60)  # a wait without its limit never ends

ME = 5
FIRST, SECOND = (Sync("/first"),), (Sync("/second"),)
BEFORE = f"{PATH}/b-0"
BEGIN = 100.0


class Reading(Noting):
    """A host whose callers may read: each ``hear()`` does what comes next in ``happens``."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited: list[Batch] = []
        self.happens: list[Callable[[], bool]] = []
        self.seen: list[tuple[Batch, float | None]] = []
        self.left: list[Batch] = []

    def send_batch(
        self, batch: Batch, done: Callable[[tuple[Any, ...]], None], awaited: bool = False
    ) -> None:
        super().send_batch(batch, done)
        if awaited:
            self.awaited.append(self.sent.pop())

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        if seconds == 0.0:
            self.left.append(batch)
            return False
        self.seen.append((batch, seconds))
        return self.happens.pop(0)()


class Moment:
    """The present thread, and the present time."""

    def __init__(self) -> None:
        self.thread = ME
        self.now = BEGIN


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Moment:
    moment = Moment()
    monkeypatch.setattr(engine, "threading", SimpleNamespace(get_ident=lambda: moment.thread))
    monkeypatch.setattr(engine, "clock", lambda: moment.now)
    return moment


@pytest.fixture
def host(moment: Moment) -> Reading:
    return Reading()


def answered(host: Reading) -> bool:
    host.answer(None)
    return True


def begun(host: Reading, *asked: Any) -> Asking:
    """Return what has begun, for a thread that is about to wait."""
    asking = Asking(host, *asked)
    asking.attempt.start(awaited=True)
    return asking


def test_who_waits_reads_the_replies(host: Reading) -> None:
    attempt = begun(host, FIRST, SECOND).attempt
    host.happens += [lambda: answered(host), lambda: answered(host)]
    assert attempt.wait()
    assert attempt.result() == "the end"
    assert host.awaited == [FIRST, SECOND]
    assert host.seen == [(FIRST, math.inf), (SECOND, math.inf)]
    assert host.sent == []


def test_who_has_begun_and_does_not_wait_reads_nothing(host: Reading) -> None:
    attempt = Asking(host, FIRST).start().attempt
    assert (host.sent, host.awaited) == ([FIRST], [])
    assert not attempt.wait(3.0)
    assert host.seen == []
    assert host.limits == [3.0]


def test_what_was_answered_before_is_not_waited_for(host: Reading) -> None:
    attempt = begun(host, FIRST).attempt
    host.answer(None)
    assert attempt.wait(3.0)
    assert host.seen == []


def test_it_reads_until_the_time_is_over(host: Reading, moment: Moment) -> None:
    def passes(seconds: float) -> bool:
        moment.now += seconds
        return True

    attempt = begun(host, FIRST).attempt
    host.happens += [lambda: passes(2.0), lambda: passes(1.0)]
    assert not attempt.wait(3.0)
    assert host.seen == [(FIRST, 3.0), (FIRST, 1.0)]
    assert host.limits == [0.0]


def test_no_time_is_left_for_less_than_none(host: Reading, moment: Moment) -> None:
    def passes() -> bool:
        moment.now += 9.0
        return True

    attempt = begun(host, FIRST).attempt
    host.happens.append(passes)
    assert not attempt.wait(3.0)
    assert host.limits == [0.0]


def test_who_may_not_read_waits_as_long_as_it_wanted(host: Reading, moment: Moment) -> None:
    def not_here() -> bool:
        moment.now += 0.25  # by another clock than the session's
        return False

    attempt = begun(host, FIRST).attempt
    host.happens.append(not_here)
    assert not attempt.wait(0.5)
    assert len(host.seen) == 1
    assert host.limits == [0.5]


def test_who_hears_nothing_more_waits_for_other_threads(host: Reading) -> None:
    attempt = begun(host, FIRST, Wait(BEFORE, OWN), SECOND).attempt
    host.happens += [lambda: answered(host), lambda: False]
    assert not attempt.wait(3.0)
    assert host.seen == [(FIRST, 3.0), ((), 3.0)]
    assert host.limits == [3.0]
    attempt.watched(BEFORE, deleted=True)
    assert (host.awaited, host.sent) == ([FIRST], [SECOND])


def test_who_waits_in_a_queue_hears_the_events_of_the_first_moment(host: Reading) -> None:
    def goes() -> bool:
        attempt.watched(BEFORE, deleted=True)
        return True

    attempt = begun(host, FIRST, Wait(BEFORE, OWN), SECOND, Wait(BEFORE, OWN)).attempt
    host.happens += [lambda: answered(host), goes, lambda: answered(host), lambda: True]
    assert not attempt.wait(3.0)
    assert host.awaited == [FIRST, SECOND]
    assert [batch for batch, _ in host.seen] == [FIRST, (), SECOND, ()]
    assert host.sent == []


def test_who_reads_events_handles_its_own_alone(host: Reading) -> None:
    """An interrupt of its thread, or a time limit, is not for the others."""
    mine = begun(host, Wait(BEFORE, OWN), SECOND)
    other = Asking(host, Wait(BEFORE, OWN), SECOND).start()
    host.interrupted = True
    for asking in (mine, other):
        asking.attempt.watched(BEFORE, deleted=True)
    assert (len(mine.answers), len(other.answers)) == (1, 0)
    host.interrupted = False
    other.attempt.watched(OWN, deleted=True)
    assert other.answers == mine.answers, "a later event was heard first"
    (job,) = host.jobs
    job()
    assert (host.awaited, host.sent) == ([SECOND], [SECOND])


@pytest.mark.parametrize("other", [ME - 1, ME + 1])
def test_what_another_thread_sends_is_not_for_the_reader(
    host: Reading, moment: Moment, other: int
) -> None:
    begun(host, FIRST, SECOND)
    moment.thread = other
    host.answer(None)
    assert (host.awaited, host.sent) == ([FIRST], [SECOND])


def test_replies_that_are_told_twice_are_heard_once(host: Reading) -> None:
    """Whoever was struck as it read has them told again, by the connection thread."""
    asking = begun(host, (Create(f"{PATH}/c-", b""),), SECOND)
    again = host.batches[0].done
    host.answer(node(OWN))
    again((node(OWN),))
    assert asking.answers == [(node(OWN),)]
    assert host.swept == []


def test_a_busy_answer_that_is_told_twice_is_rested_after_once(host: Reading) -> None:
    asking = begun(host, FIRST, SECOND)
    again = host.batches[0].done
    host.answer(BUSY)
    again((BUSY,))
    (rest,) = host.pauses
    rest.done()
    assert asking.answers == [(BUSY,)]


def test_who_must_not_sleep_looks_and_leaves_the_rest_to_others(host: Reading) -> None:
    attempt = begun(host, FIRST, SECOND).attempt
    host.happens += [lambda: answered(host), lambda: False]
    assert not attempt.look()
    assert host.seen == [(FIRST, None), (SECOND, None)]
    assert not attempt.look()
    assert len(host.seen) == 2, "it looks again"
    host.answer(None)
    assert attempt.look()


def test_who_has_not_said_so_does_not_look(host: Reading) -> None:
    attempt = Asking(host, FIRST).start().attempt
    assert not attempt.look()
    assert host.seen == []


# What else the recipe asks for, and hears.


def test_what_is_disowned_is_for_the_host(host: Reading) -> None:
    asking = Asking(host, AbandonCreate(PATH, "some uuid")).start()
    assert host.disowned == [(PATH, "some uuid")]
    assert asking.answers == [None]
    assert asking.attempt.result() == "the end"


def test_a_recipe_hears_that_its_session_was_replaced(host: Reading) -> None:
    heard: list[SessionReplaced] = []

    def recipe() -> Recipe[str]:
        try:
            yield FIRST
        except SessionReplaced as replaced:
            heard.append(replaced)
        return "the end"

    attempt = engine.Attempt(host, recipe()).start()
    attempt.session_replaced()
    assert [each.final for each in heard] == [None]
    assert attempt.result() == "the end"


def test_a_recipe_that_leaves_is_not_told_again_to_give_up(host: Reading) -> None:
    heard: list[Cancelled] = []

    def recipe() -> Recipe[str]:
        while True:
            try:
                yield Pause(1.0)
            except Cancelled as error:
                heard.append(error)

    attempt = engine.Attempt(host, recipe()).start()
    attempt.cancel()
    attempt.cancel()
    assert len(heard) == 1


class Made:
    """A grant that was made."""

    def __init__(self) -> None:
        self.given_back = 0

    def abandon(self) -> None:
        self.given_back += 1


def struck() -> None:
    raise KeyboardInterrupt


def test_what_was_made_is_given_back_whatever_strikes(host: Reading) -> None:
    asking, made = Asking(host, FIRST, SECOND).start(), Made()
    asking.attempt.made = (made,)
    host.meanwhile = struck
    with pytest.raises(KeyboardInterrupt):
        host.answer(None)
    for job in host.jobs:
        job()
    assert made.given_back == 1


def test_what_somebody_gets_is_not_given_back(host: Reading) -> None:
    asking, made = Asking(host, FIRST).start(), Made()
    asking.attempt.made = (made,)
    strikes = [struck]
    asking.attempt.when_done(lambda: strikes.pop()() if strikes else None)
    with pytest.raises(KeyboardInterrupt):
        host.answer(None)
    for job in host.jobs:
        job()
    assert asking.attempt.result() == "the end"
    assert made.given_back == 0


def test_who_is_told_otherwise_reads_no_more_so_that_others_can(host: Reading) -> None:
    attempt = begun(host, FIRST).attempt
    host.happens.append(attempt.cancel)
    assert attempt.wait()
    assert host.seen == [(FIRST, math.inf)]
    assert host.left == [FIRST]


@pytest.mark.parametrize("how", ["the time is over", "it is cancelled before"])
def test_what_is_under_way_is_left_to_others(host: Reading, moment: Moment, how: str) -> None:
    attempt = begun(host, FIRST).attempt
    if how == "it is cancelled before":
        attempt.cancel()
    else:
        moment.now += 9.0
    attempt.wait(0.0)
    assert host.seen == []
    assert host.left == [FIRST]


@pytest.mark.parametrize("thread", [ME, 1, -1])
def test_who_has_given_up_does_not_read_how_its_node_goes(
    host: Reading, moment: Moment, thread: int
) -> None:
    """It may be about to raise, and wait for nothing."""

    def leaves() -> Recipe[None]:
        try:
            yield FIRST
            yield Pause(1.0)
        except Cancelled:
            yield SECOND

    moment.thread = thread
    attempt = engine.Attempt(host, leaves()).start(awaited=True)
    assert host.awaited == [FIRST]
    attempt.cancel()
    host.answer(None)
    assert (host.awaited, host.sent) == ([FIRST], [SECOND])
