"""One acquisition, from its grant to its end, and how it may end before its time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

from zklock import lifecycle
from zklock.clock import check_timeout
from zklock.connection import check_thread
from zklock.effects import Claim
from zklock.errors import LockLost, NotHeld
from zklock.lifecycle import State, Step


class LossReason(Enum):
    """Why a grant ended without a release."""

    SESSION_EXPIRED = "ZooKeeper ended or replaced the session"
    LEASE_LAPSED = "the session could not be proven alive in time"
    NODE_DELETED = "the contender's node was deleted by somebody else"
    CLIENT_CLOSED = "the client was stopped, or its credentials were refused"
    FORKED = "this process was forked from the one that holds the lock"


@dataclass(frozen=True, slots=True)
class Loss:
    """What a lost callback is told.

    ``noticed`` and ``lease_end`` are seconds of the clock that counts since boot
    (``CLOCK_BOOTTIME`` where there is one, else ``time.monotonic()``).
    """

    reason: LossReason
    grant: GrantBase
    noticed: float
    lease_end: float

    def __str__(self) -> str:
        return (
            f"{self.grant.lock_path}: lock lost, token {self.grant.token}: {self.reason.value}; "
            "stop the guarded work and acquire again"
        )


LostCallback: TypeAlias = Callable[[Loss], object]


@dataclass(frozen=True, slots=True)
class Terms:
    """What is agreed on before a grant is given.

    ``grant`` is the class of the grant, ``owner`` the thread or task that asks for it.
    """

    lock_path: str
    identity: str
    on_lost: LostCallback | None = None
    on_suspended: Callable[[Any], object] | None = None
    on_release_requested: Callable[[Any], object] | None = None
    grant: type[GrantBase] | None = None
    owner: object = None


class Answer(Protocol):
    """ZooKeeper's answer to come."""

    def when_done(self, call: Callable[[], object]) -> None:
        """Call once it has come, on whichever thread brings it; at once if it has."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for so many seconds; whether it has come."""

    def result(self) -> object:
        """Raise the error that it was, if it was one."""


class Keeper(Protocol):
    """What a grant needs of its session."""

    guard: AbstractContextManager[object]

    def remaining(self) -> float:
        """Return seconds of lease; declares what is lost by now."""

    def notify(self, calls: list[Callable[[], object]]) -> None:
        """Run user callbacks on a thread of their own."""

    def let_go(self, grant: GrantBase) -> Answer:
        """Give the grant back to ZooKeeper, however long it takes."""

    def let_go_later(self, grant: GrantBase) -> None:
        """Give the grant back from a thread of its own."""

    def verify(self, grant: GrantBase, timeout: float | None) -> None:
        """Have a quorum confirm that the grant's nodes are still there."""

    def await_answer(self, answer: Answer) -> None:
        """Wait for an answer, for a bounded moment."""


