"""An outcome that will come: it is set once, waited for, and told."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from zklock._ground.events import Event

T = TypeVar("T")

_TURN = 1.0


class Outcome(Generic[T]):
    """A value or an error that will come.

    It is no ``Future``. A KeyboardInterrupt that strikes while a thread enters the condition of a
    ``Future`` leaves it locked. That would block the thread that sets it, which is the client's.
    """

    def __init__(self) -> None:
        self._outcome: dict[None, tuple[Any, BaseException | None]] = {}  # set by setdefault()
        self._when_done: deque[Callable[[], object]] = deque()

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return bool(self._outcome)

    def when_done(self, call: Callable[[], object]) -> None:
        """Call when there is an outcome, on the thread that brings it; at once if there is one."""
        self._when_done.append(call)
        if self._outcome:
            self._say_so()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the outcome, at most ``timeout`` seconds; return whether there is one."""
        if not self._outcome:
            come = Event()
            self.when_done(come.set)
            limit = self.limit(timeout, come.set)
            end = math.inf if limit is None else time.monotonic() + limit
            # In turns: an interrupt may have struck the thread that was about to set the event.
            while not (self._outcome or come.is_set()) and (left := end - time.monotonic()) > 0:
                come.wait(min(left, _TURN))
        return bool(self._outcome)

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Return how long to wait natively; see ``runtime.Limit``."""
        return seconds

    def result(self) -> T:
        """Return the value, or raise the error; there must be an outcome."""
        value, error = self.settled()
        if error is not None:
            raise error
        result: T = value
        return result

    def settled(self) -> tuple[Any, BaseException | None]:
        """Return the value or the error, and raise neither; there must be an outcome.

        What this raises comes from elsewhere: a signal handler.
        """
        return self._outcome[None]

    def _resolve(self, value: Any, error: BaseException | None) -> None:
        """Set the outcome, unless there is one. Repeatable."""
        self._outcome.setdefault(None, (value, error))
        self._say_so()

    def _say_so(self) -> None:
        while self._when_done:
            try:
                call = self._when_done.popleft()
            except IndexError:
                return  # another thread makes the last call
            call()
