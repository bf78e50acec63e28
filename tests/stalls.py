"""Tests that say nothing, because the machine stood still: *inconclusive*, and played once more.

A witness thread in each test process notes by how much it is late. A test against a real server
that fails while its process stood still for long has not shown a fault. Its name goes into the file
in ``ZKLOCK_TEST_INCONCLUSIVE``, and `tests.run` plays it once more, alone. Without that variable
every failure counts. The servers' logs say nothing more: these servers wait for no disk.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

FILE = os.environ.get("ZKLOCK_TEST_INCONCLUSIVE")

TICK = 0.05
STALL = 1.0
"""Seconds that the process did not run, in one test: from then on it decides nothing."""


class Witness:
    """A thread that wakes up every `TICK`; ``stalled`` is by how much it was late, all in all.

    ``clock`` has the functions of the module ``time``.
    """

    def __init__(self, clock: Any = time) -> None:
        self.stalled = 0.0
        self._clock = clock
        self._began = False

    def begin(self) -> None:
        """Start it, once."""
        if not self._began:
            self._began = True
            threading.Thread(target=self._watch, name="witness", daemon=True).start()

    def _watch(self) -> None:
        looked = self._clock.monotonic()
        while True:
            self._clock.sleep(TICK)
            now = self._clock.monotonic()
            late = now - looked - 2 * TICK
            if late > 0:
                self.stalled += late
            looked = now


WITNESS = Witness()
_BEGAN = pytest.StashKey[float]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note how long the process has stood still before a test."""
    if FILE:
        WITNESS.begin()
        item.stash[_BEGAN] = WITNESS.stalled


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Call a failure inconclusive if the process stood still meanwhile."""
    report = yield
    if not FILE or not report.failed or _BEGAN not in item.stash:
        return report
    stalled = WITNESS.stalled - item.stash[_BEGAN]
    if stalled >= STALL:
        with Path(FILE).open("a") as file:
            file.write(f"{item.nodeid}\n")
        report.outcome = "skipped"
        report.wasxfail = f"inconclusive: this process stood still for {stalled:.1f} s"
    return report
