"""When a session sends its heartbeats, and when an answer is late. Pure.

Let *T* be the session timeout, *h* the time between two heartbeats, and *L* the time until one is
answered. A heartbeat is a touch and a proof (see ``lease``). As a touch, sent at *t*, it gives a
lease until *t* + 29/30 *T*. The lease is longer only when the next touch counts. That one is sent
by *t* + *h* and answered by *t* + *h* + *L*. It counts for proofs that are sent *lag* later, where
*lag* = (0.9 − fraction) × *T*. The first of them is sent within another *h*, and answered after
another *L*. So a lease goes on as long as

    2 *h* + 2 *L* + *lag* ≤ 29/30 *T*; with a fraction of 2/3: *h* + *L* ≤ 11/30 *T*.

A heartbeat therefore does not wait for the answer to the one before it: then *h* could not be less
than *L*, and a lease would end where answers take 0.18 *T*.

- With *h* = *T*/10, a lease goes on if answers take up to 0.26 *T*.
- With *h* = *T*/40, it goes on if they take up to 0.34 *T*. That is longer than *T*/3, when the
  server counts as hung. So heartbeats are hurried while something is held and answers are late: the
  newest answer took *T*/5, or the oldest heartbeat under way has waited as long. (Before the first
  late answer they were *T*/10 apart. So if the delay grows suddenly, it may grow to 0.30 *T*.)

A hurried client sends four times as many heartbeats. Without them it would lose its leases. Then
its locks would go to others, and the requests for that cost ZooKeeper more.

A session *rests* while it holds nothing. It needs no lease then, only to live on. So its heartbeats
are touches that prove nothing, and ZooKeeper writes nothing for them.
Every second one goes to the leader and back; the server answers the others by itself. So if a
server has lost its leader, a touch stays unanswered that was sent within *T*/5. Another *T*/3 later
the client goes to another server, and has nearly half of *T* left to take its session along.
"""

from __future__ import annotations

import math
from itertools import count
from typing import NamedTuple

from zklock._core.lease import HEARTBEATS

HURRIED = 4 * HEARTBEATS
"""Heartbeats per session timeout while answers are late."""

MOST = 16
"""The most heartbeats under way. A third of the timeout has room for 14 hurried ones."""

LATE = 1 / 5
"""The part of the session timeout after which an answer is late."""

HUNG = 1 / 3
"""The part of the session timeout after which a server counts as hung."""


class DueHeartbeat(NamedTuple):
    """A heartbeat to send: its number, and whether it proves that the session lives."""

    number: int
    proves: bool


class Heartbeat:
    """The heartbeats that are under way, and when the next one is due.

    All times are seconds of one clock. ``timeout`` is the session timeout, which may change between
    two calls.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._under_way: dict[int, float] = {}  # its number: when it was sent
        self._proofs: set[int] = set()  # those under way that prove something
        self._took = 0.0  # the newest answer
        self._last = -math.inf
        self._soon = True
        self._told = False

    def soon(self) -> None:
        """Have the next one sent at once, unless a proof is under way: its answer comes first."""
        self._soon = True

    def forget(self) -> None:
        """Forget those that are under way: their connection is over."""
        self._under_way.clear()
        self._proofs.clear()
        self._took = 0.0

    def take(
        self, now: float, timeout: float, *, sends: bool, held: bool, proves: bool
    ) -> DueHeartbeat | None:
        """Return a heartbeat to send now, or ``None``.

        ``sends`` is whether one can be sent now. ``held`` is whether something is held. ``proves``
        is whether it is to be a proof.
        """
        if now < self._next(now, timeout, held):
            return None
        self._last, self._soon = now, False
        if not sends or len(self._under_way) >= MOST:
            return None
        number = next(self._numbers)
        self._under_way[number] = now
        if proves:
            self._proofs.add(number)
        return DueHeartbeat(number, proves)

    def answered(self, number: int, now: float, timeout: float) -> None:
        """Note an answer; one to a forgotten heartbeat counts for nothing."""
        self._proofs.discard(number)
        sent = self._under_way.pop(number, None)
        if sent is None:
            return
        self._took = now - sent
        if self._took < timeout / HEARTBEATS:
            self._told = False

    def waits(self, now: float, timeout: float) -> bool:
        """Whether an answer has not come by the time of the next heartbeat."""
        return now >= self._oldest + timeout / HEARTBEATS

    def hung(self, now: float, timeout: float) -> bool:
        """Whether the oldest one has no answer in the time in which a server must give one."""
        return now >= self._oldest + HUNG * timeout

    def falls_behind(self, now: float, timeout: float) -> bool:
        """Whether answers have become late; true once, until an answer is prompt again."""
        told, self._told = self._told, self._told or self._late(now, timeout)
        return self._told and not told

    def due(self, now: float, timeout: float, *, held: bool) -> float:
        """Return when to look again: a heartbeat is due, or the oldest one counts as hung."""
        return min(self._next(now, timeout, held), self._oldest + HUNG * timeout)

    @property
    def proving(self) -> bool:
        """Whether a proof is under way."""
        return bool(self._proofs)

    @property
    def _oldest(self) -> float:
        return min(self._under_way.values(), default=math.inf)

    def _late(self, now: float, timeout: float) -> bool:
        late = LATE * timeout
        return self._took >= late or now >= self._oldest + late

    def _next(self, now: float, timeout: float, held: bool) -> float:
        if self._soon and not self._proofs:
            return -math.inf
        hurried = held and self._late(now, timeout)
        return self._last + timeout / (HURRIED if hurried else HEARTBEATS)
