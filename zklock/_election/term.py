"""A term of a leader, for threads and for asyncio alike: the leadership, and how it ends."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from zklock._core.attempt import Pending
from zklock._core.grant import GrantBase
from zklock._core.session import Session
from zklock._election.candidate import Candidacy
from zklock._ground.copy_error import copy_error
from zklock._ground.groups import OF_LOSS, says_only
from zklock._ground.interrupts import raised_by_zklock
from zklock._ground.records import log_fields
from zklock._recipes.queries import Contender
from zklock.errors import LeaderStuck, LockLost, NoAnswer, NotHeld, WouldDeadlock, ZkLockError

if TYPE_CHECKING:
    import asyncio
    import threading

log = logging.getLogger("zklock")


class Leading(GrantBase):
    """What a leadership adds to a grant: what ``lead`` was given, the election gives back."""

    should_stop: threading.Event | asyncio.Event

    _led = False
    """Whether it is given back when ``lead`` has ended, and not before."""

    _transferred = False
    """Whether ``transfer()`` has given it back: nothing is left to release."""

    def resign(self) -> None:
        """Ask for the end of the term: set ``should_stop``.

        It ends when ``lead`` ends, or when what was acquired is released.
        """
        self._tell_to_stop()

    def abandon(self) -> None:
        """In ``lead``, do the same as ``resign()``. Else give it back without waiting."""
        if self._led:
            self.resign()
        else:
            super().abandon()

    async def _release(self) -> None:
        if self._led:
            self.resign()
            if not self.held and self._loss is not None:
                raise self._why_not()
            return
        try:
            await super()._release()
        except raised_by_zklock(NotHeld):
            if not self._transferred:
                raise

    def _end(self, *, awaited: bool = False) -> Pending[Any]:
        answer = super()._end(awaited=awaited)
        self._tell_to_stop()
        return answer

    def _tell_to_stop(self) -> None:
        """Set ``should_stop``, from any thread."""
        raise NotImplementedError


L = TypeVar("L", bound=Leading)


class Term(Generic[L]):
    """A leadership and its outcome; ``over`` is there once ``lead`` has ended.

    ``led``: whether ``lead`` is called. Else the leadership was acquired.
    """

    def __init__(self, leadership: L, candidacy: Candidacy, session: Session, *, led: bool) -> None:
        self.over: Pending[None] = Pending(session)
        leadership._led = led
        self.leadership = leadership
        self.candidacy = candidacy
        self.error: BaseException | None = None
        self.refused: ZkLockError | None = None
        self.answer: Pending[Any] | None = None
        self.began = leadership._keeper.now()

    @property
    def is_over(self) -> bool:
        """Whether another term may begin on the same object."""
        leadership = self.leadership
        return self.over.done if leadership._led else not leadership.held

    def tell_elected(self, on_elected: Callable[[Any], object] | None) -> None:
        """Have the callback called, if there is one."""
        if on_elected is not None:
            self.leadership._notify([partial(on_elected, self.leadership)])

    def failed(self, error: BaseException) -> None:
        """Note what ``lead`` has raised. That its leadership is lost is no failure."""
        leadership = self.leadership
        if not (says_only(error, OF_LOSS) and not leadership.held):
            self.error = error
            log.error(
                "%s: lead() with token %s raised",
                leadership.lock_path,
                leadership.token,
                exc_info=error,
                extra=log_fields(leadership),
            )

    def say_refused(self) -> None:
        """Log why it was not handed over, if it was to be."""
        if self.candidacy.refused is not None:
            log.warning(
                "not handed over: %s",
                self.candidacy.refused,
                extra=log_fields(self.leadership),
            )

    def stuck(self, grace: float, asked: str) -> LeaderStuck:
        """Return the error of a ``lead`` that has not ended within its grace."""
        path, token = self.leadership.lock_path, self.leadership.token
        return LeaderStuck(
            f"{path}: lead() with token {token} did not end within {grace:g} s of "
            f"being {asked}; this process starts no further term: end the process",
            path=path,
            token=token,
        )

    def leads_already(self) -> WouldDeadlock:
        """Return the error of who would wait for the end of what it has acquired itself."""
        path, token = self.leadership.lock_path, self.leadership.token
        return WouldDeadlock(
            f"{path}: this object already leads (token {token}) and would deadlock: release "
            "that first, or make another object",
            path=path,
            token=token,
        )

    def handed_over(self, identity: str, chosen: Contender, limit: float | None) -> Contender:
        """Return who leads next, after a transfer; ``limit`` is the timeout, if it has passed."""
        path, token = self.leadership.lock_path, self.leadership.token
        candidacy = self.candidacy
        if limit is not None:
            raise NoAnswer(
                f"{path}: handover to {identity!r} not finished within {limit:g} s; it continues",
                path=path,
                token=token,
            )
        handed_to = candidacy.handed_to
        named = candidacy.successor if handed_to is None else handed_to.identity
        if named != identity:
            raise ZkLockError(
                f"{path}: not handed over to {identity!r}: another transfer() of this term "
                f"named {named!r}; check leader()",
                path=path,
                token=token,
            )
        if candidacy.refused is not None:
            raise copy_error(candidacy.refused)
        if handed_to is None:
            self.leadership.check()
        return handed_to or chosen

    def give_back(self) -> None:
        """Give the leadership back, if it is not lost. ``lead`` must have ended."""
        with contextlib.suppress(LockLost, NotHeld):
            self.answer = self.leadership._end()

    def end(self) -> None:
        """Give the leadership back: the term is over. Repeatable."""
        self.give_back()
        self.over.come()
