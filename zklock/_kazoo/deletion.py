"""What a caller listens for while it waits for its turn; see ``turn``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Deletion:
    """The deletion of a node, which a caller waits for that alone is to be told of it.

    ``come()`` is called when it has come, and ``missed()`` on another thread if the caller was
    struck when it may have come. ``due()``: whether the caller waits for it, and nobody else does.
    Whoever changes that has to ring, or to send something, afterwards.
    """

    path: str
    come: Callable[[], object]
    missed: Callable[[], object]
    due: Callable[[], bool]
