"""A mailbox: whatever is told to its owner is handled by one thread at a time.

No lock is taken, and nobody waits. Whoever brings news handles it, and all that came meanwhile. If
another thread is handling news already, or this is a signal handler that has interrupted it, the
news is only queued: the other handles it before it stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from zklock._engine.transition_table import IllegalStep
from zklock._ground.records import log_fields
from zklock._ground.strikes import may_strike

log = logging.getLogger("zklock")


class MailHost(Protocol):
    """What a mailbox needs from its host."""

    @property
    def interrupted(self) -> bool:
        """Whether this is a signal handler that has interrupted a change on its own thread."""

    def later(self, job: Callable[[], object]) -> None:
        """Run the job soon, on the host's own thread."""


class Mailbox:
    """News, and the thread that handles it.

    An exception while news is handled, such as a ``KeyboardInterrupt`` at any moment, may leave the
    owner torn apart. Then ``_torn(error)`` is called, perhaps twice: a second exception may strike
    in the middle of it. ``IllegalStep`` alone has changed nothing. ``Exception`` is logged, except
    ``IllegalStep``; the rest goes on to whoever brought the news. So does ``Exception`` on the main
    thread, where a signal handler may have raised it.
    """

    def __init__(self, host: MailHost) -> None:
        self.__host = host
        # A list, as it takes a tenth of a deque's memory, and is hardly ever long.
        self.__news: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        # The thread that handles news. setdefault() is one step: nothing can come in between.
        self.__handling: dict[None, object] = {}

    def _torn(self, error: BaseException) -> None:
        """Go on after an exception out of nowhere. Must be repeatable."""
        raise NotImplementedError

    def _tell(self, handle: Callable[..., object], *news: object) -> None:
        """Have the news handled: ``handle(*news)`` is called."""
        self.__news.append((handle, news))
        if self.__host.interrupted:
            self.__host.later(self.__handle)
        else:
            self.__handle()

    def __handle(self) -> None:
        me = object()
        try:
            self.__handle_all(me)
        except IllegalStep:
            self.__stop(me)
            raise
        except BaseException as error:
            try:
                if self.__handling.get(None) is me:
                    self._torn(error)
            finally:
                # A second exception may have struck before the first was handled.
                if self.__handling.get(None) is me:
                    self.__news.insert(0, (self._torn, (error,)))
                self.__stop(me)
            if not isinstance(error, Exception) or may_strike():
                raise
            log.exception("an acquire was interrupted; cleaning up", extra=log_fields())

    def __handle_all(self, me: object) -> None:
        # If another thread handles news, it looks again when it ends.
        while self.__news and self.__handling.setdefault(None, me) is me:
            while self.__news:
                handle, news = self.__news.pop(0)
                handle(*news)
            self.__handling.clear()  # unlike del, it keeps no table for what comes next

    def __stop(self, me: object) -> None:
        """Let others handle what is left."""
        if self.__handling.get(None) is me:
            self.__handling.clear()
        self.__host.later(self.__handle)
