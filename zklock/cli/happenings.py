"""The events that a command handles while its other threads work."""

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
from zklock.cli.supervisor import Message

PARTING_SECONDS = 3.0
"""How long a command that was told to end waits for ZooKeeper's answer; then it ends without."""

_TURN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Finished:
    """The work in the background is over, with this error if it has failed."""

    error: BaseException | None = None


Happening: TypeAlias = "int | Message | Loss | Finished"
"""A signal's number, what the supervisor tells of the command, a loss, or the end of the work."""


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
