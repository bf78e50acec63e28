"""An event that signal handlers and kazoo's threads can set."""

from __future__ import annotations

import math
import threading

from zklock._ground.clock import clock

TURN = 1.0
"""The longest single wait of a thread, in seconds: Python misses a signal that arrives just before
the thread begins to wait."""


class Event(threading.Event):
    """A ``threading.Event`` that takes no lock.

    ``threading.Event`` takes a lock in Python code. A signal handler that sets the event may have
    interrupted the thread that has this lock: the handler would wait for ever. An interrupt may
    leave the lock taken: a later ``set()`` would block.
    """

    def __init__(self) -> None:  # what that of threading makes is not needed
        self._set = False
        self._waiting: dict[threading.Lock, None] = {}

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        """Set it, and wake all who wait."""
        self._set = True
        self.wake()

    def wake(self) -> None:
        """Wake all who wait; unless it is set, they are told that it is not."""
        while self._waiting:
            try:
                waiting, _ = self._waiting.popitem()
            except KeyError:
                return  # another thread wakes the last one
            waiting.release()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for at most ``timeout`` seconds; return whether it is set."""
        if self._set:
            return True
        end = math.inf if timeout is None else clock() + timeout
        woken = threading.Lock()
        woken.acquire()
        self._waiting[woken] = None
        try:
            return self._wait(woken, end)
        finally:
            self._waiting.pop(woken, None)

    def _wait(self, woken: threading.Lock, end: float) -> bool:
        # A set() after this check finds the lock.
        while not self._set and (left := end - clock()) > 0:
            if woken.acquire(timeout=min(left, TURN)):
                break
        return self._set

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'set' if self._set else 'unset'}>"
