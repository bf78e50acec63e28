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


class Limit(int, Enum):  # formatted as "Limit.FEW"
    FEW = 3


def whole(value: Any, least: int | None = 0, most: int | None = None) -> int:
    return check_int("n", value, least, most)


def grace(value: Any) -> float:
    return check_number("grace", value, "seconds", lambda it: it >= 0, "0 or more")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (whole(0), 0),
        (whole(7), 7),
        (whole(1, 1, 7), 1),
        (whole(7, 1, 7), 7),
        (whole(-3, None), -3),
        (f"{check_permits('limit', Limit.FEW)}", "3"),
        *((grace(value), float(value)) for value in (0, 0.5, 3, math.inf)),
        (grace(10**5000), math.inf),  # beyond all floats
        (check_timeout(10**5000), None),
        (is_number(0), True),
        (is_number(-1.5), True),
        (is_number(math.nan), True),
        (is_number(True), False),
        (is_number("1"), False),
        (is_number(None), False),
    ],
)
def test_what_fits(found: object, wanted: object) -> None:
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: whole(True), "TypeError: n must be an int, not bool"),
        (lambda: whole("7"), "TypeError: n must be an int, not str"),
        (lambda: whole(7.0), "TypeError: n must be an int, not float"),
        (lambda: whole(None, None), "TypeError: n must be an int, not NoneType"),
        (lambda: whole(-1), "ValueError: n must be at least 0, not -1"),
        (lambda: whole(0, 1, 7), "ValueError: n must be 1 to 7, not 0"),
        (lambda: whole(8, 1, 7), "ValueError: n must be 1 to 7, not 8"),
        (lambda: grace(False), "TypeError: grace must be seconds, not bool"),
        (lambda: grace("1"), "TypeError: grace must be seconds, not str"),
        (lambda: grace(1j), "TypeError: grace must be seconds, not complex"),
        (lambda: grace(-0.5), "ValueError: grace must be 0 or more, not -0.5"),
        (lambda: grace(math.nan), "ValueError: grace must be 0 or more, not nan"),
        (lambda: grace(-(10**400)), "ValueError: grace must be 0 or more, not -inf"),
        (lambda: check_timeout("1"), "TypeError: a timeout must be seconds or None, not str"),
        (lambda: check_timeout(-1), "ValueError: a timeout must be 0 seconds or more, not -1"),
        (lambda: check_retry((0, 1)), "ValueError: retry must be above 0 seconds, not 0"),
        (lambda: check_retry(("1", 1)), "TypeError: retry must be a number of seconds, not str"),
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
        (lambda: FencingToken(-1, 0), f"ValueError: epoch must be 0 to {2**63 - 1}, not -1"),
        (lambda: FencingToken(0, True), "TypeError: sequence must be an int, not bool"),
    ],
)
def test_what_users_read(call: Callable[[], object], said: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        call()
    assert f"{raised.type.__name__}: {raised.value}" == said


def test_no_module_checks_the_type_of_a_number_by_itself() -> None:
    root = Path(zklock.__file__).parent
    own = re.compile(
        r"isinstance\([\w.]+, bool\) (?:or|and)|and not isinstance\([\w.]+, bool\)"
        r"|type\([\w.]+\) (?:not )?(?:in|is|==|!=)[ {(]*(?:int|float)\b"
    )
    assert {
        str(path.relative_to(root)) for path in root.rglob("*.py") if own.search(path.read_text())
    } == {"_ground/numbers.py"}
