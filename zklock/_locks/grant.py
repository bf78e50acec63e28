"""A grant for threads, and how a thread enters and leaves one by ``with``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from zklock._core.blocking import BLOCKING, run
from zklock._core.contexts import (
    Acquired,
    AttemptingBase,
    B,
    Context,
    EnteredContext,
    GrantContext,
    T,
)
from zklock._core.grant import GrantBase
from zklock._ground.cached_property import cached_property
from zklock._ground.context_exit import EntersContext, HeldContext, entered
from zklock._ground.events import Event


class Mine(threading.local):
    def __init__(self) -> None:
        self.holdings: Acquired[Any] = Acquired()


class Leaves(Context):
    """How a thread leaves a ``with`` body."""

    def _leave_body(self, error: BaseException | None) -> None:
        run(self._end_body, error)


class Entered(HeldContext, GrantContext, Leaves):
    """What a thread holds already, and releases at the end of a ``with`` body."""


class Enters(EntersContext, Leaves, EnteredContext[T]):
    """How a thread enters what it holds from then on."""

    def __enter__(self) -> T:
        body = entered(self)
        try:
            grant = run(self._enter, body)
        except BaseException:
            body.watches = ()
            raise
        body.held = True
        return grant


class Attempting(AttemptingBase[B], Enters[B | None]):
    """``with lock.attempt(…)``, for threads."""

    def __init__(self, acquire: Callable[[], B | None]) -> None:
        async def take() -> B | None:
            return acquire()

        super().__init__(take)


class Grant(GrantBase, Entered):
    """One acquisition of a lock: held until it is released or lost, and never again after.

    All attributes are fixed. ``token`` is the ``FencingToken`` to hand to the guarded resource.
    ``tokens`` has one token for each permit of a semaphore, in order; for other locks it has just
    the one. ``path`` is the full path of the contender's znode; ``lock_path`` is the path of the
    lock. ``session_id`` is that of the ZooKeeper session. ``identity`` is the text that is stored
    in the znode. ``abandoned`` says whether the grant before this one ended without a release;
    it is ``None`` where that is not tracked. ``lost`` is a ``threading.Event`` that is set once
    the grant is lost (not when it is released).

    A grant is a context manager: ``with lock.acquire() as grant:``. Leaving the body releases it,
    by the rules of ``with lock``: if the grant is over by then, ``LockLost`` or ``NotHeld`` is
    raised; an error of the body is kept. A re-entrant lock that was acquired more often stays held.
    """

    _FRONT = BLOCKING

    @cached_property
    def lost(self) -> threading.Event:
        """Set once the grant is lost, not when it is released."""
        return Event()

    def verify(self, timeout: float | None = None) -> None:
        """Ask a quorum of ZooKeeper whether the lock is still held; return if it is.

        Raises ``LockLost``, ``NotHeld`` after the release, and ``NoAnswer`` if there was no answer
        within ``timeout`` seconds (default: for as long as the lease runs). Raises
        ``WouldDeadlock`` on a kazoo thread.
        """
        run(self._verify, timeout)

    def release(self) -> None:
        """Release the lock, from any thread.

        Returns when ZooKeeper has answered, or after a bounded moment (at most a second) without an
        answer. Without an answer, the deletion of the node continues in the background until it is
        done or the session is gone.

        Raises ``LockLost`` if the grant was lost before, and ``NotHeld`` if it was released before.
        Raises ``AccessDenied`` if ZooKeeper's ACLs forbid the deletion. Raises ``WouldDeadlock`` on
        a kazoo thread: use ``abandon()`` there. In a signal handler it may return without waiting
        for the answer: use ``abandon()`` there, too.
        """
        run(self._release)

    def _set_lost(self) -> None:
        self.lost.set()

    def _notify(self, calls: list[Callable[[], object]]) -> None:
        self._keeper.notify(calls)

    def _forget_waiters(self) -> None:
        self.lost = Event()
