"""The contract suite on the simulated ZooKeeper: ``ZKLOCK_TEST_SIMULATED=1``.

The clients of the fixtures are those of a simulation, whose clock goes on by itself. So
the tests need not know of it, and every wait and every timeout goes through the simulation.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from unittest import mock

from tests import modes
from tests.stopwatch import Stopwatch
from zklock.testing import Simulation, simulated, waiting
from zklock.testing.simulation import world

SIMULATED = modes.simulated()

_STEP = 0.01
"""Real seconds between two moves of the clock."""

_RATE = 0.85
"""Slower than the real clock, so that a wait does not take less real time than it was told to."""

_MOST = 0.03
"""The real seconds that one move makes up for: a stalled machine does not age the sessions.

What begins just before a move has all of it. So a wait of at least ``_MOST / (1 / _RATE - 1)``, or
0.17 s, lasts as long by the real clock, whatever stalls.
"""


_PAUSE = 0.005
"""Real seconds between two looks of `wait_for` at least, if its time is nearly over."""

_RESTS_IN = 200.0
"""Real seconds in which everything comes to rest: some tests ask without a pause for a minute."""

_STRIKE = signal.SIGRTMIN
"""What interrupts the main thread when the clock fails. No test uses it."""


class Patience:
    """The clock of `wait_for`: what a test waits for is given as much time as it asks for.

    It is the clock of the simulation. This one goes no faster than the real clock, and waits for
    the clients: on a machine that is busy, it may need ten real seconds for one. It either goes on
    or fails aloud.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def monotonic(self) -> float:
        """Return the time."""
        return self._simulation.now

    def sleep(self, seconds: float) -> None:
        """Sleep by the real clock: a waiting thread looks often enough."""
        time.sleep(max(seconds, _PAUSE))


class FlowingClock:
    """Moves the clock of a simulation, as real time goes on, on a thread of its own.

    Meanwhile `wait_for` goes by it, and what a `Stopwatch` says of how long it was awake. If a
    move fails, it goes on with the next one. The test in progress fails: see `watched`.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._failures: SimpleQueue[BaseException] = SimpleQueue()
        self._watched = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._flow, name="flowing-clock", daemon=True)

    @contextmanager
    def flows(self) -> Iterator[None]:
        """Move the clock meanwhile. On the main thread."""
        before = signal.signal(_STRIKE, self._strike)
        self._thread.start()
        try:
            patience = Patience(self.simulation)
            with (
                mock.patch.object(world, "_RESTS_IN", _RESTS_IN),
                mock.patch.object(waiting, "time", patience),
                mock.patch.object(waiting, "clock", patience.monotonic),
                mock.patch.object(Stopwatch, "clock", staticmethod(patience.monotonic)),
            ):
                yield
        finally:
            self._over.set()
            self._thread.join()
            signal.signal(_STRIKE, before)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raise at once, on the main thread, if the clock fails meanwhile; and again at the end.

        What is inside may take the first one for something else.
        """
        self._watched = True
        try:
            yield
        finally:
            self._watched = False
            if not self._failures.empty():
                raise self._failures.get()

    def _strike(self, number: int, frame: object) -> None:
        if self._watched:
            self._watched = False
            raise RuntimeError("the clock of the simulation has failed")

    def _flow(self) -> None:
        last = time.monotonic()
        while not self._over.wait(_STEP):
            now = time.monotonic()
            try:
                self.simulation.advance(_RATE * min(now - last, _MOST))
            except Exception as error:
                self._failures.put(error)
                signal.pthread_kill(threading.main_thread().ident or 0, _STRIKE)
            last = now


@contextmanager
def flowing() -> Iterator[FlowingClock]:
    """Return the clock of a new simulation, which goes on."""
    with simulated() as simulation:
        clock = FlowingClock(simulation)
        with clock.flows():
            yield clock
