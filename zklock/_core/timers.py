"""Jobs and the times at which they are due. The caller has whatever protects them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

Job: TypeAlias = Callable[[], object]

_FEW = 64


@dataclass(order=True, slots=True)
class _Alarm:
    due: float
    number: int
    job: Job | None = field(compare=False)  # None: called off, or taken


class Timers:
    """Jobs by the time at which they are due. What was called off does not stay for long."""

    def __init__(self) -> None:
        self._heap: list[_Alarm] = []
        self._numbers = count()
        self._off = 0  # so many were called off; a hint, as threads may count at once

    def at(self, due: float, job: Job) -> Callable[[], None]:
        """Add a job; return what calls it off, from any thread."""
        if self._off > _FEW + len(self._heap) // 2:
            self._off = 0
            heap = [alarm for alarm in self._heap if alarm.job is not None]
            heapq.heapify(heap)
            self._heap = heap  # last: an interrupt may strike
        alarm = _Alarm(due, next(self._numbers), job)
        heapq.heappush(self._heap, alarm)

        def call_off() -> None:
            alarm.job = None
            self._off += 1

        return call_off

    @property
    def due(self) -> float:
        """When the first job is due; ``math.inf`` without one."""
        while self._heap and self._heap[0].job is None:
            heapq.heappop(self._heap)
        return self._heap[0].due if self._heap else math.inf

    def take(self, now: float) -> list[Job]:
        """Take the jobs that are due, in order."""
        jobs: list[Job] = []
        while self.due <= now:
            job = heapq.heappop(self._heap).job
            if job is not None:
                jobs.append(job)
        return jobs
