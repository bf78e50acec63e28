"""kazoo's wake-ups, in the place of a pair of sockets.

kazoo queues a request and then sends one wake-up. For each wake-up its connection thread sends the
oldest request of its queue, or finds that there is none; then it receives the wake-up. A thread
that was held or interrupted between the two has left a request without a wake-up: kazoo sends it
for the wake-up of another, whose own request then stays in the queue. So counting is not enough:
*if kazoo looks and sends nothing, its queue is empty.*
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable


class Wakes:
    """Both ends: a thread that has queued a request sends, and kazoo's connection thread receives.

    ``ready``: those that are to be received. ``rouse`` wakes that thread if it waits. Sending never
    blocks; kazoo's own pair would after some 280 requests. No lock is taken: a wake-up may come
    from a signal handler that has interrupted another wake-up.
    """

    def __init__(self, rouse: Callable[[], object]) -> None:
        self.closed = False
        self.ready: deque[None] = deque()
        self._rouse = rouse

    def close(self) -> None:
        """Note that the client is closed."""
        self.closed = True

    def send(self, data: bytes) -> int:
        """Wake kazoo's connection thread for one request of its queue."""
        self.ready.append(None)
        self._rouse()
        return len(data)

    def recv(self, size: int) -> bytes:
        """Receive one: kazoo has sent its oldest request, or has none."""
        with contextlib.suppress(IndexError):  # it has looked although nobody has woken it
            self.ready.popleft()
        return b"\0"
