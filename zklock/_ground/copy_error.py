"""An error that several raise, each a copy of it."""

from __future__ import annotations

import copy
from typing import TypeVar

E = TypeVar("E", bound=Exception)


def copy_error(error: E) -> E:
    """Return a copy of an error, for one of several who raise it.

    Whoever raises an error adds to its traceback, and perhaps notes. So one error for a thousand
    waiters would have a thousand tracebacks, and each of them would show all. An error that cannot
    be copied is returned itself.
    """
    try:
        mine = copy.copy(error)
    except Exception:  # its class takes other arguments than it keeps
        return error
    mine.__cause__ = error.__cause__
    if hasattr(error, "__notes__"):
        mine.__notes__ = list(error.__notes__)
    return mine
