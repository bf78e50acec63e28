"""Who is left out for a while after crashes, and for how long."""

from __future__ import annotations

import pytest

from zklock._pool.newcomers import LONGEST, MEMORY, Newcomers

UNIT = 4.0


def crash(some: Newcomers, name: str, at: float, kin: str = "k") -> float:
    """Have a worker come and crash after ten seconds; return for how long it was left out."""
    some.came(name, kin, at, UNIT)
    due = some.next_due(at)
    some.left(name, True, at + 10.0, UNIT)
    return 0.0 if due is None else due - at


@pytest.mark.hazard("H43")
def test_every_crash_in_a_row_doubles_the_wait() -> None:
    some = Newcomers()
    waits = [crash(some, f"{number}", 20.0 * number) / UNIT for number in range(10)]
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 32, 32]
    assert max(waits) == LONGEST


def test_crashes_are_counted_by_kin() -> None:
    some = Newcomers()
    for number in range(5):
        crash(some, "a", 20.0 * number)
    assert crash(some, "b", 100.0, "another") == 0
    assert crash(some, "c", 100.0) == 8 * UNIT


def test_what_crashes_together_counts_once() -> None:
    some = Newcomers()
    for name in "abcdef":
        some.came(name, "k", 0.0, UNIT)
    for name in "abcdef":
        some.left(name, True, 10.0, UNIT)
    assert crash(some, "g", 20.0) == 0


def test_crashes_are_forgotten() -> None:
    some = Newcomers()
    for number in range(5):
        crash(some, "a", 20.0 * number)
    later = 90.0 + MEMORY * UNIT
    some.came("a", "k", later + 0.1, UNIT)
    assert some.waiting(later + 0.1) == set()


def test_who_is_here_is_left_alone() -> None:
    some = Newcomers()
    some.came("old", "k", 0.0, UNIT)
    for number in range(5):
        crash(some, "a", 20.0 * number)
    some.came("old", "k", 200.0, UNIT)
    assert some.waiting(200.0) == set()


def test_who_is_admitted_waits_no_more() -> None:
    some = Newcomers()
    for number in range(5):
        crash(some, "a", 20.0 * number)
    some.came("a", "k", 100.0, UNIT)
    some.came("b", "k", 100.0, UNIT)
    assert some.waiting(100.0) == {"a", "b"}
    some.admit({"a", "unknown"})
    assert some.waiting(100.0) == {"b"}
    assert some.next_due(100.0) == pytest.approx(100.0 + 8 * UNIT)
    assert some.next_due(200.0) is None


def test_what_is_remembered_is_bounded() -> None:
    some = Newcomers()
    for number in range(10_000):
        crash(some, "a", 20.0 * number, f"{number}")
    assert len(some._records) <= 4096


def test_another_term_begins_without_anybody() -> None:
    some = Newcomers()
    crash(some, "a", 0.0)
    crash(some, "a", 20.0)
    some.came("a", "k", 40.0, UNIT)
    some.begin()
    assert some.waiting(40.0) == set()
    some.came("a", "k", 41.0, UNIT)
    assert some.next_due(41.0) == 41.0 + UNIT
