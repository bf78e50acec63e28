"""What wakes kazoo's connection thread: kazoo's wake-ups, and our wire requests, in one queue.

kazoo queues a request and then sends one wake-up. For each wake-up its connection thread sends the
oldest request of its queue, or finds that there is none; then it receives the wake-up. zklock
cannot see kazoo's queue, and need not: it sees whether a request was sent before the wake-up was
received.

A wire request is put into the deque of the wake-ups. When it has become the first, kazoo is woken
for it. *If kazoo sends nothing, its queue was empty at that moment, after the wire request was put
there.* Then the wire request is written, with those right behind it. If kazoo sends a request, this
may be older, and kazoo is woken again.

So everything that the user had queued when a wire request was put there is written before it. (What
is queued after it may be written before it, too. Whoever asked has not waited for it.) This is
needed, and counting wake-ups is not enough. A thread may have queued a request and not woken kazoo
yet. Kazoo sends that request for the wake-up of the next thread, whose own request is then still
queued when all wake-ups are received.

For the wire requests right behind it nothing has to be asked again: what was queued before one of
them had its wake-up sent before it, and this wake-up is not between them.

A user who never lets kazoo's queue be empty must not keep wire requests, and heartbeats among
them, from being sent. So after ``ASKED`` requests in a row the wire request is written. Those that
it must not overtake are fewer: when it becomes the first, all wake-ups from before it are received,
and each has sent a request, or had none to send. What is left from before it was queued by threads
that were just between queueing and waking, or were interrupted there: one request each.

What kazoo sends while a wire request stands first leaves its wake-up behind it. Each of these would
have kazoo send one more request before the next wire request, and they would pile up. So they are
counted (``_surplus``), and as many wake-ups are not passed on once they stand first. The last thing
in the queue is passed on again and again until kazoo has nothing to send: a thread that was
interrupted before it woke kazoo has left a request without a wake-up. Then nothing is queued, and
no wake-up is surplus any more.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from zklock._kazoo.wire_request import Connection, WireRequest

ASKED = 256
"""How often kazoo is asked for older requests before a wire request is written.

So at most one more than that go before it, of those that were queued later.
"""


class Wakes:
    """The queue of wake-ups and wire requests, which kazoo's connection thread takes one by one.

    ``rouse`` wakes the connection thread if it waits, for what was put in line before.

    No lock is taken: a wake-up may come from a signal handler that has interrupted another wake-up.
    """

    def __init__(self, write: Callable[[Wakes], object], rouse: Callable[[], object]) -> None:
        self.rouse = rouse
        self.closed = False
        self._ready: deque[WireRequest | None] = deque()  # None: a wake-up of kazoo's
        self._sent = False  # by kazoo, since it received the last wake-up
        self._asked = 0
        self._surplus = 0
        self._write_requests = write

    def close(self) -> None:
        """Note that the client is closed."""
        self.closed = True

    def pending(self) -> int:
        """Return how many wake-ups and wire requests stand in it."""
        return len(self._ready)

    def sent(self) -> None:
        """Note that kazoo has sent a request."""
        self._sent = True

    def recv(self, size: int) -> bytes:
        """Receive one wake-up: kazoo has sent its oldest request, or has none. See the module."""
        sent, self._sent = self._sent, False
        ready = self._ready
        if not sent:
            self._surplus = 0
        if not ready or ready[0] is None:
            if not (self._surplus and len(ready) == 1):
                with contextlib.suppress(IndexError):
                    ready.popleft()
        else:
            self._surplus += sent
            self._asked += 1
            if not sent or self._asked > ASKED:
                self._asked = 0
                self._write_requests(self)
        while self._surplus and len(ready) > 1 and ready[0] is None:
            ready.popleft()
            self._surplus -= 1
        return b"\0"

    def hand_over(self, take: Callable[[WireRequest], bool]) -> bool:
        """Have the wire requests that stand first taken; return whether nothing is left.

        One leaves the queue only when it was taken: an interrupt loses none. ``take`` returns
        whether it was.
        """
        ready = self._ready
        while ready and (first := ready[0]) is not None:
            if not take(first):
                return False
            with contextlib.suppress(ValueError):  # the connection was given up meanwhile
                ready.remove(first)
        return not ready

    def enqueue(self, request: WireRequest) -> None:
        """Put a wire request behind what is there; ``rouse()`` must follow."""
        self._ready.append(request)

    def wake(self) -> None:
        """Wake kazoo's connection thread for one request of its queue."""
        self._ready.append(None)
        self.rouse()

    def strand(self, line: Connection) -> None:
        """Drop those of a closed connection; they leave the deque when they are first."""
        for each in self._ready.copy():
            if each is not None and each.connection is line:
                each.drop()


class WakeWriter:
    """The writing end: never blocks; kazoo's own would block after some 280 unsent requests."""

    def __init__(self, reader: Wakes) -> None:
        self._reader = reader

    def send(self, data: bytes) -> int:
        self._reader.wake()
        return len(data)

    def close(self) -> None:
        self._reader.close()
