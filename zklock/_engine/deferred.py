"""What a change under a lock leaves to be done after it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable

from zklock._ground.interrupts import may_be_interrupted
from zklock._ground.records import log_fields

log = logging.getLogger("zklock")


_done_twice = contextlib.suppress(ValueError)


class _Running(threading.local):
    """Whether this thread runs them. One may call ``run()``: through a user's log handler."""

    on = False


class Deferred:
    """Calls that wait until the lock is free.

    A call is kept until it has run to its end. If an interrupt strikes in between, the next one
    runs it again. On the main thread, every error may be an interrupt. Two threads may run one call
    at the same time. So a call must be harmless when it is repeated. ``run()`` returns when
    everything that was there is done, by whichever thread. Nothing here takes a lock.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._running = _Running()

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, call: Callable[[], object]) -> None:
        """Have this called after the change."""
        self._calls.append(call)

    def run(self) -> None:
        """Do everything; call this without the lock. An error of one call stops no other."""
        if not self._calls or self._running.on:
            return
        try:
            self._running.on = True
            self._run()
        finally:
            self._running.on = False

    def _run(self) -> None:
        while self._calls:
            try:
                call = self._calls[0]
            except IndexError:
                break  # another thread has done the last one
            try:
                call()
            except Exception:
                if may_be_interrupted():
                    raise
                log.exception(
                    "zklock continues after an error in a follow-up action", extra=log_fields()
                )
            with _done_twice:  # another thread has done it, too
                self._calls.remove(call)
