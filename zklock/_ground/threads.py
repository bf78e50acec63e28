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


def start(target: Callable[..., object], name: str, *args: object) -> None:
    """Call on a new daemon thread; ``RuntimeError`` if none can be started.

    While the interpreter shuts down, none can. Python 3.11 would wait for ever there: a finalizer
    may be what needs the thread, or a generator that nobody has ended.
    """
    if sys.is_finalizing():
        raise RuntimeError("can't start new thread: the interpreter shuts down")
    context: dict[str, Any] = {"context": Context()} if sys.version_info >= (3, 14) else {}
    begin(threading.Thread(target=target, args=args, name=name, daemon=True, **context))


def begin(thread: threading.Thread) -> None:
    """Start the thread. What a signal handler raises meanwhile arrives as it is.

    If an ``Exception`` strikes once the thread runs, ``Thread.start()`` forgets the thread as one
    that was not started, a second time, and a ``KeyError`` takes the place of the exception.
    """
    try:
        return thread.start()
    except KeyError as error:
        struck = error.__context__
        if error.args != (thread,) or struck is None:
            raise
    try:
        raise struck
    finally:
        del struck  # it has this frame: a circle
