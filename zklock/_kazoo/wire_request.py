"""A wire request: one of zklock's own requests, past kazoo's queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from zklock._ground.interrupts import may_be_interrupted
from zklock._ground.records import log_fields
from zklock._kazoo.watches import Watch
from zklock._recipes.effects import Batch

log = logging.getLogger("zklock")

Hear: TypeAlias = Callable[[int | None, bytes], object]
"""Takes a reply: its error code and its body; ``None`` and nothing if the request was dropped."""


class Awaited(Protocol):
    """What a caller waits for, and may read itself: the replies to a batch."""

    @property
    def batch(self) -> Batch: ...

    @property
    def over(self) -> bool:
        """Whether no more replies are waited for, although some may come."""

    def complete(self) -> None:
        """Complete it: what was not heard counts as dropped. Repeatable."""


class WireRequest(NamedTuple):
    """A request, and who hears the reply.

    ``body`` is the opcode and the request. ``watch`` is set when the reply says so (see
    ``watches``). ``landing`` is that of its batch, if a caller waits for it.
    """

    body: bytes
    hear: Hear
    watch: Watch | None = None
    landing: Awaited | None = None

    def land(self, error: int | None, body: bytes) -> None:
        """Complete; an error of ours does not end the reader.

        A caller that reads may be the main thread, where a signal handler may have raised the
        error: there it goes on.
        """
        try:
            self.hear(error, body)
        except Exception:
            if may_be_interrupted():
                raise
            log.exception("the connection continues after an error in zklock", extra=log_fields())
