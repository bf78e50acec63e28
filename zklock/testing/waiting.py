"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from zklock._ground.clock import clock

T = TypeVar("T")


def wait_for(
    predicate: Callable[[], T | None],
    timeout: float = 10.0,
    message: str | Callable[[], str] = "condition",
    *,
    interval: float = 0.02,
) -> T:
    """Call ``predicate`` until it returns something true, and return that.

    ``timeout`` and ``interval`` are seconds. The predicate is called at least once, and once more
    at the deadline. Then ``TimeoutError`` is raised with ``message``. This may be a function, which
    is called only then. An exception of the predicate ends the wait at once.
    """
    deadline = clock() + timeout
    while True:
        last_look = clock() >= deadline
        if value := predicate():
            return value
        if last_look:
            text = message() if callable(message) else message
            raise TimeoutError(f"not within {timeout:g} s: {text}")
        time.sleep(max(0.0, min(interval, deadline - clock())))
