"""A logger that tells a line once, and later how often it has come again."""

from __future__ import annotations

import logging
from typing import Any

from zklock._ground.clock import clock

QUIET = 60.0
"""Seconds for which an equal line is counted, and not told."""

_MOST = 64
"""Lines that are remembered."""


class Repeats(logging.LoggerAdapter[logging.Logger]):
    """kazoo's logger, for a client that may try for hours: warnings and errors come once.

    What is less than a warning passes as it is.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})
        self._told: dict[tuple[int, str], tuple[float, int]] = {}  # when, and how often since

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log the line, unless an equal one was told in the last minute: then count it."""
        if level >= logging.WARNING:
            text = str(msg) % args if args else str(msg)
            now, line = clock(), (level, text)
            since, more = self._told.get(line, (-QUIET, 0))
            if now < since + QUIET:
                self._told[line] = since, more + 1
                return
            if line not in self._told and len(self._told) >= _MOST:
                self._told.clear()
            self._told[line] = now, 0
            if more:
                msg, args = "%s (and %d times since the last line)", (text, more)
        super().log(level, msg, *args, **kwargs)
