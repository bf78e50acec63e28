"""Kept locks: after a release the znode may stay, so that the next acquire needs no request.

A ``Place`` stands for one client in the queue of one lock. The client's threads and tasks wait in
it, first come, first served, without a znode each. The place has one contender in ZooKeeper. What
that is granted goes to the first who waits, then to the next, and stays when nobody waits: it is
*idle*.

From the first release on, the place watches the queue by one child watch. Nobody is let in on the
same znode before that watch is answered, nor while it is in doubt: after an event, a lost
connection or a late answer, the queue is looked at again first. As long as answers are late, it is
looked at after each use. The first other contender that the place sees ends the keeping:
an idle znode is deleted at once, one in use at the end of the body. Whoever waits here then stands
behind the other one, by a new contender.

What follows from a change is deferred (see ``session``). An interrupt that strikes a user's thread
in a change costs the znode: the session's own thread gives it up, and the place queues again.

Source: M. Burrows, "The Chubby lock service for loosely-coupled distributed systems", section 2.7.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Self, TypeAlias

from zklock._engine.attempt import Attempt
from zklock._engine.future import Once
from zklock._engine.grant import End, GrantBase, GrantOptions
from zklock._engine.grant_state import State
from zklock._engine.ports import Pending
from zklock._engine.session import Session
from zklock._ground.copy_error import copy_error
from zklock._ground.interrupts import may_be_interrupted
from zklock._ground.records import log_fields
from zklock._recipes.effects import Claim
from zklock._recipes.keep import watch_queue
from zklock._telemetry import emit, subscriptions
from zklock.errors import AccessDenied

log = logging.getLogger("zklock")

MOST_SKIPPED = 64
"""Where others are found at each first look, at most so many releases go by without a look."""


def _nothing() -> None:
    pass


Contend: TypeAlias = "Callable[[Place, bool], Attempt[object]]"
"""``contend(place, patient)`` makes a contender for a place; it is not started."""


class Waiter(Pending[GrantBase | None]):
    """An acquire in a place; ``patient``: whether it waits if the lock is not free."""

    contender: Attempt[object] | None = None  # that of the place, which this acquire begins

    def __init__(
        self,
        place: Place,
        terms: GrantOptions,
        contend: Contend,
        *,
        patient: bool,
    ) -> None:
        super().__init__()
        self.terms = terms
        self.contend = contend
        self.patient = patient
        self._place = place

    @property
    def asks(self) -> bool:
        """Whether it begins a contender."""
        return self._place.lacks_contender

    def start(self, *, awaited: bool = False) -> Self:
        """Take a place; return without waiting."""
        place, session = self._place, self._place.session
        if subscriptions.hooks:
            emit.begun(self, session.now)
        rebuild = partial(_rebuild, self)
        session.ready(self.terms)  # before there is anything that only its thread can mend
        try:
            with session.guard:
                waits = place.join(self)
            if waits:
                if self.contender is not None:
                    self.contender.start()  # if it is interrupted, rebuild() sees to it
                    self.contender.when_done(partial(place.over, self.contender))
                if not place.in_use:
                    place.go_on()
            elif self.accept():
                self._resolve(None, None)
        except BaseException:
            session.post(rebuild)
            raise
        return self

    def cancel(self, error: BaseException | None = None) -> bool:
        """Leave, unless it is too late; return whether this call did it."""
        mine = object()
        try:
            decided = self.__dict__.setdefault("_decided", mine)
            if decided is self:
                return False
            self._resolve(None, error)
            self._place.leave(self)
            return decided is mine
        except BaseException:
            self._place.session.post(partial(self.cancel, error))
            raise

    def accept(self) -> bool:
        """Return whether it may be granted; if so, it cannot be given up any more."""
        return self.__dict__.setdefault("_decided", self) is self

    @property
    def accepted(self) -> bool:
        """Whether it cannot be given up any more."""
        return self._decided is self

    def tell(self, kept: Kept) -> None:
        """Have it get the grant that was made for it, if one was. Repeatable."""
        if self.made and kept.doubt is not None:
            self.made[0].abandon()
            self._resolve(None, kept.doubt)
        elif self.made:
            self._resolve(self.made[0], None)

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Return how long to wait natively; see ``runtime.Limit``."""
        return self._place.session.limit(seconds, wake)

    def _resolve(self, value: Any, error: BaseException | None) -> None:
        """Set the outcome, unless there is one; an interrupt may have struck who has told it."""
        self._make_again()
        super()._resolve(value, error)


