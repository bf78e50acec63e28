"""Adaptive spinning: who waits for an answer may ask for it again and again before it sleeps.

A server on the same machine answers in a tenth of a millisecond. A thread that sleeps meanwhile is
woken late. It then runs slowly, as the processor has kept other things at hand. A thread that spins
has its answer earlier, and keeps a processor busy for so long. Elsewhere spinning does harm: where
there is one processor only, the server waits for the thread that spins.

So each client measures. It waits in *rounds*, and compares how long waits take in them:

1. In the first round, all waits sleep. If they take ``NEAR`` or more, as behind a network, so do
   those of the next round, and so on: it costs nothing there.
2. Else the waits of a round spin, for ``LIMIT`` each at most, and then sleep. The first round that
   spins is not judged: its first waits find a server that has slept, too.
3. If a round that spun took no longer, or by a tenth at most, the next one spins, too. (Where waits
   take as long, what follows them is faster.) After ``ROUNDS`` of them, one round sleeps, to
   measure anew.
4. If it took longer, the next round sleeps, and is twice as long as the last one of that kind, up
   to ``LONGEST``. So spinning that is in vain takes less than 5 microseconds of a wait.

A thread that must not sleep, as an event loop runs on it, only *glances*: it spins, or it does not
wait at all. There is nothing to compare then, so it goes by whether the answer comes in time. Where
it does not, one glance is left out, then 2, 4, … ``LONGEST``. Where it does, only half as many are.

A thread that spins lets others run first, whenever it has asked: the server, or whoever holds the
lock that it waits for, may need its processor.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from zklock._ground.clock import clock

LIMIT = 0.0003
"""Seconds. Once a server on the same machine is warm, 99 waits of 100 are shorter."""

NEAR = 1.5 * LIMIT

MOST = 2 * NEAR
"""A wait that takes longer counts as so many seconds: one alone must not decide."""

LONGER = 1.1

ROUND = 16
"""The waits of a round."""

ROUNDS = 64

LONGEST = 2048

_LONGEST_POLL = 2.0**31 - 1
"""The most milliseconds that the system takes."""


def milliseconds(seconds: float) -> float | None:
    """Return how long to poll, at most what the system takes; ``None`` stands for no limit."""
    return None if seconds == math.inf else min(max(0.0, 1000 * seconds), _LONGEST_POLL)


_let_others_run: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


def _spin(poll: Callable[[int], object], begin: float, now: Callable[[], float]) -> object:
    """Ask until there is something, or ``LIMIT`` is over; return it."""
    until, found, asked_at = begin + LIMIT, None, begin
    while not found and asked_at < until:
        found = poll(0) or _let_others_run()
        asked_at = now()
    return found


class Glance:
    """What one client has learned of its glances."""

    def __init__(self, now: Callable[[], float] = clock) -> None:
        self._now = now
        self._skip = 0
        self._skips = 0  # how many are left out when an answer does not come in time

    def due(self) -> bool:
        """Whether to glance this time."""
        self._skip -= 1
        return self._skip < 0

    def wait(self, poll: Callable[[int], object]) -> bool:
        """Spin; return whether ``poll(0)`` returned something true in time."""
        if _spin(poll, self._now(), self._now):
            self._skips //= 2
            return True
        self._skip = self._skips = min(2 * self._skips or 1, LONGEST)
        return False


class Spin:
    """What one client has learned of its waits.

    Two threads may wait at once, and a signal handler may raise anywhere. Then one round may be
    judged wrongly, and the next one is not.
    """

    __slots__ = ("_left", "_now", "_rounds", "_size", "_sleep", "_sleeps", "_spins", "_sum")

    def __init__(self, now: Callable[[], float] = clock) -> None:
        self._now = now
        self._spins = False
        self._rounds = 0  # that have spun since one has slept
        self._sleeps = ROUND  # how many waits are in a round that sleeps
        self._sleep = MOST  # how long a wait took in the last one
        self._size = self._left = ROUND
        self._sum = 0.0

    def wait(self, poll: Callable[[float | None], object], seconds: float) -> None:
        """Wait until ``poll(milliseconds)`` returns something true, at most ``seconds``."""
        begin = self._now()
        found: object = None
        if self._spins and seconds >= LIMIT:
            found = _spin(poll, begin, self._now)
            seconds -= LIMIT
        if not found:
            poll(milliseconds(seconds))
        self._sum += min(self._now() - begin, MOST)
        self._left -= 1
        if self._left <= 0:
            self._end_round(self._sum / self._size)

    def _end_round(self, wait: float) -> None:
        """Begin another round; ``wait``: how long one took in this."""
        if not self._spins:
            self._sleep = wait
            self._spins, self._rounds = wait < NEAR, 0
        elif self._rounds and wait > LONGER * self._sleep:
            self._spins, self._sleeps = False, min(2 * self._sleeps, LONGEST)
        else:
            if self._rounds:
                self._sleeps = ROUND
            self._rounds += 1
            self._spins = self._rounds < ROUNDS
        self._size = self._left = ROUND if self._spins else self._sleeps
        self._sum = 0.0
