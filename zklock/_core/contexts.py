"""The bodies of ``with`` statements: what begins one, and how one ends. For both fronts.

A use of a grant is given back once, whatever interrupts it. The last step of giving back notes
that, and is the last moment at which an interrupt can strike: see ``ContextExit._abandon_body``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from zklock._ground.context_exit import Body, ContextExit
from zklock._ground.interrupts import raised_by_zklock
from zklock._ground.not_copyable import NotCopyable
from zklock._ground.records import log_fields
from zklock._recipes.lock import Entry
from zklock.errors import AcquireTimeout, LockLost, NotHeld, ZkLockError

T = TypeVar("T")

log = logging.getLogger("zklock")


class Uses(Protocol):
    """What counts how often the running thread or task has acquired a grant."""

    async def _give_back(self, grant: Any) -> None:
        """Release one use of the grant."""

    def _abandon_use(self, grant: Any) -> None:
        """Give up one use, without waiting; the last one gives the grant back."""


class Context(ContextExit):
    """What has to do something at the end of a ``with`` body."""

    async def _end_body(self, error: BaseException | None) -> None:
        """Leave the innermost body, and release; an error of the body is kept, and noted."""
        raise NotImplementedError


class GrantContext(NotCopyable, Context):
    """What may be held for a ``with`` body, and is released at its end.

    ``_abandon_body`` gives up one of the uses that the running thread or task has.
    """

    def _get_ready(self) -> None:
        """Get ready to be entered, before whoever may enter it has got it."""

    def _get_unready(self) -> None:
        """Nothing has to be given back any more."""

    def _enter(self) -> None:
        """Begin a ``with`` body of the running thread or task."""

    def _leave(self, error: BaseException | None) -> bool:
        """Leave the innermost body. Return whether its error is the cancellation for the loss."""
        return False

    async def _give_back_use(self) -> None:
        """Release one use of it: the running thread or task may have several."""
        raise NotImplementedError

    async def _end_body(self, error: BaseException | None) -> None:
        ours = self._leave(error)
        try:
            await self._give_back_use()
        except raised_by_zklock(LockLost, NotHeld) as ended:
            prefer(ended, error, ours)


B = TypeVar("B", bound=GrantContext)


class Acquired(Generic[B]):
    """What one thread or task acquired, newest last, and which of it an ``ExitStack`` entered.

    A grant that is shared by re-entrant acquires stands in it several times. ``asked``: the
    contender that was not granted in time.
    """

    __slots__ = ("asked", "entered", "grants")

    def __init__(self) -> None:
        self.grants: tuple[B, ...] = ()
        self.entered: tuple[B, ...] = ()
        self.asked: Entry | None = None

    def drop(self, grant: B) -> None:
        """Take out one use of a grant, the oldest one."""
        at = self.grants.index(grant)
        self.grants = (*self.grants[:at], *self.grants[at + 1 :])


class EnteredContext(Context, Generic[T]):
    """What is acquired as a ``with`` body begins, and released at its end."""

    def _take(self) -> Awaitable[Any]:
        """Call ``acquire()``, which a subclass may have changed."""
        raise NotImplementedError

    def _begin_body(self, grant: Any, body: Body) -> None:
        """Begin the body with what was acquired, or raise."""
        raise NotImplementedError

    async def _enter(self, body: Body) -> T:
        grant = await self._take()
        try:
            self._begin_body(grant, body)
            result: T = grant
            return result
        except BaseException:
            if grant is not None:
                use = [grant]
                try:
                    _abandon(use)
                finally:  # a second interrupt may have struck in it
                    _abandon(use)
            raise


def _abandon(use: list[Any]) -> None:
    """Give up a use, unless that was done."""
    if use:
        use[0]._abandon_body()
        use.clear()


class LockContext(EnteredContext[B]):
    """``with lock``."""

    def _holdings(self) -> Acquired[B]:
        """Return what the running thread or task has acquired here."""
        raise NotImplementedError

    def _timed_out(self) -> AcquireTimeout:
        """Return the error to raise if the lock's own timeout has passed."""
        raise NotImplementedError

    def _nothing_here(self) -> NotHeld:
        """Return the error to raise if the running thread or task has nothing to release."""
        raise NotImplementedError

    def _begin_body(self, grant: B | None, body: Body) -> None:
        if grant is None:
            raise self._timed_out()
        grant._enter()
        if body.watches:  # a statement: it leaves what it has entered, on whichever thread or task
            body.it = grant
        else:
            mine = self._holdings()
            mine.entered = (*mine.entered, grant)

    async def _end_body(self, error: BaseException | None) -> None:
        mine = self._holdings()
        if not mine.entered:
            nothing = self._nothing_here()
            if error is not None:  # it goes on, and says nothing of this
                log.error(
                    "a with body ended without a release: %s",
                    nothing,
                    extra=log_fields(path=nothing.path, token=nothing.token),
                )
            prefer(nothing, error, ours=False)
            return
        try:
            await mine.entered[-1]._end_body(error)
        except raised_by_zklock(*self._OUTCOMES):
            mine.entered = mine.entered[:-1]
            raise
        mine.entered = mine.entered[:-1]

    def _abandon_body(self) -> None:
        mine = self._holdings()
        if mine.entered:
            mine.entered[-1]._abandon_body()
            mine.entered = mine.entered[:-1]


class AttemptingBase(EnteredContext[B | None]):
    """``with lock.attempt(…)``: a grant or ``None``, released at the end. It is entered once."""

    def __init__(self, acquire: Callable[[], Awaitable[B | None]]) -> None:
        self._acquire = acquire
        self._begun = False
        self._grant: B | None = None

    def _take(self) -> Awaitable[B | None]:
        if self._begun:
            raise RuntimeError("attempt() tries once: call it again for another try")
        self._begun = True
        return self._acquire()

    def _begin_body(self, grant: B | None, body: Body) -> None:
        if grant is not None:
            grant._enter()
        self._grant = grant

    async def _end_body(self, error: BaseException | None) -> None:
        if self._grant is not None:
            await self._grant._end_body(error)

    def _abandon_body(self) -> None:
        if self._grant is not None:
            self._grant._abandon_body()

    def __bool__(self) -> NoReturn:
        raise TypeError("attempt() has acquired nothing yet: enter it by a with statement")


def prefer(ended: ZkLockError, error: BaseException | None, ours: bool) -> None:
    """Raise what a release has raised, unless the error of the ``with`` body goes on in its place.

    A loss is noted on the error that goes on. ``ours``: whether the error is our own cancellation.
    """
    if isinstance(ended, LockLost) and ours:
        raise ended from error
    if error is None:
        raise ended
    if isinstance(ended, LockLost) and not isinstance(error, LockLost):
        error.add_note(f"the lock was also lost: {ended}")
