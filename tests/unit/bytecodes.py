"""Where interrupts may strike between bytecodes, and what must not be struck meanwhile."""

from __future__ import annotations

import dis
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
