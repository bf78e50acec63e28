"""Threads that do not see the context variables of whoever happened to start them.

They are started by the first who needs them, serve everybody, and last. Where there is no global
lock, Python 3.14 would give them a copy of that first one's context: users' callbacks would see its
variables, an OpenTelemetry span among them, and keep alive what these refer to.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

_LIMITS = "can't start new thread", "can't create new thread"
"""How Python's own errors begin. Any other ``RuntimeError`` may be a signal handler's."""

_UNLOCKED = "release unlocked lock"
"""Says the lock of a condition."""


class NoThread(RuntimeError):
    """No thread can be started: the system has no room for it, or the interpreter shuts down."""


def start(target: Callable[..., object], name: str, *args: object) -> None:
    """Call on a new daemon thread; ``NoThread`` if none can be started.

    While the interpreter shuts down, none can. Python 3.11 would wait for ever there: a finalizer
    may be what needs the thread, or a generator that nobody has ended.
    """
    if sys.is_finalizing():
        raise NoThread("can't start new thread: the interpreter shuts down")
    context: dict[str, Any] = {"context": Context()} if sys.version_info >= (3, 14) else {}
    begin(threading.Thread(target=target, args=args, name=name, daemon=True, **context))


def begin(thread: threading.Thread) -> None:
    """Start the thread; ``NoThread`` if it cannot be started.

    What a signal handler raises meanwhile arrives as it is. Another error may have taken its place:

    - ``KeyError``, if an ``Exception`` has struck once the thread runs: ``Thread.start()`` forgets
      the thread a second time, as one that was not started.
    - ``RuntimeError``, if anything has struck while ``Thread.start()`` waits for the thread to run:
      the lock of a condition is not taken at that moment, and is released nevertheless.
    """
    before = sys.exception()
    try:
        return thread.start()
    except (KeyError, RuntimeError) as error:
        struck = error.__context__
        if struck is before or struck is None or error.args not in ((thread,), (_UNLOCKED,)):
            if str(error).startswith(_LIMITS):
                raise NoThread(*error.args) from error
            raise
    try:
        raise struck
    finally:
        del struck  # it has this frame: a circle
