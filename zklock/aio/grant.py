"""One acquisition, as asyncio sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, cast

from zklock import queries
from zklock.aio.waiting import ask, call_soon, finished
from zklock.clock import check_timeout, clock
from zklock.connection import check_thread
from zklock.effects import Claim
from zklock.grant import GrantBase, Terms
from zklock.session import Session

log = logging.getLogger("zklock")

_callbacks: set[asyncio.Task[Any]] = set()
"""Those that run: the loop itself keeps only weak references to tasks."""


class Grant(GrantBase):
    """One acquisition of a lock: held until it is released or lost, and never again after.

    Attributes as of :class:`zklock.Grant`, but ``lost`` is an ``asyncio.Event``. It is set, and
    callbacks run, on the event loop of the task that acquired, as soon as that is not busy;
    ``held``, ``check()`` and ``remaining()`` ask the clock and do not depend on the loop. A
    callback that is a coroutine function is run as a task. Once the loop is closed no callback
    is called.
    """

    def __init__(self, keeper: Session, *, claim: Claim, session_id: int, terms: Terms) -> None:
        super().__init__(keeper, claim=claim, session_id=session_id, terms=terms)
        self.lost = asyncio.Event()
        self._loop = self._loop_of(terms)
        self._session = keeper
        self._bodies: list[Body] = []

    @staticmethod
    def _loop_of(terms: Terms) -> asyncio.AbstractEventLoop | None:
        """Return the loop of whoever is to be told."""
        task = cast("weakref.ref[asyncio.Task[Any]]", terms.owner)()
        return None if task is None else task.get_loop()

    async def verify(self, timeout: float | None = None) -> None:
        """Have a quorum of ZooKeeper confirm that the lock is still held; return if it is.

        Raises ``LockLost``, ``NotHeld`` after the release, and ``NoAnswer`` if there was no
        answer within ``timeout`` seconds (default: for as long as the lease runs).
        ``WouldDeadlock`` on a thread of kazoo's.
        """
        limit = check_timeout(timeout)
        check_thread("verify()")
        self.check()
        sent = clock()
        try:
            there = await ask(
                self._session,
                lambda: queries.confirm(self._paths),
                self.lock_path,
                self.remaining() if limit is None else limit,
            )
            self._session.confirmed(self, sent, there)
        finally:
            self.check()

    async def release(self) -> None:
        """Give the lock back, from any task; a node whose deletion is not answered is seen to.

        Returns when ZooKeeper has answered, or after a bounded moment (at most a second) without
        an answer; the deletion then goes on in the background until it is done or the session
        is gone, as it does if this is cancelled. Raises ``LockLost`` if the grant was lost before,
        ``NotHeld`` if it was released before; ``AccessDenied`` if ZooKeeper's ACLs forbid the
        deletion; ``WouldDeadlock`` on a thread of kazoo's, where ``abandon()`` serves.
        """
        check_thread("release()")
        answer = self._end()
        if await finished(answer, self._session.moment):
            answer.result()
        else:
            log.info("no answer to a release yet: it goes on in the background")

    def _enter(self, body: Body) -> None:
        self._bodies.append(body)
        if self._loss is not None:
            asyncio.get_running_loop().call_soon(self._tell)

    def _leave(self, error: BaseException | None) -> bool:
        """Leave the innermost body; whether its error is the cancellation for the loss."""
        return self._bodies.pop().leave(error)

    def _set_lost(self) -> None:
        if self._loop is _running_loop():
            self.lost.set()
        if self._loop is None or not call_soon(self._loop, self._tell):
            with contextlib.suppress(RuntimeError):  # who waited for it does so no more
                self.lost.set()

    def _tell(self) -> None:
        self.lost.set()
        for body in self._bodies:
            body.cancel()

    def _notify(self, calls: list[Callable[[], object]]) -> None:
        for call in calls:
            if self._loop is None or not call_soon(self._loop, partial(_run, call)):
                log.warning("%s: a callback is not called: its event loop is over", self)

    def _forget_waiters(self) -> None:
        self._loop = None
        self.lost = asyncio.Event()


class _State(Enum):
    ENTERED = "entered"
    CANCELLING = "cancelling"
    LEFT = "left"


class Body:
    """The body of an ``async with``, cancelled once if its grant is lost.

    It accounts for its cancellation as ``asyncio.timeout()`` does: what it asked for is taken
    back on leaving, and a cancellation that others asked for, too, goes on.
    """

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = weakref.ref(task)
        self._before = task.cancelling()
        self._state = _State.ENTERED

    def cancel(self) -> None:
        """Cancel the body, unless it was or is left; called by the loop, not by the task."""
        task = self._task()
        if self._state is _State.ENTERED and task is not None:
            self._state = _State.CANCELLING
            task.cancel()

    def leave(self, error: BaseException | None) -> bool:
        """Leave, with this error; whether it is a cancellation that nobody else asked for."""
        state, self._state = self._state, _State.LEFT
        task = self._task()
        if state is not _State.CANCELLING or task is None:
            return False
        return task.uncancel() <= self._before and isinstance(error, asyncio.CancelledError)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _run(call: Callable[[], object]) -> None:
    """Run a callback, on the loop."""
    try:
        outcome = call()
    except Exception:
        log.exception("a callback of a lock raised")
        return
    if asyncio.iscoroutine(outcome):
        task = asyncio.get_running_loop().create_task(outcome, name="zklock-callback")
        _callbacks.add(task)
        task.add_done_callback(_ran)


def _ran(task: asyncio.Task[Any]) -> None:
    _callbacks.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.error("a callback of a lock raised", exc_info=task.exception())
