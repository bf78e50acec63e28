"""An error that several raise, each a copy of it."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from zklock import AccessDenied, LimitMismatch
from zklock._ground.copy_error import copy_error
from zklock._recipes.effects import Failed, Failure


def raised(error: Exception) -> Exception:
    """Return the error as its user gets it."""
    try:
        raise error
    except type(error) as told:
        return told


def test_each_has_a_traceback_of_its_own() -> None:
    error = AccessDenied("no")
    told = [raised(copy_error(error)) for _ in range(5)]
    assert {len(traceback.extract_tb(each.__traceback__)) for each in told} == {1}
    assert error.__traceback__ is None


def test_it_says_the_same() -> None:
    cause = OSError("below")
    error = LimitMismatch("3, not 2", path="/lock")
    error.__cause__ = cause
    error.add_note("a note")
    mine: Any = copy_error(error)
    assert (type(mine), mine.args, mine.path) == (LimitMismatch, error.args, "/lock")
    assert mine.__cause__ is cause
    mine.add_note("another")
    assert mine.__notes__ == ["a note", "another"]
    assert vars(error)["__notes__"] == ["a note"]


class Odd(Exception):
    """It cannot be made from what it keeps."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one)


def test_one_that_cannot_be_copied_is_told_itself() -> None:
    error = Odd("one", "other")
    assert copy_error(error) is error


@pytest.mark.parametrize("busy", [False, True])
def test_a_failure_for_another_is_the_same_but_for_its_error(busy: bool) -> None:
    failure = Failed(Failure.DENIED, AccessDenied("no"), busy)
    other = failure.for_another()
    assert (other.why, other.busy, str(other.error)) == (Failure.DENIED, busy, "no")
    assert other.error is not failure.error
