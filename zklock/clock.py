"""The one clock that leases are measured with, and what can be waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

clock: Callable[[], float]
"""Returns seconds since boot, counting those in which the machine was suspended."""

if hasattr(time, "CLOCK_BOOTTIME"):
    clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:
    clock = time.monotonic


def check_timeout(timeout: Any) -> float | None:
    """Return a timeout that can be waited for; ``TypeError`` or ``ValueError`` if it is none."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"a timeout must be seconds or None, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError(f"a timeout must not be negative: {timeout}")
    return None if timeout > threading.TIMEOUT_MAX else float(timeout)
