"""A queue of changes: one thread puts in what it hears of an election, another takes it out."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from zklock._ground.mutexes import Mutex
from zklock._recipes.observe import LeaderChange

KEPT = 64
"""How many changes are kept for a slow observer. One more replaces them all."""


class Feed:
    """The changes that one observer was not told yet, oldest first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = Mutex()
        self._changes: deque[LeaderChange] = deque()

    def put(self, change: LeaderChange) -> None:
        """Add a change. If too many are kept already, it replaces them all, with ``gap`` set."""
        with self._lock:
            if len(self._changes) >= self._kept:
                self._changes.clear()
                change = replace(change, gap=True, same_leader=False)
            self._changes.append(change)

    def take(self) -> LeaderChange | None:
        """Remove and return the oldest; ``None`` if there is none."""
        with self._lock:
            return self._changes.popleft() if self._changes else None
