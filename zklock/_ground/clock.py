"""The one clock for leases, and the check of timeouts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from zklock._ground.numbers import check_number

clock: Callable[[], float]
"""Returns seconds since boot; the time while the machine was suspended counts."""

if hasattr(time, "CLOCK_BOOTTIME"):
    clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:
    clock = time.monotonic


def seconds_left(until: float | None, now: float) -> float | None:
    """Return the seconds from now until a time, 0 after it; ``None`` stands for no limit."""
    return None if until is None else max(0.0, until - now)


def check_timeout(timeout: Any) -> float | None:
    """Return a timeout that a thread can wait for; ``TypeError`` or ``ValueError`` otherwise."""
    if timeout is None:
        return None
    limit = check_number(
        "a timeout", timeout, "seconds or None", lambda it: it >= 0, "0 seconds or more"
    )
    return None if limit > threading.TIMEOUT_MAX else limit
