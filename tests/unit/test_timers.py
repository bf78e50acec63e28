"""Jobs by the time at which they are due."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st

from zklock._core.timers import Timers


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=30), st.integers(0, 20))
def test_jobs_are_taken_in_order_once_unless_they_were_called_off(
    jobs: list[tuple[int, bool]], now: int
) -> None:
    timers, ran = Timers(), list[int]()
    for number, (due, off) in enumerate(jobs):
        call_off = timers.at(due, lambda number=number: ran.append(number))  # type: ignore[misc]
        if off:
            call_off()
    wanted = [(due, number) for number, (due, off) in enumerate(jobs) if not off]
    assert timers.due == min((due for due, _ in wanted), default=math.inf)
    for until in (now, 20):
        for job in timers.take(until):
            job()
        assert ran == [number for due, number in sorted(wanted) if due <= until]


def test_what_is_called_off_does_not_stay() -> None:
    timers = Timers()
    far = timers.at(1e9, print)
    for _ in range(10_000):
        timers.at(1e6, print)()
    assert len(timers._heap) < 300
    far()
    far()
    assert timers.due == math.inf
