"""The threads that run users' callbacks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeAlias

from zklock._core import callbacks
from zklock._ground import threads
from zklock._ground.process import this_process
from zklock._ground.records import log_fields
from zklock._telemetry.subscriptions import in_child

log = logging.getLogger("zklock")

FEWEST = 2
"""Threads that exist from the client's start on: if a callback hangs on one, there is another."""

MOST = 32
"""The most threads at a time for callbacks that take long; later callbacks wait."""

_IDLE = 5.0
"""Seconds that a thread beyond ``FEWEST`` waits for work before it ends."""

Calls: TypeAlias = Sequence[Callable[[], object]]


class CallbackExecutor:
    """Runs callbacks on threads that exist already; they begin in the order given.

    ``run()`` takes no lock, and starts a thread only where there is none: in a forked child, or
    after the end. It may be called anywhere: under a lock, on a kazoo thread, in a signal handler.
    Before a thread runs a callback, it starts another thread if no thread is left for the next one.
    If none can be started, the next callback waits.

    Each operation on its collections is one step of C.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Calls | None] = SimpleQueue()
        self._threads: dict[object, None] = {}
        self._busy: dict[object, None] = {}
        self._over = False

    def start(self) -> None:
        """Start the threads for later callbacks; ``NoThread`` if they cannot be started."""
        for _ in range(FEWEST):
            self._start(lasting=True)

    def run(self, calls: Calls) -> None:
        """Run these callbacks soon, one after the other."""
        self._queue.put(calls)
        if self._threads:
            return
        try:
            self._start(lasting=False)
        except threads.NoThread as error:
            log.error(
                "callbacks are delayed: no thread can be started (%s)",
                error,
                extra=log_fields(),
            )

    def end(self) -> None:
        """Let the threads end when they have run all callbacks, now and from now on."""
        if not self._over:
            self._queue.put(None)  # first: else the last thread may end before a callback
            self._over = True

    def _start(self, *, lasting: bool) -> None:
        me = object()
        self._threads[me] = None
        try:
            threads.start(self._serve, "zklock-callback", me, lasting)
        except BaseException:
            self._threads.pop(me, None)
            raise

    def _serve(self, me: object, lasting: bool) -> None:
        process = this_process()
        while True:
            # Here too: an interrupt may strike the starter once this thread runs.
            self._threads[me] = None
            while (calls := self._next(lasting)) is not None:
                self._busy[me] = None
                self._see_to_the_next()
                for call in calls:
                    callbacks.run(call)
                    if in_child(process):
                        return
                del self._busy[me], calls
            self._threads.pop(me, None)
            if self._threads or self._queue.qsize() <= self._over:
                return  # else a caller of run() believed that this thread goes on

    def _next(self, lasting: bool) -> Calls | None:
        """Wait for calls; ``None`` if this thread must end."""
        calls = None
        with contextlib.suppress(Empty):
            calls = self._queue.get(timeout=None if lasting else _IDLE)
            if calls is None:  # all threads end; but first the calls that came meanwhile
                self._over = True  # an interrupt may have struck whoever said so
                with contextlib.suppress(Empty):
                    while calls is None:
                        calls = self._queue.get_nowait()
                self._queue.put(None)
        return calls

    def _see_to_the_next(self) -> None:
        if len(self._busy) < len(self._threads) or len(self._threads) >= MOST:
            return
        try:
            self._start(lasting=False)
        except threads.NoThread as error:
            log.warning(
                "callbacks run one after the other: no thread can be started (%s)",
                error,
                extra=log_fields(),
            )
