"""The clock that goes on by itself, for the contract tests on a simulation, fails aloud."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from tests.contract.simulated import FlowingClock
from zklock.testing import Simulation, wait_for

SOON = 20.0


class Failing:
    """A simulation whose clock fails when it is told to."""

    def __init__(self) -> None:
        self.fails = threading.Event()
        self.moves = 0

    def advance(self, seconds: float) -> None:
        self.moves += 1
        if self.fails.is_set():
            self.fails.clear()
            raise RuntimeError("does not come to rest")


def clock_of(simulation: Failing) -> FlowingClock:
    return FlowingClock(cast(Simulation, simulation))


def goes_on(simulation: Failing) -> None:
    before = simulation.moves
    wait_for(lambda: simulation.moves > before, SOON, "another move")


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
        wait_for(lambda: not simulation.fails.is_set(), SOON, "the failure")
        goes_on(simulation)
        with pytest.raises(RuntimeError, match="does not come to rest"), clock.watched():
            pass
