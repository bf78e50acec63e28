"""A thread that runs jobs, and a round of timed work whenever some is due."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from zklock.clock import clock

log = logging.getLogger("zklock")


class Worker:
    """Runs jobs in order, on one daemon thread that is started when it is first needed.

    ``turn()`` does what is due and returns the time (of ``clock``) when it wants to be called
    again, ``math.inf`` for "when woken", or ``None`` for "never": the thread then ends, to be
    started anew by the next wake-up.
    """

    def __init__(self, name: str, turn: Callable[[], float | None]) -> None:
        self._name = name
        self._turn = turn
        # Not a Condition: an interrupt in the middle of entering one leaves it locked.
        self._inbox: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._running = False

    def later(self, job: Callable[[], object]) -> None:
        """Run the job soon."""
        self._inbox.put(job)
        self._start()

    def wake(self) -> None:
        """Have a turn taken now."""
        self._inbox.put(None)
        self._start()

    def _start(self) -> None:
        with self._lock:
            running = self._running
        if not running:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        # Said here and not by who starts it, whom an interrupt may strike before it does.
        with self._lock:
            if self._running:
                return
            self._running = True
        due: float | None = -math.inf
        while due is not None or not self._over():
            for job in self._jobs(-math.inf if due is None else due):
                self._guarded(job)
            due = self._guarded(self._turn, clock() + 1.0)

    def _jobs(self, due: float) -> list[Callable[[], object]]:
        """Wait until there is something to do, and return the jobs."""
        jobs = []
        pause = due - clock()
        try:
            timeout = None if pause > threading.TIMEOUT_MAX else max(0.0, pause)
            while True:
                job = self._inbox.get(timeout=timeout)
                if job is not None:
                    jobs.append(job)
                timeout = 0.0
        except Empty:
            return jobs

    def _over(self) -> bool:
        with self._lock:
            self._running = not self._inbox.empty()
            return not self._running

    @staticmethod
    def _guarded(call: Callable[[], object], otherwise: float | None = None) -> float | None:
        try:
            return call()  # type: ignore[return-value]
        except Exception:
            log.exception("the session's thread goes on after an error")
            return otherwise