class GrantBase:
    """What a grant is for threads and for asyncio alike; see ``Grant``."""

    def __init__(self, keeper: Keeper, *, claim: Claim, session_id: int, terms: Terms) -> None:
        self.token = claim.token
        self.path = claim.path
        self.tokens = (*(token for _, token in claim.others), claim.token)
        self.lock_path = terms.lock_path
        self.session_id = session_id
        self.identity = terms.identity
        self.abandoned = claim.abandoned
        self._paths = (*(path for path, _ in claim.others), claim.path)
        self._give_back = claim.release
        self._keeper = keeper
        self._terms = terms
        self._state = lifecycle.after(State.CONTENDING, Step.GRANT)
        self._loss: Loss | None = None
        self._callbacks = [terms.on_lost] if terms.on_lost else []
        self._asked: str | None = None
        self._reads = False  # a downgraded write lock

    @property
    def held(self) -> bool:
        """Whether the lock may be believed to be held, at the moment of the call.

        Answered locally and conservatively, from the clock: ``False`` before ZooKeeper can give
        the lock to another, also in the first instruction after the process was paused. Between
        this answer and what is done with it time passes: only a resource that checks the token
        closes that gap.
        """
        return self.remaining() > 0

    def remaining(self) -> float:
        """Return the seconds for which the lease still runs if nothing more is heard; else 0."""
        left = self._keeper.remaining()
        return left if self._state is State.HELD else 0.0

    @property
    def released(self) -> bool:
        """Whether it was given back (and not lost before)."""
        return self._state is State.RELEASED

    def check(self) -> None:
        """Raise ``LockLost`` once the lease has lapsed or the grant is lost otherwise.

        Raises ``NotHeld`` after the release. Asks the clock, not the network.
        """
        if not self.held:
            raise self._why_not()

    def abandon(self) -> None:
        """Give the lock back without waiting for ZooKeeper's answer; no error if it is over."""
        try:
            self._end()
        except (LockLost, NotHeld):
            return

    def add_lost_callback(self, callback: LostCallback) -> None:
        """Have ``callback(loss)`` called once if the grant is lost; at once if it already is.

        It runs on a thread of zklock's own; an exception in it is logged and stops no other.
        It is not called for a grant that was released.
        """
        if not callable(callback):
            raise TypeError(f"a lost callback must be callable, not {type(callback).__name__}")
        with self._keeper.guard:
            loss = self._loss
            if loss is None:
                self._callbacks.append(callback)
        if loss is not None:
            self._notify([lambda: callback(loss)])

    def _end(self) -> Answer:
        held = self.held
        ended = False
        try:
            with self._keeper.guard:
                if not held or self._state is not State.HELD:
                    raise self._why_not()
                ended = True
                self._state = lifecycle.after(self._state, Step.RELEASE)
            return self._keeper.let_go(self)
        except BaseException:
            if ended:
                self._keeper.let_go_later(self)
            raise

    def _lose(self, reason: LossReason, *, noticed: float, lease_end: float) -> bool:
        """Lose the grant if it is held; whether it was."""
        with self._keeper.guard:
            if self._state is not State.HELD:
                return False
            self._state = lifecycle.after(self._state, Step.LOSE)
            self._loss = loss = Loss(reason, self, noticed, lease_end)
            callbacks, self._callbacks = self._callbacks, []
        self._set_lost()
        if callbacks:
            self._notify([lambda call=call: call(loss) for call in callbacks])  # type: ignore[misc]
        return True

    def _set_lost(self) -> None:
        """Tell those who wait for the loss."""
        raise NotImplementedError

    def _notify(self, calls: list[Callable[[], object]]) -> None:
        """Run callbacks of the user's soon, in order."""
        raise NotImplementedError

    def _forget_waiters(self) -> None:
        """Start over in a forked child, where a lock of ``lost`` may be held for ever."""
        raise NotImplementedError

    def _suspended(self) -> None:
        callback = self._terms.on_suspended
        if callback is not None and self._state is State.HELD:
            self._notify([lambda: callback(self)])

    def _release_requested(self, request: str) -> None:
        """Tell the holder, once for each request."""
        callback = self._terms.on_release_requested
        if callback is not None and self._state is State.HELD and request != self._asked:
            self._asked = request
            self._notify([lambda: callback(self)])

    def _why_not(self) -> LockLost | NotHeld:
        if self._loss is not None:
            error = LockLost(str(self._loss), path=self.lock_path, token=self.token)
            error.loss = self._loss
            return error
        return NotHeld(
            f"{self.lock_path}: token {self.token} was released already: acquire again",
            path=self.lock_path,
            token=self.token,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path} token={self.token} {self._state.value}>"


class Grant(GrantBase):
    """One acquisition of a lock: held until it is released or lost, and never again after.

    Attributes, all fixed: ``token``, the ``FencingToken`` to hand to the guarded resource, and
    ``tokens``, one for each permit of a semaphore, in order, else just the one; ``path``, the full
    path of the contender's znode; ``lock_path``, the path of the lock; ``session_id`` of the
    ZooKeeper session; ``identity``, as stored in the znode; ``abandoned``, whether the grant
    before this one ended without a release, ``None`` where that is not kept track of; ``lost``, a
    ``threading.Event`` that is set once the grant is lost (not when it is released).
    """

    def __init__(self, keeper: Keeper, *, claim: Claim, session_id: int, terms: Terms) -> None:
        super().__init__(keeper, claim=claim, session_id=session_id, terms=terms)
        self.lost = threading.Event()

    def verify(self, timeout: float | None = None) -> None:
        """Have a quorum of ZooKeeper confirm that the lock is still held; return if it is.

        Raises ``LockLost``, ``NotHeld`` after the release, and ``NoAnswer`` if there was no
        answer within ``timeout`` seconds (default: for as long as the lease runs).
        ``WouldDeadlock`` on a thread of kazoo's.
        """
        limit = check_timeout(timeout)
        check_thread("verify()")
        self.check()
        try:
            self._keeper.verify(self, limit)
        finally:
            self.check()

    def release(self) -> None:
        """Give the lock back, from any thread; a node whose deletion is not answered is seen to.

        Returns when ZooKeeper has answered, or after a bounded moment (at most a second) without
        an answer; the deletion then goes on in the background until it is done or the session
        is gone. Raises ``LockLost`` if the grant was lost before, ``NotHeld`` if it was
        released before; ``AccessDenied`` if ZooKeeper's ACLs forbid the deletion;
        ``WouldDeadlock`` on a thread of kazoo's, where ``abandon()`` serves.
        """
        check_thread("release()")
        self._keeper.await_answer(self._end())

    def _set_lost(self) -> None:
        self.lost.set()

    def _notify(self, calls: list[Callable[[], object]]) -> None:
        self._keeper.notify(calls)

    def _forget_waiters(self) -> None:
        self.lost = threading.Event()
