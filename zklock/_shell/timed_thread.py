"""A thread that runs jobs, and does timed work when it is due."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from zklock._core.timers import Job
from zklock._ground import threads
from zklock._ground.clock import clock
from zklock._ground.records import log_fields

log = logging.getLogger("zklock")


class TimedThread:
    """Runs jobs in order, on one daemon thread that is started when it is first needed.

    ``turn()`` does the work that is due, and returns when to call it again: a time of ``clock``,
    ``math.inf`` for "when woken", or ``None`` for "never". After ``None`` the thread ends; the next
    job or wake-up starts it again.

    Giving it a job takes no lock, and may be done in a signal handler. If no thread can be started,
    the job is kept. The next job or wake-up tries again to start one, which then runs the job.
    """

    def __init__(self, name: str, turn: Callable[[], float | None]) -> None:
        self._name = name
        self._turn = turn
        # Not a Condition: an interrupt in the middle of entering one leaves it locked.
        self._inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._runs: dict[None, object] = {}  # the thread that runs; setdefault() is one step

    def later(self, job: Job) -> None:
        """Run the job soon."""
        self._inbox.put(job)
        self._start()

    def wake(self) -> None:
        """Call ``turn()`` now."""
        self._inbox.put(None)
        self._start()

    def ready(self) -> None:
        """Start the thread if it does not run; ``NoThread`` if it cannot be started."""
        if None not in self._runs:
            threads.start(self._run, self._name)

    def _start(self) -> None:
        try:
            self.ready()
        except threads.NoThread as error:
            log.error(
                "%s is delayed: no thread can be started (%s)",
                self._name,
                error,
                extra=log_fields(),
            )

    def _run(self) -> None:
        me = object()
        # Set here and not by the starter: an interrupt may strike the starter before it sets this.
        while self._runs.setdefault(None, me) is me:
            due: float | None = -math.inf
            while due is not None or not self._inbox.empty():
                for job in self._jobs(math.inf if due is None else due):
                    self._guarded(job)
                    del job  # it may refer to what nobody else needs, and the next one be far off
                due = self._guarded(self._turn, clock() + 1.0)
            del self._runs[None]
            if self._inbox.empty():
                return  # else a caller put a job there and believed this runs

    def _jobs(self, due: float) -> list[Job]:
        """Wait until there is something to do, or until ``due``; return the jobs."""
        jobs: list[Job] = []
        pause = due - clock()
        timeout = None if pause > threading.TIMEOUT_MAX else max(0.0, pause)
        with contextlib.suppress(Empty):
            while True:
                job = self._inbox.get(timeout=timeout)
                if job is not None:
                    jobs.append(job)
                timeout = 0.0
        return jobs

    @staticmethod
    def _guarded(call: Callable[[], object], otherwise: float | None = None) -> float | None:
        try:
            return call()  # type: ignore[return-value]
        except Exception:
            log.exception("a job has failed, and its thread goes on", extra=log_fields())
            return otherwise