class Kept:
    """A znode of a place, and the present grant on it, or the last one.

    ``idle``: since when nobody has it; ``None``: it is in use. ``watched``: whether the watch on
    the queue was placed. ``sure``: nobody else queues, as far as that watch tells. ``asked``: it
    must be given back. ``doubt``: what has struck its contender. ``looks``: what watches the queue.
    ``timed``: when the alarm for the end of its idle time goes off; ``call_off`` cancels it.
    """

    def __init__(self, place: Place, claim: Claim) -> None:
        self.place = place
        self.claim = claim
        self.contender = place._contender
        self.grant: GrantBase | None = None
        self.idle: float | None = None
        self.watched = False
        self.sure = False
        self.asked = False
        self.doubt: BaseException | None = None
        self.looks: Attempt[None] | None = None
        self.timed = math.inf
        self.call_off: Callable[[], object] = _nothing

    def use(self, grant: GrantBase) -> None:
        """Note a new grant on it."""
        grant._place, grant.kept = self.place, self.grant is not None
        self.grant, self.idle = grant, None

    def end(self) -> None:
        """End what watches the queue, and the alarm. Repeatable."""
        self.call_off()
        if self.looks is not None:
            self.looks.cancel()


class Place:
    """One client in the queue of one lock; see the head of this module. The guard protects it.

    There is one for all lock objects that are alike; see ``place_of``.

    After each change, ``go_on()`` decides what has become due, and does it. What is due is read
    from the state: so it is done by the next one if an interrupt keeps somebody from it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        # Not a dict: to find its first key takes long where many before it were taken out.
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._contender: Attempt[object] | None = None
        self._kept: Kept | None = None
        self._skip = 0  # so many releases go by before the next first look
        self._skips = 0  # how many went by before the last one

    # For acquires.

    @property
    def idle(self) -> bool:
        """Whether it has a znode that nobody has; it may not be usable. Takes no lock."""
        kept = self._kept
        return kept is not None and kept.idle is not None

    @property
    def lacks_contender(self) -> bool:
        """Whether who waits needs a contender that is not there. Takes no lock."""
        kept = self._kept
        return self._contender is None and (kept is None or kept.asked)

    @property
    def in_use(self) -> bool:
        """Whether somebody has the znode, and hands it to the next. Takes no lock."""
        kept = self._kept
        return kept is not None and kept.idle is None and not kept.asked

    def take(self, terms: GrantOptions) -> Any:
        """Return a grant of an idle znode; ``None``: there is none that may be used now."""
        rebuild = partial(self.rebuild, terms)
        try:
            with self.session.guard:
                kept = self._kept
                if kept is None or self._waiters or not self._free(kept):
                    return None
                grant = self.session.give(kept.claim, terms, kept=kept)
                if subscriptions.hooks:
                    emit.granted_again(grant, self.session.now())
                return grant
        except BaseException:
            self.session.post(rebuild)
            raise

    def join(self, waiter: Waiter) -> bool:
        """Note who waits; ``False``: it does not wait, and the lock is not free. With the guard."""
        kept = self._kept
        busy = self._waiters or self._contender is not None
        if not waiter.patient and (busy or (kept is not None and kept.idle is None)):
            return False
        self._waiters[waiter] = None
        if self.lacks_contender:
            self._contender = waiter.contender = waiter.contend(self, waiter.patient)
        return True

    def leave(self, waiter: Waiter) -> None:
        """Forget who waits no more."""
        if self.session.has_guard():
            self.session.later(partial(self.leave, waiter))
            return
        try:
            with self.session.guard:
                self._waiters.pop(waiter, None)
            self.go_on()
        except BaseException:
            self.session.post(self.rebuild)
            raise

    # For grants.

    def give_back(self, grant: GrantBase) -> bool:
        """Take a grant back without a request; ``False``: it must be released in ZooKeeper."""
        if not grant.held:
            return False
        try:
            if self.session.has_guard():
                grant._end_with(End(State.RELEASED))
                self.session.later(partial(self._given_back, grant))
                return True
            with self.session.guard:
                kept = self._kept
                if kept is None or kept.grant is not grant or grant._ended:
                    return False
                stays = not (kept.asked or (self._skip and not kept.watched))
                due = bool(self._waiters) or not stays
                if not stays:  # it is the grant's until that has ended: see ``lose``
                    self._skip -= bool(self._skip and not kept.asked)
                    kept.asked = True
                elif grant._end_with(End(State.RELEASED)):
                    kept.idle = now = self.session.now()
                    due |= now + grant._terms.keep < kept.timed
                    if self.session.answers_late:
                        kept.sure = False
                        self.session.deferred.add(partial(self.session.later, self.look_again))
                    if subscriptions.hooks:  # with the guard, as the next grant is told of
                        emit.released(grant, now)
                else:
                    return False
                if due:
                    self._decide()
            self.session.deferred.run()
            return stays
        except BaseException:
            self.session.post(self.rebuild)
            raise

    def _given_back(self, grant: GrantBase) -> None:
        """Note that a grant was given back by a signal handler."""
        with self.session.guard:
            if subscriptions.hooks:
                emit.released(grant, self.session.now())
            if (kept := self._kept_for(grant)) is not None:
                kept.idle = self.session.now()
        self.go_on()

    # For the session.

    def granted(self, claim: Claim) -> Kept:
        """Take the znode of the contender, which is granted; the caller has the guard."""
        if self._kept is not None:  # it is deleted, and its loss is not told yet
            self._forget(self._kept)
        self._kept = kept = Kept(self, claim)
        if not self._hand(kept):
            kept.asked, kept.idle = True, self.session.now()
        return kept

    def torn(self, path: str) -> None:
        """Lose a znode that its contender deletes: it was interrupted when it was granted."""
        with self.session.guard:
            self.session.lose(path)
            if self._kept is not None and self._kept.claim.path == path:
                self._forget(self._kept)
        self.rebuild()

    def lose(self, grant: GrantBase) -> None:
        """Forget a znode whose grant is lost or deletes it, or which has lapsed while idle."""
        with self.session.guard:
            if (kept := self._kept_for(grant)) is not None:
                self._forget(kept)
        self.go_on()

    def ask(self, grant: GrantBase) -> None:
        """Give the znode back when it is idle: somebody asks for its release."""
        with self.session.guard:
            if (kept := self._kept_for(grant)) is not None:
                kept.asked = True
        self.go_on()

    def look_again(self) -> None:
        """Let nobody in before the queue was looked at again."""
        with self.session.guard:
            kept = self._kept
            looks = None if kept is None else kept.looks
            if kept is not None:
                kept.sure = False
        if looks is not None:
            looks.watched(None, deleted=False)

    # What is due.

    def go_on(self) -> None:
        """Do what has become due; the caller does not have the guard."""
        if self.session._forked:
            return
        with self.session.guard:
            self._decide()
        self.session.deferred.run()

    def _decide(self) -> None:
        """Defer what has become due; the caller has the guard. Repeatable."""
        kept = self._kept
        if kept is not None and kept.idle is not None:
            kept.asked |= bool(self._waiters) and not self._may_grant(kept)
            if kept.asked:
                self._begin(partial(self._leave_queue, kept))
                self._forget(kept)
            elif not (kept.sure and self._hand(kept)):
                self._see_to_idle(kept)
        if not self._waiters:
            if self._contender is not None:
                self.session.deferred.add(self._contender.cancel)
        elif self.lacks_contender:
            first = next(iter(self._waiters))
            contender = first.contend(self, first.patient)
            self._begin(partial(_start, contender, partial(self.over, contender)))
            self._contender = contender

    def _see_to_idle(self, kept: Kept) -> None:
        """Have the queue watched, and then the time."""
        if kept.looks is None:
            watch = watch_queue(kept.claim.path, partial(self._alone, kept))
            looks = self.session.attempt(watch)
            self._begin(partial(_start, looks, partial(self._seen, kept)))
            kept.looks = looks
        elif kept.watched and kept.grant is not None and kept.idle is not None:
            end = kept.idle + kept.grant._terms.keep
            if end < kept.timed:
                set_alarm = partial(self._set_alarm, kept)
                self.session.deferred.add(partial(self.session.later, set_alarm))
                kept.timed = end

    def _kept_for(self, grant: GrantBase) -> Kept | None:
        """Return the znode, if the grant is the newest on it."""
        kept = self._kept
        return kept if kept is not None and kept.grant is grant else None

    def _forget(self, kept: Kept) -> None:
        self.session.deferred.add(kept.end)
        self._kept = None

    def _free(self, kept: Kept) -> bool:
        """Whether an acquire may have the znode now."""
        unused = kept.idle is not None and not kept.asked
        return unused and kept.sure and self._may_grant(kept)

    def _may_grant(self, kept: Kept) -> bool:
        return self.session.may_grant((kept.claim.path,))

    def _hand(self, kept: Kept) -> bool:
        """Give the znode to the first who waits; return whether somebody does."""
        while self._waiters:
            waiter = next(iter(self._waiters))
            taken = waiter.accept()
            if taken:
                self.session.deferred.add(partial(waiter.tell, kept))
                self.session.give(kept.claim, waiter.terms, waiter, kept)
            self._waiters.pop(waiter, None)  # last: after an interrupt, it is still there
            if taken:
                return True
        return False

    def _begin(self, call: Callable[[], object]) -> None:
        """Defer a call that is made once, on a thread that no interrupt strikes."""
        self.session.deferred.add(partial(self._begin_once, Once(call)))

    def _begin_once(self, call: Once) -> None:
        if may_be_interrupted():
            self.session.later(call)
        else:
            call()

    def over(self, contender: Attempt[object]) -> None:
        """Go on after the contender: it is granted, has failed, or was given up."""
        with self.session.guard:
            if self._contender is contender:
                granted, error = contender.settled()
                if granted is None:
                    kept = self._kept
                    if kept is not None and kept.contender is contender:
                        kept.doubt = error  # it has left, after it was granted
                        self.session.lose(kept.claim.path)
                        self._forget(kept)
                    self._refuse(error)
                self._contender = None
        self.go_on()

    def _refuse(self, error: BaseException | None) -> None:
        """Have those wait no more who do not wait for another contender."""
        for waiter in list(self._waiters):
            if error is None and waiter.patient:
                continue
            if waiter.accept():
                why = copy_error(error) if isinstance(error, Exception) else error
                self.session.deferred.add(partial(waiter._resolve, None, why))
            self._waiters.pop(waiter, None)

    def _alone(self, kept: Kept, sure: bool) -> None:
        with self.session.guard:
            kept.sure = sure
            if not sure:
                return
            kept.watched, self._skips = True, 0
        self.go_on()

    def _seen(self, kept: Kept) -> None:
        """Note that the znode must be given back: somebody else is there, or it is gone."""
        with self.session.guard:
            kept.asked = True
            if self._kept is kept and not kept.watched:
                self._skip = self._skips = min(2 * self._skips or 1, MOST_SKIPPED)
        self.go_on()

    def _leave_queue(self, kept: Kept) -> None:
        give_back = kept.claim.release if kept.grant is None else kept.grant._give_back
        self.session.forget(kept.claim.path)
        attempt = self.session.attempt(give_back(), recover=give_back)
        _start(attempt, partial(_say_refused, attempt))

    def _set_alarm(self, kept: Kept) -> None:
        """Set it on the session's own thread: one that nothing can call off would keep that up."""
        kept.call_off()  # a later one, of another lock that keeps for longer
        left = kept.timed - self.session.now()
        kept.call_off = self.session.pause(max(0.0, left), partial(self._alarm, kept))
        if self._kept is not kept:  # it has ended meanwhile
            kept.call_off()

    def _alarm(self, kept: Kept) -> None:
        """Give the znode back if it has been idle for so long; else set another alarm."""
        with self.session.guard:
            kept.timed = math.inf
            if kept.idle is not None and kept.grant is not None:
                kept.asked |= self.session.now() >= kept.idle + kept.grant._terms.keep
        self.go_on()

    def rebuild(
        self, taken: GrantOptions | None = None, struck: Attempt[object] | None = None
    ) -> None:
        """Start over after an interrupt: give the znode up, and queue again.

        ``taken``: the options of a grant that nobody may have got. ``struck``: a contender that may
        not have been started.
        """
        with self.session.guard:
            if struck is not None and self._contender is struck:
                self.session.deferred.add(struck.cancel)
                self._contender = None
            kept, first = self._kept, next(iter(self._waiters), None)
            handed = first is not None and first.accepted
            if first is not None and first.made:
                self._waiters.pop(first, None)
                handed = False
            if kept is not None:
                kept.asked = True
                grant = kept.grant
                nobodys = grant is not None and taken is grant._terms and not grant._kept
                if grant is not None and (handed or nobodys):
                    grant._end_with(End(State.RELEASED))
                if grant is None or (grant._ended and kept.idle is None):
                    kept.idle = self.session.now()
                    if grant is not None and grant.released and subscriptions.hooks:
                        emit.released(grant, kept.idle)
        self.go_on()


def _start(attempt: Attempt[object], over: Callable[[], object]) -> None:
    attempt.when_done(over)
    attempt.start()


def _say_refused(attempt: Attempt[None]) -> None:
    if isinstance(error := attempt.settled()[1], AccessDenied):
        log.error("a kept lock stays until the session ends: %s", error, extra=log_fields())


def _rebuild(waiter: Waiter) -> None:
    waiter._place.rebuild(struck=waiter.contender)


def place_of(session: Session, key: Hashable) -> Place:
    """Return the place of all locks with this key: it lives for as long as one of them does."""
    with session.guard:
        place: Place | None = session.places.get(key)
        if place is None:
            place = session.places[key] = Place(session)
        return place
