"""Kept locks: after a release the znode may stay, so that the next acquire needs no request.

A ``Place`` stands for one client in the queue of one lock. The client's threads and tasks wait in
it, first come, first served, without a znode each. The place has one contender in ZooKeeper. What
that is granted goes to the first who waits, then to the next, and stays when nobody waits: it is
*idle*.

From the first release on, the place watches the queue by one child watch. Nobody is let in on the
same znode before that watch is answered. The first other contender that it sees ends the keeping:
an idle znode is deleted at once, one in use at the end of the body. Whoever waits here then stands
behind the other one, by a new contender.

An interrupt that strikes a user's thread in a step of a place costs the znode: the session's own
thread gives it up, and the place queues again.

Source: M. Burrows, "The Chubby lock service for loosely-coupled distributed systems", section 2.7.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import TypeAlias

from zklock._engine.attempt import Attempt
from zklock._engine.future import Future
from zklock._engine.grant import End, GrantBase, GrantOptions
from zklock._engine.grant_state import State
from zklock._engine.session import Session
from zklock._ground.copy_error import copy_error
from zklock._ground.interrupts import may_be_interrupted
from zklock._recipes.effects import Claim
from zklock._recipes.keep import watch_queue
from zklock._telemetry import emit, subscriptions

MOST_SKIPPED = 64
"""Where others are found at each first look, at most so many releases go by without a look."""


def _nothing() -> None:
    pass


Contend: TypeAlias = "Callable[[Place, bool], Attempt[object]]"
"""``contend(place, patient)`` makes a contender for a place; it is not started."""


class Waiter(Future[GrantBase | None]):
    """An acquire in a place; whoever asks uses it as an attempt.

    ``patient``: whether it waits if the lock is not free.
    """

    # For telemetry; see ``Attempt``.
    began: float | None = None
    heard: float | None = None
    told = False

    made: tuple[GrantBase, ...] = ()
    _place: Place | None = None
    _decided: object = None

    def __init__(
        self,
        session: Session,
        key: Hashable,
        terms: GrantOptions,
        contend: Contend,
        *,
        patient: bool,
    ) -> None:
        super().__init__()
        self.terms = terms
        self.contend = contend
        self.patient = patient
        self._session = session
        self._key = key

    def start(self, *, awaited: bool = False) -> Waiter:
        """Take a place; return without waiting."""
        if subscriptions.hooks:
            emit.begun(self, self._session.now)
        _join(self._session, self._key, self)
        return self

    def cancel(self, error: BaseException | None = None) -> bool:
        """Leave, unless it is too late; return whether this call did it."""
        mine = object()
        decided = self.__dict__.setdefault("_decided", mine)
        if decided is self:
            return False
        self._resolve(None, error)
        if self._place is not None:
            self._place.leave(self)
        return decided is mine

    def accept(self) -> bool:
        """Return whether it may be granted; if so, it cannot be given up any more."""
        return self.__dict__.setdefault("_decided", self) is self

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Return how long to wait natively; see ``runtime.Limit``."""
        return self._session.limit(seconds, wake)


class Kept:
    """A znode of a place, and the present grant on it, or the last one.

    ``idle``: since when nobody has it; ``None``: it is in use. ``watched``: whether the watch on
    the queue is placed. ``asked``: it must be given back. ``looks``: what watches the queue.
    ``timed``: when the alarm for the end of its idle time goes off; ``call_off`` cancels it.
    """

    def __init__(self, claim: Claim, session_id: int) -> None:
        self.claim = claim
        self.session_id = session_id
        self.grant: GrantBase | None = None
        self.idle: float | None = None
        self.watched = False
        self.asked = False
        self.looks: Attempt[None] | None = None
        self.timed = math.inf
        self.call_off: Callable[[], object] = _nothing

    def ends(self) -> None:
        """End what watches the queue, and the alarm."""
        self.call_off()
        if self.looks is not None:
            self.looks.cancel()


