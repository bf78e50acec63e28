"""What a change under a lock leaves to be done after it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable

from zklock._ground.records import Fields, log_fields
from zklock._ground.strikes import may_strike

log = logging.getLogger("zklock")


class _Sending(threading.local):
    """Whether this thread is sending. A duty may call ``send()``: through a user's log handler."""

    on = False


class Outbox:
    """Duties and messages that wait until the lock is free.

    A duty is kept until it has run to its end. If an interrupt strikes in between, the next sender
    runs it again. On the main thread, every error may be an interrupt. Two threads may run one duty
    at the same time. So a duty must be harmless when it is repeated. ``send()`` returns when
    everything that was there is done, by whichever thread. A message is logged at most once.
    Nothing here takes a lock.
    """

    def __init__(self) -> None:
        self._duties: deque[Callable[[], object]] = deque()
        self._messages: deque[tuple[str, tuple[object, ...], Fields]] = deque()
        self._sending = _Sending()

    def __bool__(self) -> bool:
        return bool(self._duties or self._messages)

    def add(self, duty: Callable[[], object]) -> None:
        """Have this called after the change."""
        self._duties.append(duty)

    def warn(self, message: str, *args: object, extra: Fields) -> None:
        """Log a warning after the change."""
        self._messages.append((message, args, extra))

    def send(self) -> None:
        """Do everything; call this without the lock. An error of one duty stops no other."""
        if not (self._duties or self._messages) or self._sending.on:
            return
        try:
            self._sending.on = True
            self._send()
        finally:
            self._sending.on = False

    def _send(self) -> None:
        while self._duties:
            try:
                duty = self._duties[0]
            except IndexError:
                break  # another thread has done the last one
            try:
                duty()
            except Exception:
                if may_strike():
                    raise
                log.exception(
                    "zklock continues after an error in a follow-up action", extra=log_fields()
                )
            with contextlib.suppress(ValueError):  # another thread has done it, too
                self._duties.remove(duty)
        while self._messages:
            try:
                message, args, extra = self._messages.popleft()
            except IndexError:
                break
            log.warning(message, *args, extra=extra)
