"""The clock that goes on by itself, for the contract tests on a simulation, fails aloud."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from tests.contract.simulated import FlowingClock
from tests.stopwatch import Stopwatch
from zklock.testing import Simulation, wait_for

SOON = 20.0


class Failing:
    """A simulation whose clock fails when it is told to."""

    def __init__(self) -> None:
        self.fails = threading.Event()
        self.moves = 0
        self.now = 0.0

    def advance(self, seconds: float) -> None:
        self.moves += 1
        if self.fails.is_set():
            self.fails.clear()
            raise RuntimeError("does not come to rest")


def clock_of(simulation: Failing) -> FlowingClock:
    return FlowingClock(cast(Simulation, simulation))


def reaches(look: Callable[[], bool]) -> None:
    """Wait by the real clock: that of ``wait_for`` is the one of the simulation."""
    until = time.monotonic() + SOON
    while not look():
        assert time.monotonic() < until, "it does not go on"
        time.sleep(0.001)


def goes_on(simulation: Failing) -> None:
    before = simulation.moves
    reaches(lambda: simulation.moves > before)


def test_what_waits_for_a_clock_that_fails_is_interrupted() -> None:
    simulation = Failing()
    clock = clock_of(simulation)
    with clock.flows():
        with pytest.raises(RuntimeError, match="does not come to rest") as raised, clock.watched():
            simulation.fails.set()
            assert not threading.Event().wait(SOON), "nobody sets it"
        assert "the clock of the simulation has failed" in str(raised.value.__context__)
        with clock.watched():
            goes_on(simulation)


def test_what_takes_the_failure_for_its_own_fails_in_the_end() -> None:
    simulation = Failing()
    clock = clock_of(simulation)
    taken: list[Any] = []
    with clock.flows(), pytest.raises(RuntimeError, match="does not come to rest"), clock.watched():
        try:
            simulation.fails.set()
            threading.Event().wait(SOON)
        except RuntimeError as error:
            taken.append(error)
    assert len(taken) == 1


def test_a_failure_between_two_tests_fails_the_next_one() -> None:
    simulation = Failing()
    clock = clock_of(simulation)
    with clock.flows():
        simulation.fails.set()
        reaches(lambda: not simulation.fails.is_set())
        goes_on(simulation)
        with pytest.raises(RuntimeError, match="does not come to rest"), clock.watched():
            pass


def test_patience_lasts_until_the_clock_has_moved_as_far() -> None:
    simulation = Failing()
    looks: list[float] = []

    def look() -> bool:
        looks.append(simulation.now)
        return False

    with clock_of(simulation).flows(), ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(wait_for, look, 0.1, interval=0.02)
        for now in (0.0, 0.05, 0.09):
            simulation.now = now
            reaches(lambda now=now: looks.count(now) >= 20)  # type: ignore[misc]
        assert not waiting.done()
        simulation.now = 0.1
        with pytest.raises(TimeoutError, match=r"not within 0\.1 s"):
            waiting.result(SOON)
    assert looks[-1] == 0.1


def test_a_stopwatch_is_awake_as_long_as_the_clock_goes() -> None:
    simulation = Failing()
    with clock_of(simulation).flows():
        with Stopwatch() as watch:
            assert watch.awake == 0.0
            simulation.now = 0.04
            reaches(lambda: watch.total >= 0.1)
        simulation.now = 9.0
        assert watch.awake == 0.04
        assert watch.total < SOON


def test_the_clock_of_others_is_the_real_one_afterwards() -> None:
    with clock_of(Failing()).flows():
        pass
    with Stopwatch() as watch, pytest.raises(TimeoutError):
        wait_for(lambda: False, 0.01)
    assert watch.awake > 0
