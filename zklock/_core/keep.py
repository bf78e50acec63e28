"""Kept locks: after a release the znode may stay, so that the next acquire needs no request.

A ``Place`` stands for one client in the queue of one lock. The client's threads and tasks wait in
it, first come, first served, without a znode each. The place has one contender in ZooKeeper. What
that is granted goes to the first who waits, then to the next, and stays when nobody waits: it is
*idle*.

From the first release on, the place watches the queue by one child watch. Nobody is let in on the
same znode before that watch is answered, nor after a cut or beside a late answer, until the queue
was looked at. The first other contender that it sees ends the keeping: an idle znode is deleted at
once, one in use at the end of the body. Those who wait here then stand behind the other one,
by a new contender.

A znode belongs to its place, and to the grant that uses it now. A grant that has ended touches
nothing: ``give_back`` and ``lose`` look whose it is.

Source: M. Burrows, "The Chubby lock service for loosely-coupled distributed systems", section 2.7.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeAlias

from zklock._core.attempt import Attempt, Pending, Stage
from zklock._core.grant import End, GrantBase, GrantOptions
from zklock._core.session import Session
from zklock._ground.copy_error import copy_error
from zklock._ground.records import log_fields
from zklock._recipes.effects import Claim
from zklock._recipes.keep import watch_queue
from zklock._recipes.lock import Entry
from zklock._telemetry import emit, subscriptions
from zklock.errors import AccessDenied

log = logging.getLogger("zklock")

MOST_SKIPPED = 64
"""Where others are found at each first look, at most so many releases go by without a look."""

Contend: TypeAlias = "Callable[[Place, bool], Attempt[object]]"
"""``contend(place, patient)`` makes a contender for a place; it is not started."""


def _nothing() -> None:
    pass


class Waiter(Pending[GrantBase | None]):
    """An acquire in a place; ``patient``: whether it waits if the lock is not free."""

    __slots__ = ("_place", "contend", "patient")

    def __init__(
        self, place: Place, terms: GrantOptions, contend: Contend, *, patient: bool
    ) -> None:
        super().__init__(place.session, terms)
        self.contend = contend
        self.patient = patient
        self._place = place

    @property
    def asks(self) -> bool:
        return self._place.lacks_contender

    def _begin(self, awaited: bool) -> None:
        if subscriptions.hooks:
            emit.begun(self, self.session.now)
        self._place.join(self, awaited)

    def _cancel(self, error: BaseException | None) -> bool:
        if self._decided:
            return False
        self.resolve(None, error)
        self._place.leave(self)
        return True


class Kept:
    """A znode of a place, and the present grant on it, or the last one.

    ``idle``: since when nobody has it; ``None``: it is in use. ``watched``: whether the watch on
    the queue was placed. ``sure``: nobody else queues, as far as that watch tells. ``asked``: it
    must be given back. ``looks``: what watches the queue. ``timed``: when the alarm for the end of
    its idle time goes off; ``call_off`` cancels it.
    """

    __slots__ = (
        "asked",
        "call_off",
        "claim",
        "grant",
        "idle",
        "looked",
        "looks",
        "place",
        "sure",
        "timed",
        "watched",
    )

    def __init__(self, place: Place, claim: Claim) -> None:
        self.place = place
        self.claim = claim
        self.grant: GrantBase | None = None
        self.idle: float | None = None
        self.watched = self.sure = self.looked = False
        self.asked = False
        self.looks: Attempt[None] | None = None
        self.timed = math.inf
        self.call_off: Callable[[], object] = _nothing

    def use(self, grant: GrantBase) -> None:
        """Note a new grant on it."""
        grant._place, grant.kept = self.place, self.grant is not None
        self.grant, self.idle = grant, None


class Place:
    """One client in the queue of one lock; see the head of this module.

    There is one for all lock objects that are alike; see ``place_of``. All is used in steps, but
    for what is said to be for any thread.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        # Not a dict: to find its first key takes long where many before it were taken out.
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._contender: Attempt[object] | None = None
        self.asked: Entry | None = None  # what the contender says of itself, until it is granted
        self._kept: Kept | None = None
        self._skip = 0  # so many releases go by before the next first look
        self._skips = 0  # how many went by before the last one

    # For any thread.

    @property
    def idle(self) -> bool:
        """Whether it has a znode that nobody has; it may not be usable."""
        kept = self._kept
        return kept is not None and kept.idle is not None

    @property
    def lacks_contender(self) -> bool:
        """Whether who waits needs a contender that is not there."""
        kept = self._kept
        return self._contender is None and (kept is None or kept.asked)

    def take(self, terms: GrantOptions) -> Any:
        """Return a grant of an idle znode; ``None``: there is none that may be used now."""
        return self.session.step(self._take, terms)

    def _take(self, terms: GrantOptions) -> GrantBase | None:
        kept = self._kept
        if kept is None or kept.idle is None or kept.asked or self._waiters:
            return None
        if not (kept.sure and self.session.prompt and self.session.may_grant(kept.claim)):
            return None
        grant = self.session.give(kept.claim, terms, kept=kept)
        if subscriptions.hooks:
            emit.granted_again(grant, self.session.now())
        return grant

    def give_back(self, grant: GrantBase) -> bool:
        """Take a grant back without a request; ``False``: it must be released in ZooKeeper."""
        if self.session.interrupted:
            taken = grant.held and grant._end_with(End())
            self.session.later(partial(self.session.step, self._given_back, grant))
            return taken
        return bool(self.session.step(self._give_back, grant))

    def take_back(self, terms: GrantOptions) -> None:
        """Give the znode up, if its grant is to these terms and nobody has got it."""
        self.session.step(self._take_back, terms)

    # For acquires.

    def join(self, waiter: Waiter, awaited: bool) -> None:
        """Have somebody wait, unless the lock is not free and he does not wait."""
        kept = self._kept
        busy = self._waiters or self._contender is not None
        if not waiter.patient and (busy or (kept is not None and kept.idle is None)):
            waiter.resolve(None)
            return
        self._waiters[waiter] = None
        if awaited and self.lacks_contender:
            self.session.shell.read_for(waiter)
        self._go_on()

    def leave(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)
        self._take_back(waiter.terms)  # an interrupt may have struck as it was handed over
        self._go_on()

    # For grants.

    def _give_back(self, grant: GrantBase) -> bool:
        kept = self._kept_for(grant)
        if kept is None or not grant.held:
            return False
        if kept.asked or (self._skip and not kept.watched):
            self._skip -= bool(self._skip and not kept.asked)
            self._forget(kept)
            self._go_on()
            return False
        if not grant._end_with(End()):
            return False
        self._rest(kept, grant)
        return True

    def _given_back(self, grant: GrantBase) -> None:
        """Note that a grant was given back by a signal handler."""
        kept = self._kept_for(grant)
        if kept is not None and kept.idle is None and grant.released:
            self._rest(kept, grant)

    def _rest(self, kept: Kept, grant: GrantBase) -> None:
        kept.idle = now = self.session.now()
        if subscriptions.hooks:
            emit.released(grant, now)
        due = now + grant._terms.keep < kept.timed
        if kept.asked or self._waiters or not kept.watched or due:
            self._go_on()

    def _take_back(self, terms: GrantOptions | None) -> None:
        kept = self._kept
        grant = kept.grant if kept is not None else None
        if kept is not None and grant is not None and grant._terms is terms and not grant._kept:
            kept.asked = True
            grant._end_with(End())
            self._rest(kept, grant)

    # For the session.

    def granted(self, claim: Claim) -> Kept:
        """Take the znode of the contender, which is granted."""
        kept = self._kept
        if kept is None or kept.claim.path != claim.path:  # else an interrupt has struck behind it
            if kept is not None:  # it is deleted, and its loss is not told yet
                self._forget(kept)
            self._kept = kept = Kept(self, claim)
        self._contender = self.asked = None
        if kept.grant is None and not self._hand(kept):
            kept.asked, kept.idle = True, self.session.now()
            self._go_on()
        return kept

    def lose(self, grant: GrantBase, *, deleted: bool) -> None:
        """Forget a znode whose grant is lost, or which has ended while it was idle.

        One that is deleted before the first look at the queue may have been so in use: it is told.
        """
        kept = self._kept_for(grant)
        if kept is not None:
            if deleted and grant.released and not kept.looked:
                self.session.lost_before(grant)
            self._forget(kept)
            self._go_on()

    def ask(self, grant: GrantBase) -> None:
        """Give the znode back when it is idle: somebody asks for its release."""
        kept = self._kept_for(grant)
        if kept is not None:
            kept.asked = True
            self._go_on()

    def cut(self) -> None:
        """Note that the connection is lost: the queue must be looked at anew."""
        if self._kept is not None:
            self._kept.sure = False

    def again(self) -> None:
        """Go on, with a new connection, or after a late answer. An interrupt may have struck."""
        contender = self._contender
        if contender is not None and contender.stage is Stage.NEW:
            contender._cancel(None)  # maybe nobody would hear of its end
            self._contender = None
        for waiter in [each for each in self._waiters if each.done]:
            waiter.resolve(None)  # maybe it was not woken
            del self._waiters[waiter]
        kept = self._kept
        if kept is not None and kept.idle is None and kept.grant is not None and kept.grant._ended:
            self._rest(kept, kept.grant)
        if (first := next(iter(self._waiters), None)) is not None:
            first.made = ()
            self._take_back(first.terms)  # maybe it was not handed over
        self._go_on()

    # What is due.

    def _go_on(self) -> None:
        """Do what has become due. Repeatable."""
        kept = self._kept
        if kept is not None and kept.idle is not None:
            kept.asked |= bool(self._waiters) and not self.session.may_grant(kept.claim)
            if kept.asked:
                self._leave_queue(kept)
                self._forget(kept)
            elif not (kept.sure and self.session.prompt and self._hand(kept)):
                self._watch_then_set_timer(kept)
        if not self._waiters:
            if self._contender is not None:
                self._contender._cancel(None)
                self._contender = None
        elif self.lacks_contender:
            first = next(iter(self._waiters))
            self._contender = contender = first.contend(self, first.patient)
            contender.when_done(partial(self.session.step, self._over, contender))
            contender._begin(False)

    def _watch_then_set_timer(self, kept: Kept) -> None:
        """Have the queue watched, and the time that it may be idle."""
        if kept.looks is None:
            watch = partial(watch_queue, kept.claim.path, partial(self._alone, kept))
            looks = self.session.attempt(watch)
            looks.when_done(partial(self.session.step, self._seen, kept))
            looks._begin(False)
            kept.looks = looks  # last: an interrupt may strike before it has begun
        elif kept.watched and kept.grant is not None and kept.idle is not None:
            end = kept.idle + kept.grant._terms.keep
            if end < kept.timed:
                kept.call_off()  # a later one, of another lock that keeps for longer
                kept.timed = end
                alarm = partial(self.session.step, self._alarm, kept)
                left = max(0.0, end - self.session.now())
                kept.call_off = self.session.pause(left, alarm)

    def _kept_for(self, grant: GrantBase) -> Kept | None:
        """Return the znode, if the grant is the newest on it."""
        kept = self._kept
        return kept if kept is not None and kept.grant is grant else None

    def _forget(self, kept: Kept) -> None:
        kept.call_off()
        if kept.looks is not None:
            kept.looks._cancel(None)
        self._kept = None

    def _hand(self, kept: Kept) -> bool:
        """Give the znode to the first who waits; return whether somebody does."""
        while self._waiters:
            waiter = next(iter(self._waiters))
            given = not waiter.done
            if given and waiter.terms is not None:
                waiter.resolve(self.session.give(kept.claim, waiter.terms, waiter, kept))
            del self._waiters[waiter]  # last: an interrupt may strike, and it goes on waiting
            if given:
                return True
        return False

    def _over(self, contender: Attempt[object]) -> None:
        """Go on after a contender that has failed, or that did not wait."""
        if self._contender is not contender:
            return
        self._contender = None
        granted, error = contender.settled()
        for waiter in list(self._waiters) if granted is None else ():
            if error is None and waiter.patient:
                continue
            del self._waiters[waiter]
            waiter.resolve(None, copy_error(error) if isinstance(error, Exception) else error)
        self._go_on()

    def _alone(self, kept: Kept, sure: bool) -> None:
        kept.sure = sure
        if sure:
            kept.watched, kept.looked, self._skips = True, True, 0
        if sure and self._kept is kept:
            self._go_on()

    def _seen(self, kept: Kept) -> None:
        """Note that the znode must be given back: somebody else is there, or it is gone."""
        if self._kept is not kept:
            return
        kept.asked = True
        if not kept.watched:
            self._skip = self._skips = min(2 * self._skips or 1, MOST_SKIPPED)
        self._go_on()

    def _leave_queue(self, kept: Kept) -> None:
        give_back = kept.claim.release if kept.grant is None else kept.grant._give_back
        attempt: Attempt[Any] = self.session.attempt(give_back, recover=give_back)
        attempt.when_done(partial(self.session.step, self._left, kept, attempt))
        attempt._begin(False)
        self.session.forget(kept.claim.path)

    def _left(self, kept: Kept, attempt: Attempt[Any]) -> None:
        """Tell of a loss that nobody has watched for, or of a refusal."""
        there, error = attempt.settled()
        if there is False and kept.grant is not None and not kept.looked:
            self.session.lost_before(kept.grant)
        elif isinstance(error, AccessDenied):
            told = partial(
                log.error, "a kept lock stays until the session ends: %s", error, extra=log_fields()
            )
            self.session.post(told)

    def _alarm(self, kept: Kept) -> None:
        """Give the znode back if it has been idle for so long; else set another alarm."""
        kept.timed = math.inf
        if self._kept is kept and kept.idle is not None and kept.grant is not None:
            kept.asked |= self.session.now() >= kept.idle + kept.grant._terms.keep
            self._go_on()


def place_of(session: Session, key: Hashable) -> Place:
    """Return the place of all locks with this key: it lives for as long as one of them does."""
    place: Place = session.step(_place_of, session, key)
    return place


def _place_of(session: Session, key: Hashable) -> Place:
    place: Place | None = session.places.get(key)
    if place is None:
        place = session.places[key] = Place(session)
    return place
