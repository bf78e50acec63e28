"""The events that a command handles on its main thread while its other threads work."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from zklock._ground.clock import clock
from zklock._ground.loss import Loss

PARTING_SECONDS = 3.0
"""How long a command that was told to end waits for ZooKeeper's answer; then it ends without."""

_TURN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Exited:
    """The child has ended and must be reaped."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The child was stopped by this signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Ends:
    """The child was told to end, because its lease runs out."""


@dataclass(frozen=True, slots=True)
class Asked:
    """This process was asked to end by this signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Passed:
    """This process got a signal that is for the command alone."""

    number: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The work in the background is over, with this error if it has failed."""

    error: BaseException | None = None


Happening: TypeAlias = Exited | Stopped | Ends | Asked | Passed | Finished | Loss


class Happenings:
    """The events to handle, in order. ``put`` may be called in a signal handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self.put = self._queue.put

    def next(self, until: float = math.inf) -> Happening | None:
        """Wait for the next event; ``None`` if there is none by then (of ``clock``)."""
        while True:
            # In short turns: a signal that arrives just before a wait begins does not end the wait.
            turn = max(0.0, min(_TURN_SECONDS, until - clock()))
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=turn)
            if clock() >= until:
                return None

    def work(self, job: Callable[[], object], name: str) -> None:
        """Do the job on its own thread; put ``Finished`` at the end, however the job ends."""

        def run() -> None:
            try:
                job()
            except BaseException as error:
                self.put(Finished(error))
            else:
                self.put(Finished())

        threading.Thread(target=run, name=name, daemon=True).start()
