"""The arithmetic of the lease: until when may a session believe that it is alive? Pure.

ZooKeeper's leader expires a session if it has heard of no activity for the session timeout *T*. The
lease must end before that, whatever happens from now on. The leader surely knows the following:

- Making or resuming a connection goes through the leader, so the leader knows of it at once.
- The server that receives any other request notes it (a *touch*). It tells the leader when the
  leader next asks; the leader asks every tickTime/2.
- An answered write that was sent at *S* is a *proof* of two things. First, a quorum followed the
  leader at *S*. So a later leader began after *S*, and it gives every session a full timeout.
  Second, the server was still connected to the leader. So the leader had asked at *S* − tickTime/2
  or later, and then learnt of every touch that was answered before that.

Let *t* be when the newest touch was sent, of those answered before *S* − tickTime/2. The session
lives at least until *t* + *T*. With a touch every *T*/10, that is *S* + 0.9 *T* − tickTime/2. The
lease runs to *S* + fraction × *T*, and no longer than *t* + 29/30 *T*.

A client does not know the tick. The chosen fraction limits it: tickTime/2 ≤ (0.9 − fraction) × *T*.
With 2/3, *T* must be at least 2.15 ticks (ZooKeeper allows none under 2 unless configured
otherwise); with 0.75, at least 3.34 ticks.

The leader counts *T* on its clock, and the client counts the lease on its own. The leader ends the
session when its clock has gone on by *T* since *t*, or later. By then the client's clock has gone
on by 29/30 *T* if it loses at most 1/30 against the leader's: the lease is over, whatever the tick,
and after idle times too. (A clock that is slow makes the client wait longer for a touch to count,
which does no harm. On a clock that is fast by *r*, *S* − tickTime/2 comes too early. There
tickTime/2 ≤ (0.9 − fraction) × *T* / (1 + *r*) must hold: for *r* = 1/30 and 2/3, *T* of 2.22
ticks.) The room of 1/30 is the largest that costs nothing. Heartbeats that are answered at once
were sent at *S* − 0.1 *T*, *S* − 0.2 *T*, … For 2/3, *t* is *S* − 0.3 *T*, and *t* + 29/30 *T* is
just *S* + 2/3 *T*.
"""

from __future__ import annotations

import math
from collections import deque

from zklock._core.handshake import unanswered

HEARTBEATS = 10
"""Heartbeats per session timeout."""

DEFAULT_FRACTION = 2 / 3
_SLOW = 1 / 30
"""The part of the time that the client's clock may lose against the leader's."""

_SPARSE = 80
"""Touches closer together than 1/80 of the timeout count as one: less than between heartbeats."""


class Lease:
    """When the belief in one session ends. All times are seconds of one clock.

    ``timeout`` is the shortest negotiated session timeout. ``fraction`` is how much of it one proof
    gives. Every touch is reported.

    ``end`` is until when the session may be believed to live. Any thread reads it, without a lock,
    so it is one number: what it is made of may change between two looks.
    """

    def __init__(self, timeout: float, fraction: float = DEFAULT_FRACTION) -> None:
        self.timeout = timeout
        self.fraction = fraction
        self._end = -math.inf
        self._proof = -math.inf  # when the proof behind the end was sent
        self._cap = math.inf
        self._connected = -math.inf
        self._touches: deque[tuple[float, float]] = deque()
        self.end = -math.inf

    def asked(self, sent: float) -> None:
        """Note a handshake sent at ``sent``: the server may have set a new timeout since then."""
        self._cap = min(self._cap, sent + unanswered(self.timeout))
        self.end = min(self._end, self._cap)

    def negotiated(self, timeout: float) -> None:
        """Note the timeout in a handshake's answer: the shortest counts, for past proofs too.

        A longer timeout does not help: a new leader uses the timeout that the session began with.
        """
        if timeout < self.timeout:
            self.timeout = timeout
            self._end = min(self._end, self._proof + self.fraction * timeout)
            self.end = min(self._end, self._cap)

    def connected(self, sent: float) -> None:
        """Note a (re)connection whose request was sent at ``sent``: earlier touches are void.

        The earlier touches went to another server, which may not have told the leader of them.
        """
        self._cap, self.end = math.inf, self._end
        self._touches.clear()
        self._connected = sent

    def touched(self, sent: float, answered: float) -> None:
        """Note a request that was sent at ``sent`` and answered at ``answered``."""
        touches = self._touches
        if touches and sent - touches[-1][0] < self.timeout / _SPARSE:
            return
        touches.append((sent, answered))
        while len(touches) > 1 and touches[1][1] < answered - self._lag - self.timeout:
            touches.popleft()

    def proved(self, sent: float) -> None:
        """Note a write that was sent at ``sent``, and answered."""
        told, known = sent - self._lag, self._connected
        for at, answered in reversed(self._touches):
            if answered <= told:
                known = max(known, at)
                break
        end = min(sent + self.fraction * self.timeout, known + (1 - _SLOW) * self.timeout)
        if end > self._end:
            self._end, self._proof = end, sent
            self.end = min(end, self._cap)

    @property
    def _lag(self) -> float:
        return (1 - 1 / HEARTBEATS - self.fraction) * self.timeout
