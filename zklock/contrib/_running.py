"""What runs under a leadership, and the wait for its end before another process leads."""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue
from typing import Any

TURN = 1.0
"""The longest single wait, in seconds: an exception out of nowhere may strike what has ended, just
before it tells."""


class Running:
    """The pieces of work that run now.

    ``pieces``: each is put in before it begins. Its end is ``pieces.pop()``, one call of C, and
    then ``tell()``: no exception out of nowhere can strike in a ``finally`` before the first.

    No lock is taken. On Python 3.14, a signal handler that raises could leave it taken.
    """

    def __init__(self) -> None:
        self.pieces: dict[Any, None] = {}
        self._ends: SimpleQueue[None] | None = None  # of who waits

    def tell(self) -> None:
        """Tell who waits that a piece of work has ended."""
        ends = self._ends  # after that end: who begins to wait from now on sees it
        if ends is not None:
            ends.put(None)

    def wait(self) -> None:
        """Wait until nothing runs. For one thread at a time."""
        ends = self._ends = SimpleQueue[None]()
        while self.pieces:
            with contextlib.suppress(Empty):
                ends.get(timeout=TURN)
        self._ends = None
