"""The options of elections, which pools have, too: how they are checked, and what they mean."""

from __future__ import annotations

import math
import os
import random
import socket
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from zklock._ground.numbers import check_number
from zklock._locks.base import check_identity

MAX_PAYLOAD = 16384
"""The size limit of a payload, in bytes."""


def member_identity(identity: Any) -> str:
    """Return a member's identity; the default is ``host:pid:`` and a random part."""
    default = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    return check_identity(identity) or default


def pause_after(
    failures: int,
    retry: tuple[float, float],
    between: Callable[[float, float], float] = random.uniform,
) -> float:
    """Return the pause after this many failures in a row, in seconds. It doubles, up to a limit.

    The result is random, between half of that pause and all of it, so that members do not fail
    in step.
    """
    first, longest = retry
    whole = min(longest, first * 2.0 ** min(failures - 1, 64))
    return between(whole / 2, whole)


def check_payload(payload: Any) -> bytes:
    """Return a valid payload, as bytes; ``TypeError`` or ``ValueError`` if it is none."""
    if isinstance(payload, str):
        try:
            payload = payload.encode()
        except UnicodeEncodeError:
            raise ValueError("payload must be UTF-8 text, or bytes") from None
    if not isinstance(payload, bytes):
        raise TypeError(f"payload must be bytes or str, not {type(payload).__name__}")
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"payload must have at most {MAX_PAYLOAD} bytes, not {len(payload)}")
    return payload


def check_seconds(name: str, value: Any) -> float:
    """Return a number of seconds above 0; ``TypeError`` or ``ValueError`` if it is none."""
    return check_number(name, value, "a number of seconds", lambda it: it > 0, "above 0 seconds")


def check_retry(retry: Any) -> tuple[float, float]:
    """Return the first and the longest pause; ``TypeError`` or ``ValueError`` if not valid."""
    if not isinstance(retry, tuple | list) or len(retry) != 2:
        raise TypeError(f"retry must be a pair of seconds, (first, longest), not {retry!r}")
    first, longest = map(partial(check_seconds, "retry"), retry)
    if not first <= longest < math.inf:
        raise ValueError(f"retry must be (first, longest) with first <= longest, not {retry}")
    return first, longest
