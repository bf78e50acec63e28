"""Wire requests: zklock's own requests, past kazoo's queue.

A wire request is serialised by zklock (``wire``) and written to the connection (``gateway``), which
takes its reply out of the stream. kazoo's way through its queue stays for everything else, and for
all requests while there is no open connection: on a read-only server, a client with another
handler, a connection that is being made or ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeAlias

from zklock._ground.records import log_fields
from zklock._ground.strikes import may_strike
from zklock._kazoo.watches import Watch
from zklock._recipes.effects import Batch

log = logging.getLogger("zklock")

Hear: TypeAlias = Callable[[int | None, bytes], object]
"""Takes a reply: its error code and its body; ``None`` and nothing if the request was dropped."""


class Connection(Protocol):
    """A connection that takes wire requests."""

    @property
    def open(self) -> bool:
        """Whether it takes them now."""


class Awaited(Protocol):
    """What a caller waits for, and may read itself: the replies to a batch."""

    @property
    def batch(self) -> Batch: ...

    def complete(self) -> None:
        """Complete it: what was not heard counts as dropped. Repeatable."""


class WireRequest:
    """A request, and who hears the reply, once.

    ``body`` is the opcode and the request. ``watch`` is set when the reply says so (see
    ``watches``). ``connection`` is the connection that it is meant for: it is written to no other.
    ``landing`` is that of its batch, if a caller waits for it (see ``gateway``). ``hear`` has who
    hears the reply. It is empty once the request is completed: it need not be sent any more.
    """

    __slots__ = ("body", "connection", "hear", "landing", "watch")

    def __init__(
        self,
        connection: Connection,
        body: bytes,
        hear: Hear,
        watch: Watch | None = None,
        landing: Awaited | None = None,
    ) -> None:
        self.connection = connection
        self.body = body
        self.watch = watch
        self.landing = landing
        self.hear = [hear]  # popped by whoever completes it: one step, and it is done once

    def land(self, error: int | None, body: bytes) -> None:
        """Complete; an error of ours does not end kazoo's connection thread.

        A caller whose request is dropped at once may be the main thread, where a signal handler may
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
