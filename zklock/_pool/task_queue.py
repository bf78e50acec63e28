"""What the pool's own thread has to do: jobs that come soon, and jobs that are due at a time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

from zklock._core.session import Session
from zklock._core.timers import Job


class TaskQueue:
    """The jobs of the pool's own thread.

    ``turn()`` is called there after each round of jobs. It returns whether the thread is needed any
    more. If not, the thread ends, and jobs that are not due yet wait until it is needed again.
    Times are those of the session.
    """

    def __init__(self, session: Session, turn: Callable[[], bool]) -> None:
        self.now = session.now
        self._thread = session.thread("zklock-pool", self._run)
        self._turn = turn
        self._due: list[tuple[float, int, Job]] = []  # a heap, used only by that thread
        self._numbers = count()

    def later(self, job: Job) -> None:
        """Run the job soon. From any thread."""
        self._thread.later(job)

    def ready(self) -> None:
        """Start the thread if it does not run; ``NoThread`` if it cannot be started."""
        self._thread.ready()

    def at(self, due: float, job: Job) -> None:
        """Run the job at a time of the session's clock. From the pool's own thread."""
        heapq.heappush(self._due, (due, next(self._numbers), job))

    def wake_by(self, due: float) -> None:
        """Have a turn at this time, or earlier. From the pool's own thread."""
        if not self._due or self._due[0][0] > due:
            self.at(due, lambda: None)

    def _run(self) -> float | None:
        now = self.now()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        if not self._turn():
            return None
        return self._due[0][0] if self._due else math.inf
