"""Exceptions out of nowhere: at every bytecode of a call, one after the other."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tests.unit.bytecodes import bounds_except, nothing_collected


class Struck(BaseException):
    """What a signal handler may raise, anywhere."""


def struck_at(step: int, call: Callable[[], object]) -> bool:
    """Make the call and raise at its bytecode number ``step``; False if it has fewer.

    Counted are all frames of Python below the call, of zklock and of the standard library.
    """
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if "site-packages" in frame.f_code.co_filename:
            return None  # another library's
        frame.f_trace_opcodes = True
        if event == "opcode" and not bounds_except(frame):
            left -= 1
            if left == 0:
                raise Struck
        return trace

    before = sys.gettrace()
    with warnings.catch_warnings(), nothing_collected():
        # A file is closed by the end of its owner, and a coroutine may be struck before its start.
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        # Python 3.12 asks when tracing begins whether any frame wants its bytecodes traced.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(trace)
        try:
            call()
        except Struck:
            pass
        finally:
            sys.settrace(before)
    return left <= 0


def strikes(call: Callable[[], object], *, stride: int = 1) -> Iterator[int]:
    """Strike the call at each of its bytecodes in turn; yield after each, until it gets through."""
    for step in itertools.count(1, stride):
        struck = struck_at(step, call)
        yield step
        if not struck:
            return
