"""A pytest plugin that delays threads at random. A test or code that leans on an order then fails.

``make jitter``, or ``python -m pytest -p tests.jitter``. The thread of a test is delayed where a
call returns to the test: others act meanwhile. Other threads are delayed where functions of zklock
and kazoo begin. ``ZKLOCK_JITTER`` multiplies how often; 1 by default.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest

_TESTS = str(Path(__file__).parent) + os.sep
_DELAYED = tuple(os.sep + name + os.sep for name in ("zklock", "kazoo"))
_OFTEN = float(os.environ.get("ZKLOCK_JITTER", "1"))

_TEST = 0.25, 0.06
"""How often a return to a test is delayed, and the longest delay in seconds."""
_OTHERS = 0.001, 0.03
"""The same of functions that begin on other threads."""
_IN_ALL = 6.0
"""Seconds of delays in a test: none of them takes much longer for it."""
_TRACING = ("test_struck", "test_handled", "simulator", "explorer", "mutexes")
"""In the names of tests that follow each step themselves, or have a clock of their own."""


class Jitter:
    """Delays threads. ``left``: seconds of delays that are left to the present test."""

    def __init__(self, seed: int | None = None) -> None:
        self.left = 0.0
        self._random = random.Random(seed)

    def in_test(self, frame: FrameType, event: str, argument: object) -> None:
        """Trace the thread of a test."""
        caller = frame.f_back
        if (
            event == "return"
            and caller is not None
            and caller.f_code.co_filename.startswith(_TESTS)
        ):
            self._maybe(*_TEST)

    def in_others(self, frame: FrameType, event: str, argument: object) -> None:
        """Trace another thread."""
        if event == "call" and any(name in frame.f_code.co_filename for name in _DELAYED):
            self._maybe(*_OTHERS)

    def _maybe(self, often: float, most: float) -> None:
        if self._random.random() < often * _OFTEN:
            delay = most * self._random.random() ** 2  # most delays are short
            delay = max(0.0, min(delay, self.left))
            self.left -= delay
            time.sleep(delay)


_JITTER = Jitter()


def pytest_sessionstart() -> None:
    """Delay all threads from now on."""
    threading.setprofile(_JITTER.in_others)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Delay the thread of a test while it runs."""
    if any(name in item.nodeid for name in _TRACING):
        _JITTER.left = 0.0
        return (yield)
    _JITTER.left = _IN_ALL
    sys.setprofile(_JITTER.in_test)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
