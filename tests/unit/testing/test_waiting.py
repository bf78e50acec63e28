import itertools

import pytest

from zklock.testing import wait_for, waiting


class Clock:
    """Time that passes only in sleep()."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []
        monkeypatch.setattr(waiting, "time", self)
        monkeypatch.setattr(waiting, "clock", lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_returns_the_first_true_value_without_a_last_sleep(clock: Clock) -> None:
    counter = itertools.count()
    assert wait_for(lambda: next(counter), 10, interval=0.5) == 1
    assert clock.sleeps == [0.5]


def test_looks_once_more_at_the_deadline(clock: Clock) -> None:
    assert wait_for(lambda: clock.now == 101.0, 1.0, interval=0.3)
    assert clock.now == 101.0


def test_says_what_it_waited_for(clock: Clock) -> None:
    assert wait_for(lambda: "ready", 0) == "ready"
    assert clock.sleeps == []
    with pytest.raises(TimeoutError, match=r"not within 2 s: a grant"):
        wait_for(lambda: False, 2, "a grant")
    assert clock.now == 102.0


def test_message_may_be_a_function_that_is_called_only_in_the_end(clock: Clock) -> None:
    calls: list[float] = []
    with pytest.raises(TimeoutError, match="late"):
        wait_for(lambda: None, 1, lambda: calls.append(clock.now) or "late")  # type: ignore[func-returns-value]
    assert calls == [101.0]


def test_an_error_of_the_predicate_ends_the_wait(clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 // 0, 5)
    assert clock.sleeps == []
