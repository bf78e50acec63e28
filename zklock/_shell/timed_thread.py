"""A thread that runs jobs, and does timed work when it is due."""

from __future__ import annotations

import heapq
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from queue import Empty, SimpleQueue
from typing import TypeAlias

from zklock._ground import threads
from zklock._ground.clock import clock
from zklock._ground.records import log_fields

log = logging.getLogger("zklock")

Job: TypeAlias = Callable[[], object]

FEW = 64
"""So many jobs for later are not worth a look for those that were cancelled."""


@dataclass(order=True, slots=True)
class _Later:
    """A job for a later time; ``job`` is ``None`` after it was cancelled."""

    due: float
    number: int
    job: Job | None = field(compare=False)


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
        self._inbox: SimpleQueue[Job | _Later | None] = SimpleQueue()
        self.post: Callable[[Job], object] = self._inbox.put
        self._runs: dict[None, object] = {}  # the thread that runs; setdefault() is one step
        self._later: list[_Later] = []  # a heap, used only by that thread
        self._most = FEW  # from so many on, those that were cancelled are taken out
        self._numbers = count()

    def later(self, job: Job) -> None:
        """Run the job soon."""
        self._inbox.put(job)
        self._start()

    def after(self, seconds: float, job: Job) -> Callable[[], object]:
        """Run the job after ``seconds``; return a function that cancels it."""
        later = _Later(clock() + seconds, next(self._numbers), job)
        self._inbox.put(later)
        self._start()

        def call_off() -> None:
            later.job = None
            if None in self._runs:
                self._inbox.put(None)  # the thread may have nothing else to wait for

        return call_off

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
            while due is not None or self._first() is not None or not self._inbox.empty():
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
        first = self._first()
        if first is not None:
            due = min(due, first.due)
        pause = due - clock()
        try:
            timeout = None if pause > threading.TIMEOUT_MAX else max(0.0, pause)
            while True:
                job = self._inbox.get(timeout=timeout)
                if isinstance(job, _Later):
                    heapq.heappush(self._later, job)
                    if len(self._later) > self._most:
                        self._later = [later for later in self._later if later.job is not None]
                        heapq.heapify(self._later)
                        self._most = max(FEW, 2 * len(self._later))
                elif job is not None:
                    jobs.append(job)
                timeout = 0.0
        except Empty:
            now = clock()
            while (first := self._first()) is not None and first.due <= now:
                job = heapq.heappop(self._later).job
                if job is not None:
                    jobs.append(job)
            return jobs

    def _first(self) -> _Later | None:
        """Return the first job for later that was not cancelled."""
        while self._later and self._later[0].job is None:
            heapq.heappop(self._later)
        return self._later[0] if self._later else None

    @staticmethod
    def _guarded(call: Callable[[], object], otherwise: float | None = None) -> float | None:
        try:
            return call()  # type: ignore[return-value]
        except Exception:
            log.exception("the session's thread continues after an error", extra=log_fields())
            return otherwise
