"""Exceptions out of nowhere: those that a signal handler raises."""

from __future__ import annotations

import sys
import threading
from socket import socket
from typing import TypeVar

E = TypeVar("E", bound=BaseException)
_WITHIN = {__name__.partition(".")[0], "asyncio"}


def may_be_interrupted() -> bool:
    """Whether an exception may have been raised here by a signal handler.

    Python runs the handlers on the main thread, between any two steps of it. What they raise may be
    of any class: ``KeyboardInterrupt``, or the ``Exception`` of a time limit. So the code that
    catches ``Exception``, because nothing of ours may end a thread of kazoo's, must not do so on
    the main thread.
    """
    return threading.get_ident() == threading.main_thread().ident


def raised_by_zklock(*kinds: type[E]) -> tuple[type[E], ...]:
    """Return ``kinds``, or none of them if a signal handler raised the error that is under way.

    It stands behind ``except``. A handler may call zklock, and raise what that raises, such as
    ``LockLost``. For the code that it has struck, this is an interrupt, and no outcome. The
    traceback shows it: there is a frame that is neither zklock's nor asyncio's.
    """
    error = sys.exception() if may_be_interrupted() else None
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _WITHIN:
            return ()
        trace = trace.tb_next
    return kinds


def raised_by_the_call(error: BaseException) -> bool:
    """Whether the system call raised it that is made in the ``try`` which has caught it.

    Else a signal handler did: it has a frame of its own, which the traceback shows. Methods of
    sockets in Python, such as those of ``ssl``, have frames, too.
    """
    trace = error.__traceback__
    within = trace.tb_next if trace is not None else None
    while within is not None and isinstance(within.tb_frame.f_locals.get("self"), socket):
        within = within.tb_next
    return within is None
