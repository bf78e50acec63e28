"""An attempt whose caller waits, and may read the replies to its flights itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.test_attempt_steps import OWN, PATH, Asking, Noting, node
from zklock._engine import attempt as engine
from zklock._recipes.effects import (
    Create,
    Disown,
    Flight,
    GiveUp,
    Pause,
    Recipe,
    SessionReplaced,
    Sync,
    Wait,
)

pytestmark = pytest.mark.timeout(60)  # a wait without its limit never ends

ME = 5
FIRST, SECOND = (Sync("/first"),), (Sync("/second"),)
BEFORE, OTHER = f"{PATH}/b-0", f"{PATH}/a-0"
BEGIN = 100.0


class Reading(Noting):
    """A host whose callers may read: each ``reads()`` does what comes next in ``happens``."""

    def __init__(self) -> None:
        super().__init__()
        self.reader: Any = self
        self.awaited: list[Flight] = []
        self.happens: list[Callable[[], bool]] = []
        self.seen: list[tuple[Flight, float | None]] = []
        self.left: list[Flight] = []
        self.listened: list[tuple[str, float]] = []
        self.rings = 0

    def fly_awaited(self, flight: Flight, done: Callable[[tuple[Any, ...]], None]) -> None:
        self.awaited.append(flight)
        super().fly(flight, done)
        self.sent.pop()

    def reads(self, flight: object, seconds: float | None) -> bool:
        if not isinstance(flight, tuple):
            return False
        self.seen.append((flight, seconds))
        return self.happens.pop(0)()

    def listen(self, attempt: engine.Attempt[Any], blocker: str, seconds: float) -> bool:
        self.listened.append((blocker, seconds))
        assert attempt.waits_behind(blocker)
        return self.happens.pop(0)()

    def read_no_more(self, flight: object) -> None:
        if isinstance(flight, tuple):
            self.left.append(flight)

    def ring(self) -> None:
        self.rings += 1


class Moment:
    """The present thread, and the present time."""

    def __init__(self) -> None:
        self.thread = ME
        self.now = BEGIN


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Moment:
    moment = Moment()
    monkeypatch.setattr(engine, "threading", SimpleNamespace(get_ident=lambda: moment.thread))
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: moment.now))
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
    assert (host.sent, host.left, host.rings) == ([], [], 0)


def test_who_has_begun_and_does_not_wait_reads_nothing(host: Reading) -> None:
    attempt = Asking(host, FIRST).start().attempt
    assert (host.sent, host.awaited) == ([FIRST], [])
    assert not attempt.wait(3.0)
    assert host.seen == []
    assert host.limits == [3.0]


def test_where_nobody_can_read_the_connection_thread_does(host: Reading) -> None:
    host.reader = None
    attempt = begun(host, FIRST).attempt
    assert (host.sent, host.awaited) == ([FIRST], [])
    host.answer(None)
    assert attempt.wait()


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
    assert host.left == [FIRST]
    assert host.limits == [0.0]


def test_no_time_is_left_for_less_than_none(host: Reading, moment: Moment) -> None:
    def passes() -> bool:
        moment.now += 9.0
        return True

    attempt = begun(host, FIRST).attempt
    host.happens.append(passes)
    assert not attempt.wait(3.0)
    assert host.limits == [0.0]


@pytest.mark.parametrize(("timeout", "left"), [(0.5, 0.25), (None, None)])
def test_who_may_not_read_any_more_waits_for_what_is_left(
    host: Reading, moment: Moment, timeout: float | None, left: float | None
) -> None:
    def not_here() -> bool:
        moment.now += 0.25
        return False

    attempt = begun(host, FIRST).attempt
    host.happens.append(not_here)
    assert not attempt.wait(timeout)
    assert len(host.seen) == 1
    assert host.left == [FIRST]
    assert host.limits == [left]
    assert not attempt.wait(timeout)
    assert len(host.seen) == 1, "it reads again"


def test_who_waits_behind_another_listens_and_reads_what_it_then_asks(host: Reading) -> None:
    attempt = begun(host, FIRST, Wait(BEFORE, OWN), SECOND).attempt

    def gone() -> bool:
        attempt.watched(BEFORE, deleted=True)
        return True

    host.happens += [lambda: answered(host), gone, lambda: answered(host)]
    assert attempt.wait(3.0)
    assert attempt.result() == "the end"
    assert host.listened == [(BEFORE, 3.0)]
    assert host.seen == [(FIRST, 3.0), (SECOND, 3.0)]
    assert (host.awaited, host.sent, host.limits) == ([FIRST, SECOND], [], [])


def test_who_hears_nothing_more_waits_for_other_threads(host: Reading) -> None:
    attempt = begun(host, FIRST, Wait(BEFORE, OWN), SECOND).attempt
    host.happens += [lambda: answered(host), lambda: False]
    assert not attempt.wait(3.0)
    assert host.seen == [(FIRST, 3.0)]
    assert host.left == []
    assert host.limits == [3.0]
    attempt.watched(BEFORE, deleted=True)
    assert (host.awaited, host.sent) == ([FIRST], [SECOND])


@pytest.mark.parametrize(
    "wait",
    [Wait(BEFORE, None), Wait(f"{PATH}/b/0", OWN), Wait(PATH, OWN)],
    ids=["no queue", "elsewhere", "a listing"],
)
def test_who_waits_for_anything_else_does_not_listen(host: Reading, wait: Wait) -> None:
    attempt = begun(host, FIRST, wait, SECOND).attempt
    host.happens.append(lambda: answered(host))
    assert not attempt.wait(3.0)
    assert host.listened == []


def test_who_must_not_sleep_does_not_listen(host: Reading) -> None:
    attempt = begun(host, FIRST, Wait(BEFORE, OWN), SECOND).attempt
    host.happens.append(lambda: answered(host))
    assert not attempt.look()
    assert (host.seen, host.listened) == ([(FIRST, None)], [])


def test_it_waits_behind_one_until_that_is_gone_or_it_gives_up(host: Reading) -> None:
    attempt = begun(host, FIRST, Wait(BEFORE, OWN), Wait(OTHER, OWN)).attempt
    assert not attempt.waits_behind(BEFORE)
    host.answer(None)
    assert attempt.waits_behind(BEFORE)
    assert not attempt.waits_behind(OTHER)
    attempt.watched(BEFORE, deleted=True)
    assert not attempt.waits_behind(BEFORE)
    assert attempt.waits_behind(OTHER)
    attempt.give_up()
    assert not attempt.waits_behind(OTHER)


@pytest.mark.parametrize("other", [ME - 1, ME + 1])
def test_it_is_woken_by_an_outcome_that_another_thread_brings(
    host: Reading, moment: Moment, other: int
) -> None:
    def elsewhere() -> bool:
        moment.thread = other
        host.answer(None)
        moment.thread = ME
        return True

    attempt = begun(host, FIRST).attempt
    host.happens.append(elsewhere)
    assert attempt.wait()
    assert host.rings == 1


@pytest.mark.parametrize("other", [ME - 1, ME + 1])
def test_what_another_thread_sends_is_not_for_the_reader(
    host: Reading, moment: Moment, other: int
) -> None:
    begun(host, FIRST, SECOND)
    moment.thread = other
    host.answer(None)
    assert (host.awaited, host.sent) == ([FIRST], [SECOND])


def test_who_gives_up_leaves_the_replies_to_others(host: Reading) -> None:
    attempt = begun(host, FIRST).attempt
    assert attempt.give_up()
    assert host.left == [FIRST]
    assert attempt.wait()
    assert host.seen == []


def test_replies_that_are_told_twice_are_heard_once(host: Reading) -> None:
    """Whoever was struck as it read has them told again, by the connection thread."""
    asking = begun(host, (Create(f"{PATH}/c-", b""),), SECOND)
    again = host.flights[0].done
    host.answer(node(OWN))
    again((node(OWN),))
    assert asking.answers == [(node(OWN),)]
    assert host.swept == []


# What else the recipe asks for, and hears.


def test_what_is_disowned_is_for_the_host(host: Reading) -> None:
    asking = Asking(host, Disown(PATH, "some uuid")).start()
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
    heard: list[GiveUp] = []

    def recipe() -> Recipe[str]:
        while True:
            try:
                yield Pause(1.0)
            except GiveUp as error:
                heard.append(error)

    attempt = engine.Attempt(host, recipe()).start()
    attempt.give_up()
    attempt.give_up()
    assert len(heard) == 1


class Made:
    """A grant that was made. A second interrupt strikes the first who gives it back."""

    def __init__(self) -> None:
        self.given_back = 0

    def abandon(self) -> None:
        self.given_back += 1
        if self.given_back == 1:
            raise KeyboardInterrupt


def struck() -> None:
    raise KeyboardInterrupt


def test_what_was_made_is_given_back_whatever_strikes(host: Reading) -> None:
    asking, made = Asking(host, FIRST, SECOND).start(), Made()
    asking.attempt.made = (made,)  # type: ignore[assignment]
    host.meanwhile = struck
    with pytest.raises(KeyboardInterrupt):
        host.answer(None)
    assert made.given_back == 2


def test_what_somebody_gets_is_not_given_back(host: Reading) -> None:
    asking, made = Asking(host, FIRST).start(), Made()
    asking.attempt.made = (made,)  # type: ignore[assignment]
    strikes = [struck]
    asking.attempt.when_done(lambda: strikes.pop()() if strikes else None)
    with pytest.raises(KeyboardInterrupt):
        host.answer(None)
    assert asking.attempt.result() == "the end"
    assert made.given_back == 0


def test_who_must_not_sleep_looks_and_leaves_the_rest_to_others(host: Reading) -> None:
    attempt = begun(host, FIRST, SECOND).attempt
    host.happens += [lambda: answered(host), lambda: False]
    assert not attempt.look()
    assert host.seen == [(FIRST, None), (SECOND, None)]
    assert (host.awaited, host.left) == ([FIRST, SECOND], [SECOND])
    assert not attempt.look()
    assert len(host.seen) == 2, "it reads again"
    host.answer(None)
    assert attempt.look()
    assert host.rings == 0


def test_it_sees_an_outcome_that_comes_at_once(host: Reading) -> None:
    attempt = begun(host, FIRST).attempt
    host.happens.append(lambda: answered(host))
    assert attempt.look()
    assert attempt.result() == "the end"
    assert host.left == []


def test_who_has_not_said_so_does_not_look(host: Reading) -> None:
    attempt = Asking(host, FIRST).start().attempt
    assert not attempt.look()
    assert (host.seen, host.left) == ([], [])


def test_an_interrupt_as_it_looks_leaves_the_rest_to_others(host: Reading) -> None:
    def struck() -> bool:
        raise KeyboardInterrupt

    attempt = begun(host, FIRST).attempt
    host.happens.append(struck)
    with pytest.raises(KeyboardInterrupt):
        attempt.look()
    assert host.left == [FIRST]
