"""The contract suite on the simulated ZooKeeper: ``ZKLOCK_TEST_SIMULATED=1``.

The clients of the fixtures are those of a simulation, whose clock goes on by itself. So
the tests need not know of it, and every wait and every timeout goes through the simulation.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from zklock.testing import Simulation, simulated

SIMULATED = os.environ.get("ZKLOCK_TEST_SIMULATED", "0") not in {"", "0"}

_STEP = 0.01
"""Real seconds between two moves of the clock."""

_RATE = 0.85
"""Slower than the real clock, so that a wait does not take less real time than it was told to."""

_MOST = 0.03
"""The real seconds that one move makes up for: a stalled machine does not age the sessions.

What begins just before a move has all of it. So a wait of at least ``_MOST / (1 / _RATE - 1)``, or
0.17 s, lasts as long by the real clock, whatever stalls.
"""


@contextmanager
def flowing() -> Iterator[Simulation]:
    """Return a simulation whose clock goes on."""
    over = threading.Event()

    def flow() -> None:
        last = time.monotonic()
        while not over.wait(_STEP):
            now = time.monotonic()
            simulation.advance(_RATE * min(now - last, _MOST))
            last = now

    with simulated() as simulation:
        thread = threading.Thread(target=flow, name="flowing-clock", daemon=True)
        thread.start()
        try:
            yield simulation
        finally:
            over.set()
            thread.join()
