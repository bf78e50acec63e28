"""Drives a recipe: carries out what it yields, sends the answers back, and keeps its outcome.

Nobody waits here. A step runs on the thread that brings the news: an answer, a watch, a lost
session, or the caller. The steps are short and do not block. One thread at a time runs them: if
another thread, or the code that a signal handler has interrupted, is running one, the news is left
to it. ``attempt_state`` says what news does in which stage. No lock is taken. So a signal handler
may give an attempt up, even if it has interrupted a step of the same attempt.

An exception out of nowhere, such as a ``KeyboardInterrupt`` at any moment, may leave a step half
done. The thread that it strikes then hands the attempt to the session's own thread, which no
interrupt strikes: there the attempt ends, and what it may have left is removed. Handing it over is
one call in C, before which Python does not look for signals. So a second interrupt does no harm.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from zklock._engine import attempt_state
from zklock._engine.attempt_state import AttemptEvent, Stage
from zklock._engine.grant import GrantOptions
from zklock._engine.ports import Pending, SessionPort
from zklock._engine.transition_table import IllegalStep
from zklock._ground.clock import clock
from zklock._ground.interrupts import may_be_interrupted
from zklock._ground.records import log_fields
from zklock._recipes.effects import (
    AbandonCreate,
    Batch,
    Cancelled,
    Claim,
    Create,
    Event,
    Failed,
    Node,
    Pause,
    Recipe,
    SessionReplaced,
    Wait,
    Watch,
    WatchExists,
    WatchList,
    backoff,
)
from zklock.errors import ZkLockError

log = logging.getLogger("zklock")
T = TypeVar("T")

Asked: TypeAlias = Batch | Claim | Wait | Pause | AbandonCreate
Advance: TypeAlias = Callable[[], Asked]
"""Advances the recipe; returns what it asks for next."""

_WATCHING = (Watch, WatchList, WatchExists)  # made once: `A | B` makes an object at each evaluation

_LEFT = (ZkLockError, Cancelled, SessionReplaced)
"""Errors with which a recipe ends after it has left. Any other may have kept it from leaving."""


class _Fate(Enum):
    """What was decided on an attempt."""

    ACCEPTED = auto()
    """It ends with the recipe's outcome, and cannot be given up any more."""
    CANCELLED = auto()
    """It was given up, and the recipe is not told yet."""
    TOLD = auto()
    """It was given up, and the recipe was told."""


@dataclass(frozen=True, slots=True, eq=False)
class _Decision:
    """The decision on an attempt; ``error`` is its outcome if it was given up."""

    fate: _Fate
    error: BaseException | None = None


_ACCEPTED = _Decision(_Fate.ACCEPTED)


class _Fired(NamedTuple):
    """A watch that fired; see ``Attempt.watched``."""

    path: str | None
    deleted: bool
    held: bool
    taken: bool
    at: float | None


class _Stay:
    """Where the recipe is suspended: what it asked for. News of an earlier stay is late.

    ``call_off`` cancels the rest or the pause. ``answered``: the recipe has got the answer, which
    may be told again.
    """

    __slots__ = ("answered", "asked", "call_off")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.answered = False
        self.call_off: Callable[[], object] | None = None


