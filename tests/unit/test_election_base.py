from __future__ import annotations

from zklock._election.options import pause_after


def test_pauses_double_up_to_a_limit() -> None:
    longest = [pause_after(failures, (0.5, 30.0), max) for failures in range(1, 10)]
    assert longest == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    shortest = [pause_after(failures, (0.5, 30.0), min) for failures in (1, 7)]
    assert shortest == [0.25, 15.0]
    assert pause_after(10**6, (0.5, 30.0), max) == 30.0


def test_pauses_differ() -> None:
    pauses = {pause_after(3, (0.5, 30.0)) for _ in range(20)}
    assert len(pauses) > 1
    assert all(1.0 <= pause <= 2.0 for pause in pauses)
