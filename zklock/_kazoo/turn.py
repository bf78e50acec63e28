"""Whose turn it is to use a connection that carries riders.

Whoever has the turn numbers requests, writes, reads, and sorts what was read. The connection
thread has it, but while it waits in kazoo's main loop. Meanwhile a caller may take it, for as long
as it needs to write its riders, or to take the replies to them. A caller does not wait for it: if
somebody else has it, the caller leaves its riders to the connection thread.

A caller *reads* if it waits for the flight that it sends, and nothing else is under way on the
connection. Until the flight is answered, or anybody else has something to do with the connection,
the connection thread does not hear what arrives. So nobody is woken who does not read.

A caller *listens* in the same way while its contender waits for the end of the one before it. It
takes one event only: the deletion of that node, if it comes next, if this caller alone is to be
told of it, and if kazoo does not watch the node, too. All else is left where it is, for the
connection thread. So events are told in their order. The next thing that anybody sends, a heartbeat
for instance, ends the listening for good: from then on the connection thread tells of the deletion.
That others do not wait for it is looked up after the listening has begun. Whoever begins to wait
for it later sends a request for that, which ends the listening.

1. *The turn is taken and given back whatever strikes.* A signal handler may raise between two steps
   of the main thread. Python looks for signals when a call of C returns, when a function of Python
   begins, and when a loop goes round. It does not look where a ``for`` statement takes the next
   item. So the turn is taken by ``for taken in map(turn.acquire, TRY)``: what follows knows whether
   it was taken. It is given back by one call of C.
2. *Who was struck in a turn leaves a mark.* It is not known then how much of a frame is on the
   wire, or was read. ``struck`` is set before the first step that changes anything, and unset after
   the last one. Whoever finds it set does nothing with the connection. The connection thread ends
   it: all that is under way is dropped.
3. *A reply that was taken is heard.* A reader that is struck after it has taken replies leaves
   their landing to the connection thread (``orphans``), which completes it. What was not heard
   counts as dropped. A landing may be completed twice, with the same results. After an event, the
   contender looks again.
4. *A signal handler cannot wait for what it has interrupted.* It is told so if it asks zklock for
   something in the turn of its own thread (``RidingHandler.callers``). One that waits for something
   else, or sleeps, keeps the connection thread from its turn. After a third of the session timeout,
   the connection thread gives the connection up. It does not close it under the caller: the caller
   closes it when it comes back.
5. *A reader that does not come back keeps nobody.* A signal handler may have interrupted it where
   it waits, when it does not have the turn. Whoever has something to do with the connection ends
   the reading first, and the connection thread hears again what arrives. Heartbeats do so, too.
   Until then, events for others wait: for a tenth of the session timeout while something is held,
   and for a third at most. A caller itself sleeps for ``TURN`` at most, and then looks again:
   a signal handler may have closed the client, and with it the bell.
6. *No rider overtakes what the user has queued in kazoo.* kazoo asks the handler for a result
   before it queues a request, and keeps the result in the queue. So while no result of kazoo's is
   open, the queue is empty. A caller writes only then; else kazoo is asked (see ``wake``).
7. *Nobody sleeps on who was woken.* Whoever ends a reading rings, and so does the outcome of an
   attempt. All callers share one bell. Only who begins to read forgets what has rung, and nobody
   begins while another caller still waits at the bell (``Bell.waiting``): it could sleep on. Who
   listens looks once more whether it still has to wait, after it has forgotten what has rung.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from zklock._ground.events import TURN
from zklock._ground.strikes import of_the_call
from zklock._kazoo.riders import Awaited
from zklock._kazoo.spin import Glance, Spin, milliseconds

TRY = (False,)
"""The argument of an ``acquire()`` that does not wait."""

READS = hasattr(select, "epoll")
"""Whether callers can read: it must be possible to have another thread not hear what arrives."""


class Turn:
    """The turn of one connection. It is the connection thread's to begin with.

    ``reading``: what a caller reads the replies to. Only who has the turn changes this.
    """

    __slots__ = (
        "_armed",
        "_poller",
        "acquire",
        "given_up",
        "reading",
        "release",
        "struck",
    )

    def __init__(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self.acquire = lock.acquire
        self.release = lock.release
        self.struck = False
        self.given_up = (
            False  # by the connection thread: whoever has the turn closes the connection
        )
        self.reading: Awaited | None = None
        self._poller: Any = None  # until kazoo's main loop begins
        self._armed = True

    def open(self, *descriptors: int) -> None:
        """Prepare to wait for these, once: the connection, and wake-ups. Nobody rides before."""
        if self._poller is not None:
            return
        self._poller = select.epoll() if READS else select.poll()
        for each in descriptors:
            self._poller.register(each, select.POLLIN)

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        """Wait for something to read; return it by descriptor."""
        limit = milliseconds(seconds)
        if READS and limit is not None:
            limit /= 1000
        happened: list[tuple[int, int]] = self._poller.poll(limit)
        return happened

    def close(self) -> None:
        """Wait for nothing any more. An error that is kept, in a log, may keep the connection."""
        self.reading, self._armed = None, True
        if READS and self._poller is not None:
            self._poller.close()

    def read(self, connection: int, awaited: Awaited) -> None:
        """Have the connection thread not hear what arrives, for a caller that reads."""
        self.reading, self._armed = awaited, False
        self._poller.modify(connection, 0)

    def stop_reading(self, connection: int) -> None:
        """Have the connection thread hear what arrives."""
        self.reading = None
        if not self._armed:
            self._poller.modify(connection, select.POLLIN)
            self._armed = True


class Bell:
    """Wakes the caller that reads."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        weakref.finalize(self, _close, self._write, self._read).atexit = False
        for each in (self._read, self._write):
            each.setblocking(False)
        self._rung = False
        self._spin = Spin()
        self.glance = Glance()
        self._ears: deque[tuple[int, Any]] = deque()
        self._inside: set[object] = set()

    def ring(self) -> None:
        """Wake the caller."""
        self._rung = True
        try:
            self._write.send(b"\0")
        except OSError as error:
            if not of_the_call(error):
                raise
            return  # full, so that it rings already; or closed, with the client
        self._rung = True  # a caller may have hushed it before it rang

    def hush(self) -> None:
        """Forget what has rung before. Nobody else may wait: it could sleep on, unheard."""
        if self._rung:
            self._rung = False
            with contextlib.suppress(BlockingIOError):
                self._read.recv(65536)

    @property
    def waiting(self) -> int:
        """How many callers wait here, or are about to: who reads, and perhaps who has read."""
        return len(self._inside)

    def wait(self, connection: int, seconds: float | None, due: Callable[[], bool]) -> bool:
        """Wait until something has arrived at the connection, or the bell rings, or for ``TURN``.

        At most ``seconds``; with ``None``, as long as one may who must not sleep. Return whether
        something may have come. ``due()``: whether to wait; what makes it false rings afterwards.
        """
        if seconds is None:
            return self._wait(connection, due, self.glance.wait)
        limit = min(seconds, TURN)
        return self._wait(connection, due, lambda poll: self._spin.wait(poll, limit))

    def listen(self, connection: int, seconds: float, due: Callable[[], bool]) -> bool:
        """Wait for something that may take long: sleep at once, and do not learn from it.

        Return whether it was due.
        """
        limit = milliseconds(min(seconds, TURN))
        return self._wait(connection, due, lambda poll: poll(limit))

    def _wait(
        self, connection: int, due: Callable[[], bool], wait: Callable[[Any], object]
    ) -> bool:
        """Wait by ``wait(poll)``, if it is due; ``False`` alone says that nothing has come."""
        me = object()
        try:
            self._inside.add(me)
            if not due():
                return False
            ear = self._ear(connection)
            come = wait(ear.poll)
        finally:
            self._inside.discard(me)
        self._ears.append((connection, ear))
        return come is not False

    def _ear(self, connection: int) -> Any:
        """Return what waits for both; it is put back afterwards, for the next wait."""
        try:
            number, ear = self._ears.pop()
        except IndexError:
            number, ear = -1, None
        if number != connection:
            ear = select.poll()
            for each in (connection, self._read.fileno()):
                if each >= 0:
                    ear.register(each, select.POLLIN)
        return ear

    def close(self) -> None:
        """Close its sockets."""
        _close(self._write, self._read)


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        each.close()