class Attempt(Pending[T]):
    """One run of a recipe; its outcome is what the recipe returns, or its error.

    ``recover`` makes the recipe that cleans up if an unexpected exception tears this one apart,
    such as ``KeyboardInterrupt`` in the caller's thread; ``tries`` counts the clean-ups so far.
    ``terms`` are for the host, when it grants a claim.
    """

    # What few attempts have takes no memory in the others.
    _tries = 0
    _awaited = 0  # by the thread with this ident, which may read the answers
    _was_awaited = False
    _decided: _Decision | None = None
    # Only the thread that handles news uses the following.
    _stage = Stage.NEW
    _stay: _Stay | None = None
    _backoffs = 0  # how many answers in a row were "busy"
    _events: tuple[_Fired, ...] = ()  # while the recipe did not wait
    _struck_by: BaseException | None = None  # whoever has started it, or handled news

    def __init__(
        self,
        host: SessionPort,
        recipe: Recipe[T],
        *,
        recover: Callable[[], Recipe[None]] | None = None,
        terms: GrantOptions | None = None,
        tries: int = 0,
    ) -> None:
        super().__init__()
        self.terms = terms
        self._host = host
        # A list, as it takes a tenth of a deque's memory, and is hardly ever long.
        self._news: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        # Who handles news: a list that says whether an interrupt has struck. setdefault() is one
        # step: nothing can come in between.
        self._handling: dict[None, list[bool]] = {}
        self._recipe = recipe
        self._recover = recover
        if tries:
            self._tries = tries

    def start(self, *, awaited: bool = False) -> Self:
        """Begin; return without waiting. If this raises, the attempt is over, or will be soon.

        ``awaited``: this thread is about to ``wait()``.
        """
        if awaited:
            self._awaited, self._was_awaited = threading.get_ident(), True
        try:
            self._host.enter(self)
            if self._host.interrupted:
                self._host.later(partial(self._tell, self._started))
            else:
                self._tell(self._started)
        except IllegalStep:
            raise
        except BaseException as error:
            self._struck_by = error
            self._host.post(self._mend)
            raise
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the outcome, at most ``timeout`` seconds; return whether there is one."""
        if self._awaited and not self._outcome:
            end = math.inf if timeout is None else clock() + timeout
            if self._hear(end) and timeout is not None:
                timeout = max(0.0, end - clock())
        self._hear_no_more()
        return bool(self._outcome) or super().wait(timeout)

    def look(self) -> bool:
        """Hear the answers to its batches if they come at once; return whether it is over."""
        if self._awaited and not self._outcome:
            self._hear(None)
        self._hear_no_more()
        return bool(self._outcome)

    def _hear(self, end: float | None) -> bool:
        """Hear the answers to its batches until then, if this thread can; return whether it has.

        Without an end, do not sleep. With an end, hear its events, too, for a moment after each
        batch: who waits for longer leaves them to others.
        """
        heard: object = None
        left = None
        while not self._outcome and (end is None or (left := end - clock()) > 0):
            asked = self._stay.asked if self._stay is not None else None
            if isinstance(asked, tuple):
                batch: Batch = asked
            elif isinstance(asked, Wait) and end is not None and asked is not heard:
                batch = ()
            else:
                break
            if not self._host.hear(batch, left):
                break
            heard = asked
        return heard is not None

    def _hear_no_more(self) -> None:
        """Leave the answers to others: a batch may be under way that this thread was to hear."""
        self._awaited = 0
        asked = self._stay.asked if self._was_awaited and self._stay is not None else None
        if isinstance(asked, tuple):
            self._host.hear(asked, 0.0)

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Return how long to wait natively; see ``runtime.Limit``."""
        return self._host.limit(seconds, wake)

    def cancel(self, error: BaseException | None = None) -> bool:
        """Withdraw, unless it is too late; return whether this call did it.

        The outcome is there at once: ``error``, or ``None``. The withdrawal goes on in the
        background. May be called in a signal handler. If it is interrupted, it goes on there, too.
        """
        mine = _Decision(_Fate.CANCELLED, error)
        try:
            decision: _Decision = self.__dict__.setdefault("_decided", mine)
            if decision.fate is _Fate.ACCEPTED:
                return False
            self._awaited = 0
            self._resolve(None, decision.error)
            if self._host.interrupted:
                self._host.later(partial(self._tell, self._tell_cancelled))
            else:
                self._tell(self._tell_cancelled)
            return decision is mine
        except BaseException:
            self._host.post(self._mend)
            raise

    def accept(self) -> bool:
        """Return whether a grant may be made; if so, the attempt cannot be given up any more."""
        decision: _Decision = self.__dict__.setdefault("_decided", _ACCEPTED)
        return decision.fate is _Fate.ACCEPTED

    def resume(self) -> None:
        """Send the parked batch: the client is connected."""
        self._tell(self._connected)

    def lease_live(self) -> None:
        """Go on with the claim: the lease is live."""
        self._tell(self._wake, AttemptEvent.LEASE_LIVE, partial(self._recipe.send, None))

    def refused(self, error: Exception) -> None:
        """Fail if suspended at a claim: there can be no lease."""
        self._tell(self._wake, AttemptEvent.REFUSED, partial(self._recipe.throw, error))

    def session_replaced(self, final: Exception | None = None) -> None:
        """Hear that the session is gone. ``final`` is the error if no other session will come."""
        self._tell(self._replaced, final)

    def watched(
        self,
        path: str | None,
        deleted: bool,
        held: bool = False,
        taken: bool = False,
        at: float | None = None,
    ) -> None:
        """Hear of a watch that fired on ``path``; ``None`` stands for all watches at once.

        ``held``: whether the node had been granted, on this session. ``taken``: whether it is a
        node of this session that this client did not delete. The session's end, of which nobody
        has heard yet, may have taken it, and this attempt's own node with it. ``at``: when the host
        heard of it.

        A caller that reads events for all handles its own: what strikes it must not end others.
        """
        self._news.append((self._happened, (_Fired(path, deleted, held, taken, at),)))
        if self._host.interrupted and self._awaited != threading.get_ident():
            self._host.later(self._handle)
        else:
            self._handle()

    def _tell(self, handle: Callable[..., object], *news: object) -> None:
        """Have the news handled: ``handle(*news)`` is called."""
        self._news.append((handle, news))
        self._handle()

    def _handle(self) -> None:
        me = [False]
        try:
            self._handle_all(me)
        except IllegalStep:  # it has changed nothing
            if self._handling.get(None) is me:
                self._handling.clear()
            self._host.later(self._handle)
            raise
        except BaseException as error:
            me[0], self._struck_by = True, error
            self._host.post(self._mend)
            if not isinstance(error, Exception) or may_be_interrupted():
                raise
            log.exception("an acquire was interrupted; cleaning up", extra=log_fields())

    def _handle_all(self, me: list[bool]) -> None:
        # If another thread handles news, it looks again when it ends.
        while self._news and self._handling.setdefault(None, me) is me:
            while self._news:
                handle, news = self._news.pop(0)
                handle(*news)
            self._handling.clear()  # unlike del, it keeps no table for what comes next

    # From here on, only one thread runs at a time.

    def _mend(self) -> None:
        """Go on for a thread that an exception out of nowhere has struck."""
        error, self._struck_by = self._struck_by, None
        handling, decided = self._handling.get(None), self._decided
        if decided is not None and decided.fate is not _Fate.ACCEPTED:
            self._make_again()
            self._resolve(None, decided.error)
            self._news.append((self._tell_cancelled, ()))
        if error is not None and handling is not None and handling[0]:
            try:
                self._interrupted(error)
            finally:
                self._handling.clear()
        elif error is not None:
            self._news.append((self._interrupted, (error,)))
        self._handle()

    def _wake(self, news: AttemptEvent, advance: Advance, final: Exception | None = None) -> None:
        """Advance the recipe until it is suspended or over, if the news has it go on.

        ``final``: no other session will come, and nothing that it asks for can be had.
        """
        then = attempt_state.TABLE[self._stage, news]
        if then is not Stage.RUNNING:
            return
        self._stage = then
        stay, self._stay = self._stay, None
        if stay is not None and stay.call_off is not None:
            stay.call_off()
        try:
            going: Advance | None = advance
            while going is not None:
                asked = going()
                decided = self._decided
                if decided is not None and decided.fate is _Fate.CANCELLED:
                    going = self._throw_cancelled
                elif final is not None:
                    going = partial(self._recipe.throw, SessionReplaced(final))
                else:
                    going = self._begin(asked)
        except StopIteration as stop:
            self._end(AttemptEvent.ENDS, stop.value, None)
        except Exception as error:
            self._end(AttemptEvent.ENDS, None, error)

    def _begin(self, asked: Asked) -> Advance | None:
        """Begin what the recipe asks for; return how to go on, ``None`` if it has to wait."""
        stay = _Stay(asked)
        answer = None
        try:
            match asked:
                case tuple():
                    news = self._send(asked, stay)
                case Wait():
                    if self.heard is not None:
                        self.heard = None
                    events = (self._meaning(asked, fired) for fired in self._events)
                    answer, news = next(filter(None, events), None), AttemptEvent.WAITS
                case Claim():
                    answer, news = self._host.claim(self, asked), AttemptEvent.CLAIMS
                case AbandonCreate(path, uuid):
                    self._host.abandon_create(path, uuid)
                    return partial(self._recipe.send, None)
                case Pause():
                    stay.call_off = self._host.pause(
                        asked.seconds, partial(self._tell, self._elapsed, stay, None)
                    )
                    news = AttemptEvent.PAUSES
        except Exception as error:  # it is not known what was sent: what still comes is late
            log.exception(
                "a step of an acquire failed; the acquire is withdrawn", extra=log_fields()
            )
            return partial(self._recipe.throw, error)
        if answer is not None:
            return partial(self._recipe.send, answer)
        self._stage, self._stay = attempt_state.TABLE[self._stage, news], stay
        return None

    def _send(self, batch: Batch, stay: _Stay) -> AttemptEvent:
        if not self._host.connected:
            self._host.park(self)
            return AttemptEvent.PARKS
        watched = [it.path for it in batch if isinstance(it, _WATCHING)]
        if watched:
            self._events = ()
            self._host.watch(self, watched)
        done = partial(self._tell, self._on_reply, stay, batch)
        self._host.send_batch(batch, done, self._awaited == threading.get_ident())
        return AttemptEvent.SENDS

    def _started(self) -> None:
        self._wake(AttemptEvent.START, self._recipe.__next__)
        if self._stage is Stage.OVER:
            self._host.leave(self)  # it was over before it began

    def _on_reply(self, stay: _Stay, batch: Batch, results: tuple[Any, ...]) -> None:
        if stay.answered:
            self._stage = attempt_state.TABLE[self._stage, AttemptEvent.ANSWERED_LATE]
        elif stay is not self._stay:
            self._stage = attempt_state.TABLE[self._stage, AttemptEvent.ANSWERED_LATE]
            # Nobody uses a node that was created by a batch which was given up.
            for request, result in zip(batch, results, strict=True):
                if isinstance(request, Create) and isinstance(result, Node):
                    self._host.delete_orphan(result.path)
        elif [result for result in results if isinstance(result, Failed) and result.busy]:
            self._stage = attempt_state.TABLE[self._stage, AttemptEvent.BUSY]
            stay.answered = True
            stay.call_off = self._host.pause(
                backoff(self._backoffs), partial(self._tell, self._elapsed, stay, results)
            )
            self._backoffs += 1
        else:
            self._backoffs = 0
            stay.answered = True
            self._wake(AttemptEvent.ANSWERED, partial(self._recipe.send, results))

    def _elapsed(self, stay: _Stay, answer: Any) -> None:
        if stay is self._stay:
            self._wake(AttemptEvent.ELAPSED, partial(self._recipe.send, answer))

    def _connected(self) -> None:
        stay = self._stay
        if stay is None:
            self._stage = attempt_state.TABLE[self._stage, AttemptEvent.CONNECTED]
        else:
            self._wake(AttemptEvent.CONNECTED, lambda: stay.asked)

    def _replaced(self, final: Exception | None) -> None:
        lost = partial(self._recipe.throw, SessionReplaced(final))
        if final is None:
            self._wake(AttemptEvent.SESSION_GONE, lost)
        else:
            new = self._stage is Stage.NEW
            self._wake(AttemptEvent.CLIENT_OVER, self._recipe.__next__ if new else lost, final)

    def _happened(self, fired: _Fired) -> None:
        asked = self._stay.asked if self._stay is not None else None
        if not isinstance(asked, Wait):
            self._stage = attempt_state.TABLE[self._stage, AttemptEvent.WATCHED]
            self._events = (*self._events, fired)
        elif event := self._meaning(asked, fired):
            self._wake(AttemptEvent.WATCHED, partial(self._recipe.send, event))

    def _meaning(self, wait: Wait, fired: _Fired) -> Event | None:
        """Return the event that ends this wait, and note the news; ``None``: it waits on."""
        if fired.deleted and fired.path == wait.blocker:
            self.heard = fired.at
        return _event(wait, fired)

    def _tell_cancelled(self) -> None:
        if self._decided is not None and self._decided.fate is _Fate.CANCELLED:
            new = self._stage is Stage.NEW
            self._wake(
                AttemptEvent.CANCELLED, self._recipe.__next__ if new else self._throw_cancelled
            )

    def _throw_cancelled(self) -> Asked:
        """Tell the recipe to give up. It is told once."""
        assert self._decided is not None
        self._decided = _Decision(_Fate.TOLD, self._decided.error)
        return self._recipe.throw(Cancelled())

    def _end(self, news: AttemptEvent, value: Any, error: BaseException | None) -> None:
        """End with the recipe's outcome, unless it was given up."""
        over = attempt_state.TABLE[self._stage, news]
        if self._stage is over:
            return
        begun = self._stage is not Stage.NEW
        self._stay = None
        self._host.leave(self)
        decision: _Decision = self.__dict__.setdefault("_decided", _ACCEPTED)
        accepted = decision.fate is _Fate.ACCEPTED
        self._resolve(*((value, error) if accepted else (None, decision.error)))
        if begun and error is not None and not isinstance(error, _LEFT):
            self._clean_up()
        self._stage = over

    def _interrupted(self, error: BaseException) -> None:
        """End with this error, and give back what was made for it, unless somebody gets it."""
        if self._outcome is None:
            for grant in self.made:
                grant.abandon()
        self._make_again()
        self._end(AttemptEvent.INTERRUPTED, None, error)

    def _clean_up(self) -> None:
        """Start other attempts that remove what this one may have left, until one succeeds."""
        if self._recover is None:
            return
        other: Attempt[None] = Attempt(
            self._host, self._recover(), recover=self._recover, tries=self._tries + 1
        )
        if self._tries == 0:
            self._host.later(other.start)
        else:
            self._host.pause(backoff(self._tries), other.start)


def _event(wait: Wait, fired: _Fired) -> Event | None:
    """Return the meaning of a fired watch for this wait; ``None`` if it has none."""
    if fired.path is None:
        return Event.UNWATCHED
    if fired.path not in {wait.blocker, wait.own, wait.beside}:
        return None
    if fired.deleted and fired.path == wait.own:
        return Event.OWN_GONE
    if not fired.deleted or fired.taken:
        return Event.UNWATCHED
    return Event.HOLDER_GONE if fired.held else Event.BLOCKER_GONE
