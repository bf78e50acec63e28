"""The clock of leases: seconds since boot, asleep or awake, whatever the time of day is."""

from __future__ import annotations

import fcntl
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import zklock
from zklock._core.attempt import Pending
from zklock.fencing import FileGuard, MemoryGuard

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


@pytest.mark.parametrize("which", ["an acquire", "a guard in memory", "a guard of a file"])
def test_timeouts_end_while_a_test_has_frozen_the_time(
    which: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As freezegun does."""
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: 0.0)
    token = zklock.FencingToken(7, 33)
    if which == "an acquire":
        assert not Pending[None](zklock.Handler().session).wait(0.02)
    elif which == "a guard in memory":
        guard = MemoryGuard("report", timeout=0.02)
        with guard.hold(token), pytest.raises(zklock.NoAnswer):
            guard.claim(token)
    else:
        file = FileGuard(tmp_path / "report", timeout=0.02)
        file.create()
        with (tmp_path / "report.fence").open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(zklock.NoAnswer):
                file.claim(token)
