"""The delays of ``make jitter``: where they strike, and how long they are in all."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests import jitter
from tests.jitter import Jitter
from zklock.token import FencingToken


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the delays, which take no time. Other threads sleep as ever."""
    slept: list[float] = []
    monkeypatch.setattr(jitter, "time", SimpleNamespace(sleep=slept.append))
    return slept


@contextmanager
def traced(trace: object) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(trace)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.setprofile(before)


def helper() -> None:
    """Return to the test."""


def delayed(left: float) -> None:
    """Return to a test often, with so many seconds of delays left."""
    it = Jitter(seed=1)
    it.left = left
    with traced(it.in_test):
        for _ in range(400):
            helper()


def test_a_test_is_delayed_where_calls_return_to_it(delays: list[float]) -> None:
    delayed(1000.0)
    assert 50 < len(delays) < 200
    assert 0 <= min(delays) < 0.001
    assert 0.05 < max(delays) <= 0.06


def test_all_delays_of_a_test_are_limited(delays: list[float]) -> None:
    delayed(0.1)
    assert 0.0999 < sum(delays) < 0.1001
    assert min(delays) >= 0


def test_other_threads_are_delayed_inside_zklock_alone(
    delays: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Jitter(seed=1)
    it.left = 1000.0
    monkeypatch.setattr(jitter, "_OFTEN", 100.0)
    counts = []

    def work() -> None:
        with traced(it.in_others):
            for _ in range(400):
                helper()
            counts.append(len(delays))
            for number in range(400):
                str(FencingToken(1, number))
            counts.append(len(delays))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert counts[0] == 0
    assert counts[1] > 20


def test_the_sleep_of_a_thread_that_no_test_owns_is_no_delay(delays: list[float]) -> None:
    thread = threading.Thread(target=time.sleep, args=(0,))
    thread.start()
    thread.join()
    assert delays == []
