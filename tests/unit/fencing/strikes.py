"""Exceptions out of nowhere: at every bytecode of a call, one after the other."""

from __future__ import annotations

import itertools
import signal
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


def interrupted(call: Callable[[], object], then: Callable[[], object], step: float) -> None:
    """Strike the call by a signal handler, after 1 to 50 steps of seconds; do ``then`` each time.

    Where the exception is caught its traceback lives, with all that its frames refer to.
    """

    def interrupt(*_: object) -> None:
        raise Struck

    struck = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for attempt in range(500):
            try:
                signal.setitimer(signal.ITIMER_REAL, step * (attempt % 50 + 1))
                try:
                    call()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Struck:
                struck += 1
                then()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert struck > 100
