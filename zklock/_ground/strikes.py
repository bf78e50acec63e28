"""Exceptions out of nowhere: those that a signal handler raises."""

from __future__ import annotations

import threading


def may_strike() -> bool:
    """Whether an exception may have been raised here by a signal handler.

    Python runs the handlers on the main thread, between any two steps of it. What they raise may be
    of any class: ``KeyboardInterrupt``, or the ``Exception`` of a time limit. So the code that
    catches ``Exception``, because nothing of ours may end a thread of kazoo's, must not do so on
    the main thread.
    """
    return threading.get_ident() == threading.main_thread().ident
