"""When heartbeats are sent; and that leases go on while answers are late, as the page computes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from zklock._core.heartbeat import MOST, DueHeartbeat, Heartbeat
from zklock._core.lease import Lease

T = 40.0


def beat(heart: Heartbeat, now: float, *, sends: bool = True, held: bool = True) -> int | None:
    beat = heart.take(now, T, sends=sends, held=held, proves=True)
    assert beat is None or beat.proves
    return None if beat is None else beat.number


def touch(heart: Heartbeat, now: float) -> None:
    beat = heart.take(now, T, sends=True, held=False, proves=False)
    assert beat is not None
    assert not beat.proves


@pytest.fixture
def heart() -> Heartbeat:
    return Heartbeat()


def due(heart: Heartbeat, now: float, *, held: bool = True) -> float:
    return heart.due(now, T, held=held)


class TestWhen:
    def test_ten_times_per_timeout(self, heart: Heartbeat) -> None:
        assert beat(heart, 100.0) == 0
        assert beat(heart, 103.9) is None
        assert due(heart, 103.9) == 104.0
        assert beat(heart, 104.0) == 1

    def test_hurried_while_answers_are_late(self, heart: Heartbeat) -> None:
        beat(heart, 100.0)
        beat(heart, 104.0)
        assert due(heart, 107.9) == 108.0
        assert beat(heart, 108.0) == 2
        assert due(heart, 108.0) == 109.0
        heart.answered(0, 108.5, T)
        assert due(heart, 108.5) == 109.0
        assert beat(heart, 109.0) == 3
        heart.answered(1, 109.5, T)
        assert due(heart, 109.5) == 113.0

    def test_not_hurried_for_those_who_only_wait(self, heart: Heartbeat) -> None:
        beat(heart, 100.0, held=False)
        beat(heart, 108.0, held=False)
        assert due(heart, 108.0, held=False) == 112.0

    def test_a_limited_number_at_a_time(self, heart: Heartbeat) -> None:
        times = [100.0 + 10 * number for number in range(MOST + 3)]
        assert [beat(heart, at) for at in times] == [*range(MOST), None, None, None]
        heart.answered(0, 500.0, T)
        assert beat(heart, 500.0) == MOST

    def test_soon_does_not_pile_up(self, heart: Heartbeat) -> None:
        beat(heart, 100.0)
        heart.soon()
        assert beat(heart, 101.0) is None
        assert due(heart, 101.0) == 104.0
        heart.answered(0, 102.0, T)
        assert due(heart, 102.0) == -math.inf
        assert beat(heart, 102.0) == 1

    def test_what_cannot_be_sent_waits_for_the_next_time(self, heart: Heartbeat) -> None:
        assert beat(heart, 100.0, sends=False) is None
        assert due(heart, 100.0) == 104.0
        assert beat(heart, 104.0) == 0

    def test_soon_waits_for_no_touch(self, heart: Heartbeat) -> None:
        touch(heart, 100.0)
        heart.soon()
        assert due(heart, 101.0) == -math.inf
        assert beat(heart, 101.0) == 1
        heart.soon()
        assert beat(heart, 102.0) is None
        heart.answered(1, 103.0, T)
        assert beat(heart, 103.0) == 2

    def test_a_proof_that_is_forgotten_is_not_waited_for(self, heart: Heartbeat) -> None:
        beat(heart, 100.0)
        heart.forget()
        heart.soon()
        assert beat(heart, 101.0) == 1
        heart.soon()
        assert beat(heart, 102.0) is None


class TestLate:
    def test_the_oldest_one_counts(self, heart: Heartbeat) -> None:
        for at in (100.0, 104.0, 108.0):
            beat(heart, at)
        assert not heart.hung(113.3, T)
        assert heart.hung(113.4, T)
        heart.answered(0, 110.0, T)
        assert not heart.hung(117.3, T)
        assert heart.hung(117.4, T)

    def test_of_a_connection_that_is_over_is_forgotten(self, heart: Heartbeat) -> None:
        beat(heart, 100.0)
        heart.forget()
        assert not heart.hung(1000.0, T)
        number = beat(heart, 1000.0)
        heart.answered(0, 1001.0, T)
        assert number == 1
        assert heart.hung(1014.0, T)

    def test_is_told_once_until_an_answer_is_prompt(self, heart: Heartbeat) -> None:
        beat(heart, 100.0)
        assert not heart.falls_behind(107.0, T)
        assert heart.falls_behind(108.0, T)
        assert not heart.falls_behind(109.0, T)
        heart.answered(0, 110.0, T)
        beat(heart, 110.0)
        assert not heart.falls_behind(120.0, T)
        heart.answered(1, 120.0, T)
        beat(heart, 120.0)
        heart.answered(2, 121.0, T)
        assert not heart.falls_behind(121.0, T)
        beat(heart, 130.0)
        assert heart.falls_behind(138.0, T)

    def test_from_the_moment_that_the_page_names(self, heart: Heartbeat) -> None:
        """Late: a fifth of the timeout or more. Prompt: less than the time between two."""
        beat(heart, 100.0)
        heart.answered(0, 100.0 + T / 5, T)
        assert heart.falls_behind(108.0, T)
        beat(heart, 108.0)
        heart.answered(1, 108.0 + T / 10, T)
        beat(heart, 112.0)
        assert not heart.falls_behind(120.0, T), "no answer was prompt since it was told"

    @pytest.mark.parametrize("timeout", [T, 2.0])
    def test_a_late_answer_says_nothing_of_the_next_connection(
        self, heart: Heartbeat, timeout: float
    ) -> None:
        assert not heart.falls_behind(0.0, timeout), "there was none yet"
        beat = heart.take(100.0, timeout, sends=True, held=True, proves=True)
        assert beat is not None
        heart.answered(beat.number, 100.0 + timeout / 4, timeout)
        heart.forget()
        assert not heart.falls_behind(101.0, timeout)

    def test_none_is_held_back_before_the_server_counts_as_hung(self) -> None:
        heart, now = Heartbeat(), 0.0
        beat(heart, -T / 4)
        heart.answered(0, now, T)  # late: the next ones are hurried
        while not heart.hung(now, T):
            assert beat(heart, now) is not None
            now = due(heart, now)


def least_left(
    delay: Callable[[float], float],
    until: float = 20 * T,
    fraction: float = 2 / 3,
) -> float:
    """Run a session whose answers take ``delay(sent)``; return what its lease has left at least.

    In seconds; negative if it has ended. It has begun with the second answer: the first one may
    come late.
    """
    heart, lease = Heartbeat(), Lease(T, fraction)
    lease.connected(0.0)
    under_way: deque[tuple[float, float, DueHeartbeat]] = deque()  # answered at, sent at
    now, left, answers = 0.0, math.inf, 0
    while now < until:
        while under_way and under_way[0][0] <= now:
            _, sent, taken = under_way.popleft()
            if answers:
                left = min(left, lease.end - now)
            answers += 1
            heart.answered(taken.number, now, T)
            lease.touched(sent, now)
            lease.proved(sent)
        assert not heart.hung(now, T)
        found = heart.take(now, T, sends=True, held=True, proves=True)
        if found is not None:
            last = under_way[-1][0] if under_way else 0.0
            under_way.append((max(last, now + delay(now)), now, found))
        next_due = heart.due(now, T, held=True)
        now = max(now + 0.001, min(next_due, under_way[0][0] if under_way else math.inf))
    return min(left, lease.end - now)


def holds(delay: Callable[[float], float], **how: Any) -> bool:
    """Whether a lease never ends if answers take ``delay(sent)``."""
    return least_left(delay, **how) >= 0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.18, 0.25, 0.28, 0.29])
def test_a_lease_goes_on_when_answers_become_late_at_once(share: float) -> None:
    for at in range(20):  # wherever between two proofs
        begin = 2 * T + at * T / 40

        def delay(sent: float, begin: float = begin) -> float:
            return 0.0 if sent < begin else share * T

        assert holds(delay, until=8 * T)


@pytest.mark.parametrize("share", [0.25, 0.29, 0.31, 0.325])
def test_a_lease_goes_on_when_answers_become_late_by_and_by(share: float) -> None:
    assert holds(lambda sent: share * T * min(1.0, sent / (10 * T)))


def test_a_lease_goes_on_when_answers_are_late_in_turns() -> None:
    assert holds(lambda sent: 0.0 if sent % (3 * T) < T else 0.28 * T)


def test_what_a_lease_in_use_has_left_while_answers_are_prompt() -> None:
    assert 0.566 * T < least_left(lambda sent: 0.0) <= 0.567 * T


def test_a_shorter_lease_needs_prompter_answers() -> None:
    assert holds(lambda sent: 0.07 * T, fraction=0.3)
    assert not holds(lambda sent: 0.25 * T, fraction=0.3)


@pytest.mark.parametrize("fraction", [0.65, 2 / 3, 0.75])
def test_a_server_that_hangs_is_left_while_the_lease_has_a_tenth_of_the_timeout(
    fraction: float,
) -> None:
    """Whenever it begins to hang, between two proofs."""
    for at in range(40):
        hangs = 3 * T + at * T / 80
        heart, lease = Heartbeat(), Lease(T, fraction)
        lease.connected(0.0)
        now = 0.0
        while not heart.hung(now, T):
            taken = heart.take(now, T, sends=True, held=True, proves=True)
            if taken is not None and now < hangs:
                heart.answered(taken.number, now, T)
                lease.touched(now, now)
                lease.proved(now)
            now = max(now, heart.due(now, T, held=True))
        assert lease.end - now > T / 10 - 0.001
