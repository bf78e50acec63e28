"""The one check of the numbers that users pass in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def check_int(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Return an integer in this range, both ends included; else ``TypeError``, ``ValueError``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(name, value, "an int")
    if (least is not None and value < least) or (most is not None and value > most):
        which = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} must be {which}, not {value}")
    return int(value)  # a member of an enum may be formatted as something else


def check_number(
    name: str, value: object, what: str, fits: Callable[[float], bool], which: str
) -> float:
    """Return a number that fits, as a ``float``; else ``TypeError`` or ``ValueError``.

    ``what`` and ``which`` say in the message of each error what it must be. NaN fits nothing, so
    write ``fits`` without a negation. An integer that is too large for a ``float`` is infinite.
    """
    if not is_number(value):
        raise _wrong(name, value, what)
    number: Any = value
    try:
        found = float(number)
    except OverflowError:  # an int beyond all floats: too long to be shown, too
        number = found = math.inf if number > 0 else -math.inf
    if not fits(found):
        raise ValueError(f"{name} must be {which}, not {number}")
    return found


def is_number(value: object, kind: Any = int | float) -> bool:
    """Whether it is a number of that kind; a ``bool`` is none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _wrong(name: str, value: object, what: str) -> TypeError:
    return TypeError(f"{name} must be {what}, not {type(value).__name__}")
