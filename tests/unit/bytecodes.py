"""An interrupt before each bytecode that a call runs in given modules of the library."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Struck(KeyboardInterrupt):
    """What a handler of SIGINT would raise."""


COPY, POP_EXCEPT, PUSH_EXC_INFO = (
    dis.opmap[name] for name in ("COPY", "POP_EXCEPT", "PUSH_EXC_INFO")
)


def bounds_except(frame: FrameType) -> bool:
    """Whether the handling of an exception begins or ends here. No signal handler runs there.

    An exception that was raised there would leave the one that is handled, and that would be the
    context of all that later tests raise.
    """
    code, at = frame.f_code.co_code, frame.f_lasti
    return code[at] in (PUSH_EXC_INFO, POP_EXCEPT) or code[at : at + 3 : 2] == bytes(
        (COPY, POP_EXCEPT)
    )


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Have no garbage collected meanwhile.

    What tests before have left would be struck as it ends. Python ignores what is raised there, and
    pytest would tell it of the test that runs.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Bytecodes:
    """Raises ``error`` before one of the bytecodes that a call runs in files that end so."""

    def __init__(self, *files: str, error: type[BaseException] = Struck) -> None:
        self.files = files
        self.error = error
        self.count = 0
        self.at = -1

    def __call__(self, frame: FrameType, what: str, arg: object) -> Any:
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        frame.f_trace_opcodes = True
        if what == "opcode" and not bounds_except(frame):
            self.count += 1
            if self.count == self.at:
                raise self.error
        return self

    def run(self, call: Callable[[], object], at: int = -1) -> bool:
        """Call; return whether it was struck."""
        self.count, self.at = 0, at
        before = sys.gettrace()
        # Python 3.12 asks when tracing begins whether any frame wants its bytecodes traced.
        sys._getframe().f_trace_opcodes = True
        with nothing_collected():
            sys.settrace(self)
            try:
                call()
            except self.error:
                return True
            finally:
                sys.settrace(before)
        return False
