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
"""Threads that exist before the first grant: if a callback hangs on one, there is another."""

MOST = 32
"""The most threads at a time for callbacks that take long; later callbacks wait."""

_IDLE = 5.0
"""Seconds that a thread beyond ``FEWEST`` waits for work before it ends."""

Calls: TypeAlias = Sequence[Callable[[], object]]


class CallbackExecutor:
    """Runs callbacks on threads that exist already; they begin in the order given.

    ``run()`` takes no lock, and starts threads only if all have ended. It may be called anywhere:
    under a lock, on a kazoo thread, in a signal handler. Before a thread runs a callback, it starts
    another thread if no thread is left for the next one. If none can be started, the next callback
    waits.
    """

    def __init__(self) -> None:
        self._crews: dict[None, _Crew] = {}  # one at most; setdefault() is one step
        self._over = False

    def ready(self) -> None:
        """Start the threads for later callbacks; ``NoThread`` if they cannot be started."""
        self._crew().ready()
        if self._over:
            self.end()

    def run(self, calls: Calls) -> None:
        """Run these callbacks soon, one after the other."""
        crew = self._crew()
        crew.queue.put(calls)
        if not crew.threads:  # they had ended: there was no grant left to lose
            try:
                crew.ready()
            except threads.NoThread as error:
                log.error(
                    "callbacks are delayed: no thread can be started (%s)",
                    error,
                    extra=log_fields(),
                )
        if self._over:
            self.end()

    def end(self) -> None:
        """Let the threads end when they have run all callbacks, now and from now on."""
        self._over = True
        crew = self._crews.pop(None, None)
        if crew is not None:
            crew.queue.put(None)

    def _crew(self) -> _Crew:
        crew = self._crews.get(None)
        return self._crews.setdefault(None, _Crew()) if crew is None else crew


class _Crew:
    """Threads that begin and end together. Each operation on its collections is one step."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Calls | None] = SimpleQueue()
        self.threads: dict[object, None] = {}
        self._busy: dict[object, None] = {}

    def ready(self) -> None:
        """Start threads until there are ``FEWEST``."""
        for _ in range(len(self.threads), FEWEST):
            self._start(lasting=True)

    def _start(self, *, lasting: bool) -> None:
        me = object()
        self.threads[me] = None
        try:
            threads.start(self._serve, "zklock-callback", me, lasting)
        except BaseException:
            self.threads.pop(me, None)
            raise

    def _serve(self, me: object, lasting: bool) -> None:
        process = this_process()
        while True:
            # Here too: an interrupt may strike the starter once this thread runs.
            self.threads[me] = None
            while (calls := self._next(lasting)) is not None:
                self._busy[me] = None
                self._see_to_the_next()
                for call in calls:
                    callbacks.run(call)
                    if in_child(process):
                        return
                del self._busy[me], calls
            self.threads.pop(me, None)
            if self.threads or self.queue.qsize() < 2:
                return  # else a caller of run() believed that this thread goes on

    def _next(self, lasting: bool) -> Calls | None:
        """Wait for calls; ``None`` if this thread must end."""
        calls = None
        with contextlib.suppress(Empty):
            calls = self.queue.get(timeout=None if lasting else _IDLE)
            if calls is None:  # all threads end; but first the calls that came meanwhile
                with contextlib.suppress(Empty):
                    calls = self.queue.get_nowait()
                self.queue.put(None)
        return calls

    def _see_to_the_next(self) -> None:
        if len(self._busy) < len(self.threads) or len(self.threads) >= MOST:
            return
        try:
            self._start(lasting=False)
        except threads.NoThread as error:
            log.warning(
                "callbacks run one after the other: no thread can be started (%s)",
                error,
                extra=log_fields(),
            )
