"""The clock of leases: seconds since boot, asleep or awake, whatever the time of day is."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import zklock

FILE = Path(zklock.__file__).parent / "_ground" / "clock.py"
AWAKE, ASLEEP = 100.0, 5000.0
"""Seconds since boot: that the machine was awake, and that it was suspended."""


class Times:
    """Stands in for the module ``time``, for what is loaded in the test."""

    CLOCK_BOOTTIME = 7

    def __init__(self) -> None:
        self.of_day = 1e9

    def clock_gettime(self, which: int) -> float:
        return AWAKE + ASLEEP if which == self.CLOCK_BOOTTIME else self.of_day

    def monotonic(self) -> float:
        return AWAKE

    def time(self) -> float:
        return self.of_day


class TimesElsewhere(Times):
    def __getattribute__(self, name: str) -> object:
        if name == "CLOCK_BOOTTIME":
            raise AttributeError(name)
        return super().__getattribute__(name)


def load(times: Times, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Return the clock as it is on a system with these times."""
    monkeypatch.setitem(sys.modules, "time", times)
    clock: Callable[[], float] = runpy.run_path(str(FILE))["clock"]
    monkeypatch.undo()
    return clock


def test_the_time_of_a_suspension_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(Times(), monkeypatch)() == AWAKE + ASLEEP


def test_a_jump_of_the_time_of_day_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times()
    clock = load(times, monkeypatch)
    before = clock()
    times.of_day += 3600.0
    assert clock() == before


def test_where_no_clock_counts_a_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(TimesElsewhere(), monkeypatch)() == AWAKE