class Place:
    """One client in the queue of one lock; see the head of this module. The guard protects it.

    After each change, ``_go_on()`` does what has become due. What is due is read from the state: so
    it is done by the next one if an interrupt keeps somebody from it.
    """

    def __init__(self, session: Session, key: Hashable) -> None:
        self._session = session
        self._key = key
        # Not a dict: to find its first key takes long where many before it were taken out.
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._contender: Attempt[object] | None = None
        self._withdrawn = False  # the contender was told to give up
        self._kept: Kept | None = None
        self._handed: deque[tuple[Waiter, GrantBase]] = deque()  # who is not told yet
        self._leaving: deque[Kept] = deque()  # what is not given back yet
        self._going: set[int] = set()  # the threads that do what is due
        self._skip = 0  # so many releases go by before the next first look
        self._skips = 0  # how many went by before the last one

    # For acquires.

    def take(self, terms: GrantOptions) -> GrantBase | None:
        """Return a grant of an idle znode; ``None``: there is none that may be used now."""
        rebuild = partial(self.rebuild, terms)
        try:
            with self._session.guard:
                kept = self._kept
                if kept is None or self._waiters or not self._free(kept):
                    return None
                grant = self._grant(kept, terms)
                if subscriptions.hooks:
                    emit.granted_again(grant, self._session.now())
                return grant
        except BaseException:
            self._session.post(rebuild)
            raise

    def join(self, waiter: Waiter) -> bool:
        """Note who waits; ``False``: it does not wait, and the lock is not free. With the guard."""
        kept = self._kept
        busy = self._waiters or self._contender is not None or self._handed
        if not waiter.patient and (busy or (kept is not None and not self._free(kept))):
            return False
        self._waiters[waiter] = None
        return True

    def leave(self, waiter: Waiter) -> None:
        """Forget who waits no more."""
        if self._session.interrupted:
            self._session.later(partial(self.leave, waiter))
            return
        try:
            with self._session.guard:
                self._waiters.pop(waiter, None)
            self._go_on()
        except BaseException:
            self._session.post(self.rebuild)
            raise

    # For grants.

    def give_back(self, grant: GrantBase) -> bool:
        """Take a grant back without a request; ``False``: it must be released in ZooKeeper."""
        if not grant.held:
            return False
        if self._session.interrupted:
            grant._end_with(End(State.RELEASED))
            self._session.later(partial(self._idle, grant))
            return True
        try:
            return self._give_back(grant)
        except BaseException:
            self._session.post(self.rebuild)
            raise

    def _give_back(self, grant: GrantBase) -> bool:
        with self._session.guard:
            kept = self._kept
            if kept is None or kept.grant is not grant:
                return False
            stays = not (kept.asked or grant._reads or (self._skip and not kept.watched))
            due = not stays or bool(self._waiters)
            if stays:
                if not grant._end_with(End(State.RELEASED)):
                    return False
                kept.idle = now = self._session.now()
                due = due or now + grant._terms.keep < kept.timed
                if subscriptions.hooks:  # with the guard, as the next grant is told of
                    emit.released(grant, now)
            else:
                self._skip -= bool(self._skip and not kept.asked)
                self._kept = None
        if not stays:
            kept.ends()
        if due:
            self._go_on()
        return stays

    def _idle(self, grant: GrantBase) -> None:
        """Note that a grant was given back by a signal handler."""
        with self._session.guard:
            if subscriptions.hooks:
                emit.released(grant, self._session.now())
            if self._kept is not None and self._kept.grant is grant:
                self._kept.idle = self._session.now()
        self._go_on()

    # For the session.

    def granted(self, claim: Claim) -> Kept:
        """Take the znode of the contender, which is granted; the caller has the guard."""
        self._kept = kept = Kept(claim, self._session.session_id)
        if not self._hand(kept):
            kept.asked, kept.idle = True, self._session.now()
        return kept

    def lose(self, grant: GrantBase) -> None:
        """Forget a znode whose grant is lost, or which has lapsed while it was idle."""
        with self._session.guard:
            kept = self._kept
            if kept is not None and kept.grant is grant:
                self._kept = None
        if kept is not None and kept.grant is grant:
            kept.ends()
        self._go_on()

    def ask(self, grant: GrantBase) -> None:
        """Give the znode back when it is idle: somebody asks for its release."""
        with self._session.guard:
            if self._kept is not None and self._kept.grant is grant:
                self._kept.asked = True
        self._go_on()

    # What is due.

    def _go_on(self) -> None:
        me = threading.get_ident()
        if me in self._going:
            return  # what is due calls this again, and the first call looks again
        try:
            self._going.add(me)
            self._do_all()
        finally:
            self._going.discard(me)

    def _do_all(self) -> None:
        while (due := self._next()) is not None:
            due()

    def _next(self) -> Callable[[], object] | None:
        with self._session.guard:
            return self._due()

    def _due(self) -> Callable[[], object] | None:
        """Return what to do next, without the guard."""
        kept = self._kept
        if kept is not None and kept.idle is not None:
            kept.asked |= bool(self._waiters) and not self._session.may_grant(kept.claim.path)
            if kept.asked:
                self._leaving.append(kept)
                self._kept = None
            elif kept.watched:
                self._hand(kept)
        if self._handed:
            return self._tell
        if self._leaving:
            return self._leave_queue
        return self._due_while_idle() or self._due_in_the_queue()

    def _due_while_idle(self) -> Callable[[], object] | None:
        kept = self._kept
        if kept is None or kept.idle is None:
            return None
        if kept.looks is None:
            kept.looks = looks = self._session.attempt(
                watch_queue(kept.claim.path, partial(self._alone, kept))
            )
            return partial(self._begin, looks, partial(self._seen, kept))
        assert kept.grant is not None
        end = kept.idle + kept.grant._terms.keep
        if kept.watched and end < kept.timed:
            kept.timed = end
            return partial(self._session.later, partial(self._set_alarm, kept))
        return None

    def _due_in_the_queue(self) -> Callable[[], object] | None:
        kept, contender = self._kept, self._contender
        if self._waiters and contender is None and (kept is None or kept.asked):
            first = next(iter(self._waiters))
            self._contender = contender = first.contend(self, first.patient)
            return partial(self._begin, contender, partial(self._over, contender))
        if not self._waiters and contender is not None and not self._withdrawn:
            self._withdrawn = True
            return contender.cancel
        empty = not self._waiters and contender is None and kept is None
        if empty and self._session.places.get(self._key) is self:
            del self._session.places[self._key]
        return None

    def _free(self, kept: Kept) -> bool:
        """Whether an acquire may have the znode now."""
        unused = kept.idle is not None and kept.watched and not kept.asked
        return unused and self._session.may_grant(kept.claim.path)

    def _grant(self, kept: Kept, terms: GrantOptions) -> GrantBase:
        before, session = kept.grant, self._session
        grant = terms.grant(session, claim=kept.claim, session_id=kept.session_id, terms=terms)
        grant._place = self
        if before is None:
            session.give(grant)
        else:
            grant.kept = True
            session.give_again(grant, before)
        kept.grant, kept.idle = grant, None
        return grant

    def _hand(self, kept: Kept) -> bool:
        """Give the znode to the first who waits; return whether somebody does."""
        while self._waiters:
            waiter, _ = self._waiters.popitem(last=False)
            if waiter.accept():
                grant = self._grant(kept, waiter.terms)
                waiter.made = (grant,)
                self._handed.append((waiter, grant))
                if subscriptions.hooks:
                    self._session.tell_granted(waiter, grant)
                return True
        return False

    def _tell(self) -> None:
        while self._handed:
            try:
                waiter, grant = told = self._handed[0]
            except IndexError:
                return  # another thread has told the last one
            waiter._resolve(grant, None)
            with self._session.guard:
                if told in self._handed:
                    self._handed.remove(told)

    def _begin(self, attempt: Attempt[object], over: Callable[[], object]) -> None:
        """Start an attempt of the place's own, on a thread that no interrupt strikes."""
        if may_be_interrupted():
            self._session.later(partial(self._begin, attempt, over))
            return
        attempt.when_done(over)
        attempt.start()

    def _over(self, contender: Attempt[object]) -> None:
        """Go on after the contender: it is granted, has failed, or was given up."""
        with self._session.guard:
            if self._contender is not contender:
                return
            self._contender, self._withdrawn = None, False
            granted, error = contender.settled()
            refused = []
            if granted is None:
                refused = [each for each in self._waiters if error is not None or not each.patient]
                refused = [each for each in refused if each.accept()]
            for waiter in refused:
                self._waiters.pop(waiter, None)
        for waiter in refused:
            waiter._resolve(None, copy_error(error) if isinstance(error, Exception) else error)
        self._go_on()

    def _alone(self, kept: Kept) -> None:
        with self._session.guard:
            kept.watched, self._skips = True, 0
        self._go_on()

    def _seen(self, kept: Kept) -> None:
        """Note that the znode must be given back: somebody else is there, or it is gone."""
        with self._session.guard:
            kept.asked = True
            if self._kept is kept and not kept.watched:
                self._skip = self._skips = min(2 * self._skips or 1, MOST_SKIPPED)
        self._go_on()

    def _leave_queue(self) -> None:
        while self._leaving:
            try:
                kept = self._leaving[0]
            except IndexError:
                return  # another thread gives the last one back
            give_back = kept.claim.release if kept.grant is None else kept.grant._give_back
            kept.ends()
            self._session.forget(kept.claim.path)
            self._begin(self._session.attempt(give_back(), recover=give_back), _nothing)
            with self._session.guard:
                if kept in self._leaving:
                    self._leaving.remove(kept)

    def _set_alarm(self, kept: Kept) -> None:
        """Set it on the session's own thread: one that nothing can call off would keep that up."""
        kept.call_off()  # a later one, of another lock that keeps for longer
        left = kept.timed - self._session.now()
        kept.call_off = self._session.pause(max(0.0, left), partial(self._alarm, kept))
        if self._kept is not kept:  # it has ended meanwhile
            kept.call_off()

    def _alarm(self, kept: Kept) -> None:
        """Give the znode back if it has been idle for so long; else set another alarm."""
        with self._session.guard:
            kept.timed = math.inf
            if kept.idle is not None and kept.grant is not None:
                kept.asked |= self._session.now() >= kept.idle + kept.grant._terms.keep
        self._go_on()

    def rebuild(self, taken: GrantOptions | None = None) -> None:
        """Start over after an interrupt: give the znode up, and queue again.

        ``taken``: the options of a grant that nobody may have got.
        """
        with self._session.guard:
            kept, contender = self._kept, self._contender
            self._contender, self._withdrawn = None, False
            self._going.clear()
            if kept is not None:
                kept.asked = True
                grant = kept.grant
                if grant is not None and taken is grant._terms and not grant._kept:
                    grant._end_with(End(State.RELEASED))
                if grant is None or (grant._ended and kept.idle is None):
                    kept.idle = self._session.now()
                    if grant is not None and grant.released and subscriptions.hooks:
                        emit.released(grant, kept.idle)
        if contender is not None:
            contender.cancel()
        self._go_on()


def _join(session: Session, key: Hashable, waiter: Waiter) -> None:
    rebuild = partial(_rebuild, session, key)
    try:
        with session.guard:
            place = session.places.get(key)
            if place is None:
                place = session.places[key] = Place(session, key)
            waiter._place = place
            waits = place.join(waiter)
        if waits:
            place._go_on()
        elif waiter.accept():
            waiter._resolve(None, None)
    except BaseException:
        session.post(rebuild)
        raise


def _rebuild(session: Session, key: Hashable) -> None:
    place = session.places.get(key)
    if place is not None:
        place.rebuild()
