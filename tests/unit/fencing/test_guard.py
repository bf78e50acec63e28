from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from kazoo.client import KazooClient

from zklock import fencing
from zklock.errors import GuardUnusable, LockLost, NotHeld, StaleToken
from zklock.fencing.guard import admit, carried_by, parse_mark, resource_name, token_of
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)


class Carrier:
    token = A


class Ended(Carrier):
    held = False

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [LockLost("lost"), NotHeld("released")])
def test_a_grant_that_is_over_is_refused_in_its_own_words(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        token_of(Ended(error))
    assert caught.value is error
    assert carried_by(Ended(error)) is A


def test_what_says_no_more_than_that_it_is_not_held_is_lost() -> None:
    class Silent(Carrier):
        held = False

    for carrier in (Silent(), Ended()):
        with pytest.raises(LockLost, match=f"^token {A} is not held any more: stop its work") as it:
            token_of(carrier)
        assert it.value.token is A


@pytest.mark.parametrize("value", [33, "33", str(A), None, True, 3.0, (7, 33), object()])
def test_anything_else_is_a_type_error_that_says_why(value: Any) -> None:
    assert (token_of(A), token_of(Carrier())) == (A, A)
    with pytest.raises(TypeError) as caught:
        token_of(value)
    assert str(caught.value) == (
        f"a guard takes a FencingToken or a grant, not {type(value).__name__}: "
        "a bare sequence number restarts when the lock's parent znode is re-created"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda timeout: fencing.FileGuard("report", timeout=timeout),
        lambda timeout: fencing.MemoryGuard("report", timeout=timeout),
        lambda timeout: fencing.MemoryGuards(timeout=timeout),
        lambda timeout: fencing.ZooKeeperGuard(KazooClient(), "/report", timeout=timeout),
    ],
    ids=["FileGuard", "MemoryGuard", "MemoryGuards", "ZooKeeperGuard"],
)
def test_a_timeout_is_checked_when_a_guard_is_made(make: Callable[[Any], object]) -> None:
    for value in ("10", True):
        with pytest.raises(TypeError, match="timeout must be seconds"):
            make(value)
    for number in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout must be"):
            make(number)
    make(float("inf"))


def test_admit() -> None:
    assert admit("r", A, None)
    assert admit("r", B, A)
    assert not admit("r", A, A)
    with pytest.raises(StaleToken) as caught:
        admit("report", A, B)
    assert str(caught.value) == (
        "report: token 0000000000000007-0000000033 is stale, 0000000000000007-0000000034 has "
        "been seen: this grant is over; stop its work and acquire the lock again"
    )
    assert (caught.value.resource, caught.value.token, caught.value.highest) == ("report", A, B)


def test_marks_as_text() -> None:
    assert parse_mark("r", "w", b"none") is None
    assert parse_mark("r", "w", str(A)) == A
    for wrong in (b"", "", b"\xff", b"none\n", str(A).upper()[1:], str(A) + "0", "7-33"):
        with pytest.raises(GuardUnusable, match="the mark at w is not a token") as caught:
            parse_mark("r", "w", wrong)
        assert caught.value.resource == "r"


@pytest.mark.parametrize("name", ["", " a", "a ", "a\n", "a\0b", "x" * 256])
def test_unusable_names(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 255 printable"):
        resource_name(name)


def test_names_must_be_texts() -> None:
    with pytest.raises(TypeError, match="must be a str, not bytes"):
        resource_name(b"a")  # type: ignore[arg-type]
    assert resource_name("Übersicht 7") == "Übersicht 7"

    class Name(str, Enum):  # noqa: UP042 - a StrEnum is formatted as its value
        REPORT = "report"

    assert type(resource_name(Name.REPORT)) is str


def test_no_extra_is_needed_to_import() -> None:
    program = (
        "import sys\n"
        "for name in ('redis', 'sqlalchemy', 'psycopg', 'pymysql', 'boto3', 'hypothesis'):\n"
        "    sys.modules[name] = None\n"
        "import zklock.fencing, zklock.testing.guard_conformance\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
