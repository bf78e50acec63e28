"""The environment of a command, and the variables that tell it which lock it runs under."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PATH_VARIABLE = "ZKLOCK_PATH"
TOKEN_VARIABLE = "ZKLOCK_TOKEN"
HELD_VARIABLE = "ZKLOCK_HELD"

_COERCED = "LC_CTYPE"


def given() -> dict[str, str]:
    """Return the environment, without the locale that Python gives itself in place of ``C``.

    That needs ``/proc``; elsewhere the locale stays. (PEP 538.)
    """
    found = dict(os.environ)
    if found.get(_COERCED) in {"C.UTF-8", "C.utf8", "UTF-8"}:
        with contextlib.suppress(OSError):
            begun = Path("/proc/self/environ").read_bytes().split(b"\0")
            del found[_COERCED]
            for name, _, value in (entry.partition(b"=") for entry in begun):
                if name == _COERCED.encode():
                    found[_COERCED] = os.fsdecode(value)
    return found
