r"""The arithmetic of the lease: until when may a session believe that it is alive? Pure.

ZooKeeper's leader expires a session when it has known of no activity for the session timeout *T*.
The lease has to end before that, whatever happens from now on. What the leader is sure to know:

- Making or resuming a connection goes through the leader: it knows of it at once.
- Any other request is noted by the server that receives it (a *touch*), and told to the leader
  when the leader next asks, every tickTime/2.
- An answered write that was sent at *S* (a *proof*) shows that a quorum followed the leader at *S*,
  so that a later leader, which gives every session a full timeout, began after *S*; and that the
  server was still connected to the leader, so that the leader had asked at *S* − tickTime/2 or
  later, and then learnt of every touch that was answered before that.

So the session lives at least until *t* + *T*, where *t* is when the newest touch answered before
*S* − tickTime/2 was sent. With a touch every *T*/10 that is *S* + 0.9 *T* − tickTime/2. The lease
runs to *S* + fraction × *T*, and no longer than *t* + *T*. The tick is not known to a client: the
fraction chosen says how long it may be, tickTime/2 ≤ (0.9 − fraction) × *T*; 2/3 allows for every
*T* of at least 2.15 ticks (ZooKeeper allows none under 2 unless told so), 0.75 for 3.34 ticks.
"""

from __future__ import annotations

import math
from collections import deque

HEARTBEATS = 10
"""Heartbeats to a session timeout."""

DEFAULT_FRACTION = 2 / 3
_SPARSE = 40
"""Touches closer together than 1/40 of the timeout are not told apart."""


class Lease:
    """When the belief in one session ends. All times are seconds of one clock.

    ``timeout`` is the negotiated session timeout, ``fraction`` how much of it a proof is good
    for. ``idle`` is the longest time for which the client is known to leave the server without
    a touch, for clients whose touches cannot be seen; by default every touch is reported.
    """

    def __init__(
        self, timeout: float, fraction: float = DEFAULT_FRACTION, *, idle: float = math.inf
    ) -> None:
        self.timeout = timeout
        self.fraction = fraction
        self.end = -math.inf
        self._lag = (1 - 1 / HEARTBEATS - fraction) * timeout
        self._idle = idle
        self._connected = -math.inf
        self._touches: deque[tuple[float, float]] = deque()

    def connected(self, sent: float) -> None:
        """Note a (re)connection whose request was sent at ``sent``: earlier touches are void.

        Another server may not have told the leader of what this one was told.
        """
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
        told = sent - self._lag
        known = max(
            self._connected,
            told - self._idle,
            next((at for at, answered in reversed(self._touches) if answered <= told), -math.inf),
        )
        self.end = max(self.end, min(sent + self.fraction * self.timeout, known + self.timeout))
