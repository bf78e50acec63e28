"""The one check of the numbers that users pass in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def check_int(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Return an integer in this range, both ends included; else ``TypeError``, ``ValueError``."""
    number: int = _checked(name, value, int, "an int")
    if (least is not None and number < least) or (most is not None and number > most):
        which = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} must be {which}, not {number}")
    return number


def check_number(
    name: str, value: object, what: str, fits: Callable[[float], bool], which: str
) -> float:
    """Return a number that fits, as a ``float``; else ``TypeError`` or ``ValueError``.

    ``what`` and ``which`` say in the message of each error what it must be. NaN fits nothing, so
    write ``fits`` without a negation.
    """
    number = _checked(name, value, int | float, what)
    if not fits(number):
        raise ValueError(f"{name} must be {which}, not {number}")
    return float(number)


def is_number(value: object, kind: Any = int | float) -> bool:
    """Whether it is a number of that kind; a ``bool`` is none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _checked(name: str, value: object, kind: Any, what: str) -> Any:
    if not is_number(value, kind):
        raise TypeError(f"{name} must be {what}, not {type(value).__name__}")
    return value
