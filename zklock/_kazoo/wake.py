"""kazoo's wake-ups, in the place of a pair of sockets.

kazoo queues a request and then sends one wake-up. For each wake-up its connection thread sends the
oldest request of its queue, or finds that there is none; then it receives the wake-up. A thread
that was held or interrupted between the two has left a request without a wake-up: kazoo sends it
for the wake-up of another, whose own request then stays in the queue. So counting is not enough.
*If kazoo is woken and sends nothing, its queue is empty.*
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable


class Wakes:
    """The wake-ups, which kazoo's connection thread receives one by one.

    ``rouse`` wakes that thread if it waits. No lock is taken: a wake-up may come from a signal
    handler that has interrupted another wake-up.
    """

    def __init__(self, rouse: Callable[[], object]) -> None:
        self.closed = False
        self._near_head = rouse
        self._ready: deque[None] = deque()
        self._sent = False  # by kazoo, since it received the last wake-up
        self._emptying = False

    def close(self) -> None:
        """Note that the client is closed."""
        self.closed = True

    def pending(self) -> int:
        """Return how many there are."""
        return len(self._ready)

    def sent(self) -> None:
        """Note that kazoo has sent a request."""
        self._sent = True

    def recv(self, size: int) -> bytes:
        """Receive one: kazoo has sent its oldest request, or has none."""
        sent, self._sent = self._sent, False
        self._emptying &= sent
        if not (self._emptying and len(self._ready) == 1):
            with contextlib.suppress(IndexError):
                self._ready.popleft()
        return b"\0"

    def wake(self) -> None:
        """Wake kazoo's connection thread for one request of its queue."""
        self._ready.append(None)
        self._near_head()

    def empty(self) -> None:
        """Wake it for all requests of its queue."""
        self._emptying = True
        self.wake()


class WakeWriter:
    """The writing end: never blocks; kazoo's own would block after some 280 unsent requests."""

    def __init__(self, reader: Wakes) -> None:
        self._reader = reader

    def send(self, data: bytes) -> int:
        self._reader.wake()
        return len(data)

    def close(self) -> None:
        self._reader.close()
