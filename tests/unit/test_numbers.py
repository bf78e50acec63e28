"""The one check of numbers: what fits, and the exact words of its errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import zklock
from zklock import FencingToken
from zklock._election.options import check_retry
from zklock._ground.clock import check_timeout
from zklock._ground.numbers import check_int, check_number, is_number
from zklock._locks.kinds import check_permits
from zklock._recipes.names import EXHAUSTED_AT
from zklock._shell.connect import new_client


def error(call: Callable[[], object]) -> str:
    """Return what the call raises, as one line."""
    try:
        call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it raised nothing")


@pytest.mark.parametrize(
    ("value", "least", "most"), [(0, 0, None), (7, 0, None), (1, 1, 7), (7, 1, 7), (-3, None, None)]
)
def test_integers_that_fit(value: int, least: int | None, most: int | None) -> None:
    assert check_int("n", value, least, most) == value


def test_a_member_of_an_enum_becomes_a_plain_integer() -> None:
    class Limit(int, Enum):  # formatted as "Limit.FEW"
        FEW = 3

    assert f"{check_permits('limit', Limit.FEW)}" == "3"


@pytest.mark.parametrize(
    ("value", "least", "most", "said"),
    [
        (True, 0, None, "TypeError: n must be an int, not bool"),
        ("7", 0, None, "TypeError: n must be an int, not str"),
        (7.0, 0, None, "TypeError: n must be an int, not float"),
        (None, None, None, "TypeError: n must be an int, not NoneType"),
        (-1, 0, None, "ValueError: n must be at least 0, not -1"),
        (0, 1, 7, "ValueError: n must be 1 to 7, not 0"),
        (8, 1, 7, "ValueError: n must be 1 to 7, not 8"),
    ],
)
def test_integers_that_do_not(value: Any, least: int | None, most: int | None, said: str) -> None:
    assert error(lambda: check_int("n", value, least, most)) == said


@pytest.mark.parametrize(
    ("value", "fits"),
    [(0, True), (-1.5, True), (math.nan, True), (True, False), ("1", False), (None, False)],
)
def test_what_a_number_is(value: object, fits: bool) -> None:
    assert is_number(value) is fits


def test_an_integer_beyond_all_floats_is_infinite() -> None:
    assert check_number("grace", 10**5000, "seconds", lambda it: it >= 0, "0 or more") == math.inf
    assert check_timeout(10**5000) is None


@pytest.mark.parametrize("value", [0, 0.5, 3, math.inf])
def test_numbers_that_fit(value: float) -> None:
    number = check_number("grace", value, "seconds", lambda it: it >= 0, "0 or more")
    assert number == value
    assert type(number) is float


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (False, "TypeError: grace must be seconds, not bool"),
        ("1", "TypeError: grace must be seconds, not str"),
        (1j, "TypeError: grace must be seconds, not complex"),
        (-0.5, "ValueError: grace must be 0 or more, not -0.5"),
        (math.nan, "ValueError: grace must be 0 or more, not nan"),
        (-(10**400), "ValueError: grace must be 0 or more, not -inf"),
    ],
)
def test_numbers_that_do_not(value: Any, said: str) -> None:
    assert (
        error(lambda: check_number("grace", value, "seconds", lambda it: it >= 0, "0 or more"))
        == said
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: check_timeout("1"), "TypeError: a timeout must be seconds or None, not str"),
        (lambda: check_timeout(-1), "ValueError: a timeout must be 0 seconds or more, not -1"),
        (lambda: check_retry((0, 1)), "ValueError: retry must be above 0 seconds, not 0"),
        (
            lambda: check_retry(("1", 1)),
            "TypeError: retry must be a number of seconds, not str",
        ),
        (
            lambda: new_client("none:1", 0.0),
            "ValueError: timeout must be more than 0 seconds, not 0.0",
        ),
        (
            lambda: new_client("none:1", math.inf),
            "ValueError: timeout must be at most 2147483 seconds, not inf",
        ),
        (
            lambda: check_permits("limit", 0),
            f"ValueError: limit must be 1 to {EXHAUSTED_AT - 1}, not 0",
        ),
        (
            lambda: FencingToken(-1, 0),
            f"ValueError: epoch must be 0 to {2**63 - 1}, not -1",
        ),
        (
            lambda: FencingToken(0, True),
            "TypeError: sequence must be an int, not bool",
        ),
    ],
)
def test_what_users_read(call: Callable[[], object], said: str) -> None:
    assert error(call) == said


def test_no_module_checks_the_type_of_a_number_by_itself() -> None:
    root = Path(zklock.__file__).parent
    own = re.compile(
        r"isinstance\([\w.]+, bool\) (?:or|and)|and not isinstance\([\w.]+, bool\)"
        r"|type\([\w.]+\) (?:not )?(?:in|is|==|!=)[ {(]*(?:int|float)\b"
    )
    assert {
        str(path.relative_to(root)) for path in root.rglob("*.py") if own.search(path.read_text())
    } == {"_ground/numbers.py"}
