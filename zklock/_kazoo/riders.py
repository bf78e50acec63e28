"""Riders: zklock's own requests, on kazoo's connection and past kazoo's queue.

kazoo keeps the connection: it opens it, shakes hands, authenticates, pings, reconnects, and carries
whatever the client's user asks for. A rider is a request of zklock's that is serialised by zklock
(``wire``), written to kazoo's socket, and whose reply is taken out of the stream before kazoo reads
it. kazoo's way through its queue stays for everything else, and for every rider while the line is
closed: TLS, read-only servers, a client with another handler, a connection that is being made or
ended.

**One thread at a time uses the connection**: whoever has the turn (``turn``). It numbers, writes,
reads, completes and fails riders. That is the connection thread, or for a moment a caller. A caller
that cannot have the turn at once puts its rider into the deque of kazoo's wake-ups, which is one
step, and wakes the connection thread. A forked child touches nothing of the connection.

Why it is right, and the tests (``tests/unit/test_riders.py`` and ``test_riders_turn.py`` where no
other file is named):

1. *No rider overtakes what the user has queued in kazoo before it.* A caller writes while no result
   of kazoo's is open (``turn``). A rider in the deque is written when kazoo, asked after the rider
   was put there, has nothing queued (``wake``).
2. *Nothing rides before or after the session.* The line opens when kazoo waits for replies and for
   wake-ups at once, which it does after handshake and authentication only, and not on a connection
   to a server that only reads. It closes with the request to end the session, and at the first sign
   of the connection's end.
3. *A later server has seen what riders have seen.* kazoo does not see the replies to riders. The
   handshake therefore carries the highest zxid that a rider's reply carried, if it is higher than
   kazoo's (``handler.seen``).
4. *What is under way at the end of a connection is dropped, exactly once.* The connection thread
   closes the socket, and then drops what awaits a reply and what is still in the deque. A caller
   that was late looks at the line after it has put its rider there, and drops it itself. Each rider
   is claimed by one of them (``Rider``). Only who has the turn uses the socket, so it is not closed
   under anybody.
5. *Order.* Frames are taken one by one. A frame for kazoo is read by kazoo before the next frame
   is looked at (``frames``). A caller takes the replies to its own riders, and leaves the rest. So
   every event is told before every later reply, whoever asked for either. One event is told by a
   caller, that for which it alone waits (``turn``). A later event may then be told before it, by
   the connection thread. The contender that waits is none the worse: it learns of a change of its
   own node, or of the end of its session, earlier. It has asked nothing that could be answered.
6. *kazoo sees whole frames only*, however they arrive; what is sent in part is sent to its end.
7. *A reply out of turn ends the connection.* Numbers are given when the bytes are appended to what
   is to be written, in one turn.
8. *Who waits is woken.* The outcome of an attempt wakes whoever waits for it (``outcome``), also at
   a timeout, a cancel or a loss; a bell wakes a caller that reads (``turn.Bell``). A completion on
   the connection thread may only put more riders into the deque: the turn is taken.
   ``tests/contract/test_aio.py``.
9. *An interrupt* leaves neither the turn taken, nor a rider unanswered: ``turn`` says how. If it
   has kept a wake-up from being sent, ``Store.fly`` sends it; and every later wake-up serves, too.
   What a handler raises goes on to the caller: nothing here catches it.
   ``tests/unit/test_riders_struck.py`` and ``tests/contract/test_struck.py``.
10. *A shared listing is joined after one's own create was put there* (``store``), in the one order.
    Who reads its own replies shares none. ``tests/unit/test_riders_and_kazoo.py``.
11. *Connections that kazoo opens for other things*, such as four-letter words, shake no hands: none
    of them becomes the line, or what ``drop()`` breaks. ``tests/contract/test_connecting.py``.

All of it together runs on the simulated system of ``tests/unit/simulator``, with every fault that
this has, and in ``tests/contract``, on real servers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeAlias

from zklock._ground.records import log_fields
from zklock._ground.strikes import may_strike
from zklock._kazoo.watches import Watch
from zklock._recipes.effects import Flight

log = logging.getLogger("zklock")

Hear: TypeAlias = Callable[[int | None, bytes], object]
"""Takes a reply: its error code and its body; ``None`` and nothing if the request was dropped."""


class Line(Protocol):
    """A connection that takes riders."""

    @property
    def rides(self) -> bool:
        """Whether it takes them now."""


class Awaited(Protocol):
    """What a caller waits for, and may read itself: the replies to a flight, or an event.

    ``flight`` is ``None`` for an event.
    """

    @property
    def flight(self) -> Flight | None: ...

    def complete(self) -> None:
        """Complete it: what was not heard counts as dropped. Repeatable."""


class Rider:
    """A request, and who hears the reply, once.

    ``body`` is the opcode and the request. ``watch`` is set when the reply says so (see
    ``watches``). ``line`` is the connection that it is meant for: it is written to no other.
    ``landing`` is that of its flight, if a caller waits for it (see ``turn``). ``hear`` has who
    hears the reply. It is empty once the rider is completed, which need not be sent any more then.
    """

    __slots__ = ("body", "hear", "landing", "line", "watch")

    def __init__(
        self,
        line: Line,
        body: bytes,
        hear: Hear,
        watch: Watch | None = None,
        landing: Awaited | None = None,
    ) -> None:
        self.line = line
        self.body = body
        self.watch = watch
        self.landing = landing
        self.hear = [hear]  # popped by whoever completes it: one step, and it is done once

    def land(self, error: int | None, body: bytes) -> None:
        """Complete; an error of ours does not end kazoo's connection thread.

        A caller whose rider is dropped at once may be the main thread, where a signal handler may
        have raised the error: there it goes on.
        """
        try:
            hear = self.hear.pop()
        except IndexError:
            return
        try:
            hear(error, body)
        except Exception:
            if may_strike():
                raise
            log.exception("the connection continues after an error in zklock", extra=log_fields())

    def drop(self) -> None:
        """Complete without a reply: the outcome is unknown. Repeatable."""
        self.land(None, b"")
