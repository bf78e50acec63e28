"""Observers of elections and pools, for threads."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, Self, TypeVar

from zklock._core.blocking import BLOCKING, run
from zklock._core.callbacks import ran
from zklock._core.session import Session
from zklock._election.changes import TURN, C, ChangesBase, Closing, Watch
from zklock._election.membership import MembershipChange
from zklock._election.observe import LeaderChange
from zklock._ground.mutexes import Mutex
from zklock._ground.records import log_fields

M = TypeVar("M")

log = logging.getLogger("zklock")


class Observer(Closing):
    """Calls back with every change, until ``close()``; leaving ``with`` closes it."""

    def __init__(self, session: Session, watch: Watch[C], callback: Callable[[C], object]) -> None:
        self._callback: Callable[[Any], object] = callback
        self._session = session
        self._lock = Mutex()
        self._calling = False
        self._closed = False
        watched = watch(self._wake)
        self._path = watched.path
        self._take: Callable[[], object] = watched.take
        self._attempt = watched.attempt
        try:
            self._attempt.start()
        except BaseException:
            try:
                self._attempt.cancel()
            finally:  # a second interrupt may have struck in it
                self._attempt.cancel()
            raise

    def close(self) -> None:
        """Make no more calls. A running call continues."""
        self._closed = True
        self._attempt.cancel()

    def _wake(self) -> None:
        with self._lock:
            if self._calling:
                return
            self._calling = True
        self._session.notify([self._call])

    def _call(self) -> None:
        while True:
            with self._lock:
                change = None if self._closed else self._take()
                self._calling = change is not None
            if change is None:
                return
            try:
                ran("an observer", self._callback(change))
            except BaseException:  # SystemExit too: else it would end this thread, unnoticed
                log.exception("an observer raised", extra=log_fields(path=self._path))


class Mail:
    """Where a thread waits for news."""

    def __init__(self) -> None:
        # Not an Event: an interrupt while it is waited for leaves it locked.
        self._queue: SimpleQueue[None] = SimpleQueue()

    def put(self) -> None:
        if self._queue.empty():
            self._queue.put(None)

    async def wait(self, session: Session, seconds: float | None = None) -> None:
        limit = session.limit(seconds, self.put)
        with contextlib.suppress(Empty):
            self._queue.get(timeout=TURN if limit is None else max(0.0, min(limit, TURN)))


class Changes(ChangesBase[C]):
    """Iterates over changes. For one thread."""

    _FRONT = BLOCKING
    _MAIL = Mail

    def next(self, timeout: float | None = None) -> C | None:
        """Return the next change; ``None`` if there is none within ``timeout`` seconds."""
        return run(self._next, timeout)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> C:
        change = self.next(self._timeout)
        if change is None:
            raise StopIteration
        return change


class LeaderChanges(Changes[LeaderChange]):
    """Iterates over the changes of leader; leaving ``with`` closes it. For one thread."""


class MembershipChanges(Changes[MembershipChange[M]], Generic[M]):
    """Iterates over the changes of the members; leaving ``with`` closes it. For one thread."""
