"""Exceptions out of nowhere: where a signal handler can raise, also inside other libraries."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.bytecodes import nothing_collected

THOUSANDS = pytest.param(3000, marks=pytest.mark.thorough("thousands of strikes"))


def leaves_open(test: Any) -> Any:
    """Mark a test whose libraries, when they are struck, leave sockets to the garbage collection.

    Python can only print what is raised there. PyMySQL's results are struck as they end, too.
    """
    test = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")(test)
    return pytest.mark.usefixtures("collected")(test)


class TimeLimit(Exception):
    """What a soft time limit raises, anywhere."""


class Interrupt(BaseException):
    """What is no ``Exception``, as ``KeyboardInterrupt``."""


class Moments:
    """Counts the moments of a call at which Python runs signal handlers; raises at one of them.

    These are the beginning of each function and the end of each call of C.
    """

    def __init__(self) -> None:
        self.count = 0
        self.at = -1
        self.error: BaseException | None = None

    def __call__(self, frame: object, what: str, arg: object) -> None:
        if what in {"call", "c_return"} and arg is not sys.setprofile:
            self.count += 1
            if self.count == self.at:
                error, self.error = self.error, None
                assert error is not None
                try:
                    raise error
                finally:
                    del error  # nothing keeps what it has passed

    def run(self, call: Callable[[], object], at: int = -1, error: Any = None) -> bool:
        """Call; return whether the error got through. Other errors pass."""
        self.count, self.at, self.error = 0, at, error or TimeLimit()
        del error  # nothing keeps what it passes
        with nothing_collected():
            try:
                sys.setprofile(self)
                call()
            except (TimeLimit, Interrupt):
                return True
            finally:
                sys.setprofile(None)
        return False


def strikes(
    calls: Callable[[int], object], number: int, *, seed: int = 0
) -> Iterator[tuple[int, bool]]:
    """Strike ``calls(turn)`` at a random moment, ``number`` times; yield the turn after each."""
    chance = random.Random(seed)
    moments = Moments()
    for turn in range(number):
        moments.run(lambda: calls(-1))
        at = chance.randrange(1, moments.count + 1)
        made = chance.choice([TimeLimit, Interrupt])
        yield turn, moments.run(lambda turn=turn: calls(turn), at, made())  # type: ignore[misc]
