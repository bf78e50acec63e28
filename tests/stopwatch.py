"""A stopwatch that stops while its process does not run.

A limit on how long something may take is about the code. A busy machine, or one that stands still
for seconds, takes the time from all threads of a process at once: such times are not counted.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import TracebackType
from typing import ClassVar, Self, TypeVar

T = TypeVar("T")

_TICK = 0.01
_LATE = 0.05
"""Seconds between two ticks from which on the process is taken not to have run."""


class Stopwatch:
    """Measures a ``with`` body, in seconds: ``total``, and ``awake``, which leaves stalls out."""

    clock: ClassVar[staticmethod[[], float]] = staticmethod(time.monotonic)
    """What ``awake`` goes by: how long the code may take is said of this clock."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="stopwatch", daemon=True)
        self._began = 0.0
        self._ended: float | None = None
        self._awoke = 0.0  # by the clock
        self._rested: float | None = None
        self._seen = (0.0, 0.0)  # when it looked last, and how long the stalls were until then

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._awoke = self.clock()
        self._seen = (self._awoke, 0.0)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended = time.monotonic()
        self._rested = self.clock()
        self._over.set()
        self._thread.join()

    def _tick(self) -> None:
        while not self._over.wait(_TICK):
            now = self.clock()
            self._seen = (now, self._stalled(now))

    def _stalled(self, now: float) -> float:
        looked, stalled = self._seen
        late = now - looked - _TICK
        return stalled + late if late > _LATE else stalled

    @property
    def total(self) -> float:
        """Seconds since the body began, or those that it took."""
        return (time.monotonic() if self._ended is None else self._ended) - self._began

    @property
    def awake(self) -> float:
        """The same, without the times in which this process did not run."""
        now = self.clock() if self._rested is None else self._rested
        return now - self._awoke - self._stalled(now)

    def result(self, future: Future[T], seconds: float) -> T:
        """Return the future's result; ``TimeoutError`` after so many seconds awake."""
        until = self.awake + seconds
        while not wait([future], 0.1, FIRST_COMPLETED).done and self.awake < until:
            pass
        return future.result(0)
