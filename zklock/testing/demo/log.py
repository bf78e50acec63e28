"""Collects the events of all processes, tells them in order, and lets the director wait for one."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable

from zklock._ground.clock import clock
from zklock.testing.demo.events import Event

SETTLE = 0.1
"""How many seconds an event is kept back, so that an earlier one can still come first."""


class Interrupted(Exception):
    """The demo cannot go on; the message says why."""


class Log:
    """All events so far. ``tell(event)`` gets each, in order of time, on the waiting thread."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._untold: list[tuple[float, int, Event]] = []
        self._failure: str | None = None

    def add(self, event: Event) -> None:
        """Add an event; any thread may call this."""
        with self._changed:
            self._events.append(event)
            heapq.heappush(self._untold, (event.at, len(self._events), event))
            self._changed.notify_all()

    def count(self) -> int:
        """Return how many events have come in."""
        with self._changed:
            return len(self._events)

    def fail(self, why: str) -> None:
        """Make the waiting thread raise ``Interrupted``."""
        with self._changed:
            self._failure = self._failure or why
            self._changed.notify_all()

    def wait(self, find: Callable[[list[Event]], Event | None], timeout: float, what: str) -> Event:
        """Return what ``find`` finds among all events, in the order in which they came in.

        ``Interrupted`` after ``timeout`` seconds, with a message that ``what`` did not happen; also
        if the demo has failed meanwhile.
        """
        deadline = clock() + timeout
        while True:
            with self._changed:
                if (found := find(self._events)) is not None:
                    return found
                if self._failure is not None:
                    raise Interrupted(self._failure)
                if clock() >= deadline:
                    raise Interrupted(f"{what}: not within {timeout:.1f} s")
                self._changed.wait(SETTLE / 2)
            self.flush(clock() - SETTLE)

    def rest(self, seconds: float) -> None:
        """Let some time pass; ``Interrupted`` if the demo has failed."""
        with self._changed:
            if self._failure is not None:
                raise Interrupted(self._failure)
            self._changed.wait(seconds)
        self.flush(clock() - SETTLE)

    def flush(self, until: float = float("inf")) -> None:
        """Tell what happened before ``until``."""
        while True:
            with self._changed:
                if not self._untold or self._untold[0][0] > until:
                    return
                _, _, event = heapq.heappop(self._untold)
            self._tell(event)

    def arrived(self) -> list[Event]:
        """Return all events, in the order in which they came in."""
        with self._changed:
            return list(self._events)

    def events(self) -> list[Event]:
        """Return all events, in order of time."""
        with self._changed:
            return sorted(self._events, key=lambda event: event.at)
