"""What observers of an election or a pool are for threads and for asyncio alike."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar

from zklock._core.attempt import Attempt
from zklock._core.callbacks import check_callback
from zklock._core.loops import check_thread
from zklock._core.script import Front, R
from zklock._core.session import Session
from zklock._election.observe import LeaderChange
from zklock._ground.clock import check_timeout, seconds_left
from zklock._ground.mutexes import Mutex
from zklock._recipes.effects import Recipe

TURN = 0.2
"""The longest wait of a thread at a time, in seconds. Python misses a signal that arrives just
before the wait begins. Also the longest sleep between two looks at a grace."""

C = TypeVar("C")


class Closing:
    """ContextExit ``with`` closes it."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Observed:
    """What may be asked and observed."""

    _AWAITS: ClassVar[bool]
    _FRONT: ClassVar[Front]
    _session: Session
    _path: str

    async def _ask(self, what: str, query: Callable[[], Recipe[R]], timeout: float | None) -> R:
        """Run a query and return its result; ``NoAnswer`` if not in time."""
        check_thread(what)
        return await self._FRONT.ask(self._session, query, self._path, check_timeout(timeout))

    def _observing(self, timeout: float | None = None, **required: object) -> float | None:
        """Raise if it cannot be observed, or not so; return the limit of a wait for a change."""
        for name, callback in required.items():
            check_callback(self._AWAITS, name, callback)
        limit = check_timeout(timeout)
        self._session.check_usable()
        return limit


@dataclass(frozen=True, slots=True)
class Watched(Generic[C]):
    """What is observed: the attempt that looks, not started yet, and what takes the next change.

    ``path``: that of the election or pool, for the log.
    """

    path: str
    attempt: Attempt[None]
    take: Callable[[], C | None]


Watch: TypeAlias = Callable[[Callable[[], object]], Watched[C]]
"""Begins to observe. Its argument is called when there may be a change. It must not block."""


KEPT = 64
"""How many changes of leader are kept for a slow observer. One more replaces them all."""


class Feed:
    """The changes of leader that one observer was not told yet, oldest first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = Mutex()
        self._changes: deque[LeaderChange] = deque()

    def put(self, change: LeaderChange) -> None:
        """Add a change. If too many are kept already, it replaces them all, with ``gap`` set."""
        with self._lock:
            if len(self._changes) >= self._kept:
                self._changes.clear()
                change = replace(change, gap=True, same_leader=False)
            self._changes.append(change)

    def take(self) -> LeaderChange | None:
        """Remove and return the oldest; ``None`` if there is none."""
        with self._lock:
            return self._changes.popleft() if self._changes else None


class Mailbox(Protocol):
    """Where a front waits for news."""

    def put(self) -> None:
        """Say that there is news. From any thread."""

    async def wait(self, session: Session, seconds: float | None = None) -> None:
        """Wait for news, at most ``seconds``; a thread for a turn at most."""


class ChangesBase(Closing, Generic[C]):
    """Changes, one after the other; see ``LeaderChanges``."""

    _FRONT: ClassVar[Front]
    _MAIL: ClassVar[type[Mailbox]]

    def __init__(self, session: Session, watch: Watch[C], timeout: float | None) -> None:
        self._session = session
        self._timeout = timeout
        self._closed = False
        self._mail = self._MAIL()
        # Neither refers to this object, which is closed when it is forgotten.
        wake = self._mail.put
        watched = watch(wake)
        self._path = watched.path
        self._take = watched.take
        self._attempt = attempt = watched.attempt
        attempt.when_done(wake)
        self._close = weakref.finalize(self, lambda: session.later(attempt.cancel))
        self._close.atexit = False
        attempt.when_done(self._close.detach)  # the outcome may refer to this object
        self._FRONT.begin(attempt)

    def close(self) -> None:
        """End the iteration. A change that was not taken yet is dropped."""
        self._closed = True
        self._attempt.cancel()

    async def _next(self, timeout: float | None) -> C | None:
        check_thread("next()")
        limit = check_timeout(timeout)
        self._session.check_process()
        until = None if limit is None else self._session.now() + limit
        while self._closed or (change := self._take()) is None:
            if self._attempt.done:
                self._attempt.result()
                return None
            left = seconds_left(until, self._session.now())
            if left == 0:
                return None
            await self._mail.wait(self._session, left)
        return change
