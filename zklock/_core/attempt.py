"""Drives a recipe: carries out what it asks for, sends the answers back, and keeps its outcome.

All that is not said to be for any thread runs in a step (see ``shell``): one thread at a time.

An interrupt may tear a step apart, and a recipe with it. Then the recipe begins anew, after the
next connection: what it has done is known by its contender. So ``make`` makes a recipe that may be
begun again at any moment, as after a lost reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

from zklock._core.wire import dropped
from zklock._ground.copy_error import copy_error
from zklock._ground.interrupts import may_be_interrupted, raised_by_zklock
from zklock._ground.records import log_fields
from zklock._recipes.effects import (
    AbandonCreate,
    Batch,
    Cancelled,
    Claim,
    Failed,
    Pause,
    Recipe,
    Request,
    SessionReplaced,
    Wait,
    Wakeup,
    backoff,
)
from zklock.errors import ZkLockError

if TYPE_CHECKING:
    from zklock._core.grant import GrantOptions
    from zklock._core.session import Session

log = logging.getLogger("zklock")
T = TypeVar("T")

_SUSPENDED: Any = object()


class Once:
    """A call that is made at most once, however often it is asked for.

    For a job that ``when_done()`` hands over: it may be handed over twice.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = [call]

    def __call__(self, *what: object) -> None:
        """Call, unless it was called before."""
        if self._call:
            self._call.pop()(*what)


class Pending(Generic[T]):
    """An outcome that will come, of what was asked of a session: a value or an error."""

    __slots__ = (
        "__weakref__",
        "_calls",
        "_decided",
        "_wakes",
        "began",
        "heard",
        "made",
        "outcome",
        "session",
        "terms",
        "told",
    )

    def __init__(self, session: Session, terms: GrantOptions | None = None) -> None:
        self.session = session
        self.terms = terms
        self.made: tuple[Any, ...] = ()  # the grant that was made for it
        # For telemetry: when it began, when its blocker was gone, whether a grant was told.
        self.began: float | None = None
        self.heard: float | None = None
        self.told = False
        self.outcome: tuple[Any, BaseException | None] | None = None
        self._decided = False  # granted, or given up
        self._wakes: list[Callable[[], object]] = []
        self._calls: list[Callable[[], object]] = []

    # For any thread.

    @property
    def done(self) -> bool:
        return self.outcome is not None

    @property
    def asks(self) -> bool:
        """Whether it sends requests as it begins."""
        return True

    def start(self, *, awaited: bool = False) -> Self:
        """Begin; return without waiting. ``awaited``: this thread waits for the outcome next."""
        if self.session.interrupted:
            self.session.later(partial(self.session.step, self._begin, False))
        else:
            self.session.step(self._begin, awaited)
        return self

    def when_done(self, call: Callable[[], object]) -> None:
        """Call when there is an outcome, on the client's own thread; perhaps twice.

        Only a step takes calls from the list. This thread may find the outcome just as a step
        brings it, or an interrupt may strike that step: then the call is made twice.
        """
        if self.outcome is None:
            self._calls.append(call)
        if self.outcome is not None:
            self.session.later(call)

    def wake_when_done(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` in the step that brings the outcome. It must not block or ask anything."""
        self._wakes.append(wake)
        if self.outcome is not None:
            wake()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the outcome, at most ``timeout`` seconds; return whether there is one."""
        return self.outcome is not None or self.session.shell.wait(self, timeout)

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Return how long to wait natively: see ``shell.limit``."""
        return self.session.limit(seconds, wake)

    def result(self) -> T:
        """Return the value, or raise the error; there must be an outcome."""
        assert self.outcome is not None
        value, error = self.outcome
        if error is not None:
            raise error
        result: T = value
        return result

    def settled(self) -> tuple[Any, BaseException | None]:
        """Return the value and the error; there must be an outcome."""
        assert self.outcome is not None
        return self.outcome

    def cancel(self, error: BaseException | None = None) -> bool:
        """Withdraw, unless it is too late; return whether this call did it.

        The outcome is there at once: ``error``, or ``None``. The withdrawal goes on in the
        background. In a signal handler that has interrupted a step, it is done soon.
        """
        if self._decided:
            return False
        if self.session.interrupted:
            self.session.later(partial(self.cancel, error))
            return False
        return bool(self.session.step(self._cancel, error))

    def come(self, value: Any = None) -> None:
        """Set the outcome. Repeatable."""
        self.session.step(self.resolve, value)

    # In a step.

    def accept(self) -> bool:
        """Return whether a grant may be made; if so, it cannot be given up any more."""
        mine, self._decided = not self._decided, True
        return mine

    def resolve(self, value: Any, error: BaseException | None = None) -> None:
        """Set the outcome, unless there is one, and wake who waits for it. Repeatable."""
        if self.outcome is None:
            self.outcome = value, error
        self._decided = True
        for wake in self._wakes:
            wake()
        self._wakes.clear()
        while self._calls:
            self.session.later(self._calls[0])
            del self._calls[0]

    def _begin(self, awaited: bool) -> None:
        raise NotImplementedError

    def _cancel(self, error: BaseException | None) -> bool:
        raise NotImplementedError


class _Fired(NamedTuple):
    """A watch that fired; see ``Attempt.watched``."""

    path: str | None
    deleted: bool
    held: bool
    taken: bool
    at: float | None


Asked: TypeAlias = Batch | Claim | Wait | Pause | AbandonCreate


class Stage(Enum):
    NEW = auto()
    RUNNING = auto()
    UNSENT = auto()
    """A batch waits for the connection."""
    SENT = auto()
    """A batch is under way, or its connection was lost."""
    BUSY = auto()
    """ZooKeeper has asked for patience: the recipe gets the answer after a pause."""
    CLAIM = auto()
    """It waits for a live lease."""
    WAIT = auto()
    PAUSE = auto()
    TORN = auto()
    """An interrupt has torn its recipe apart: it begins anew with the next connection."""
    OVER = auto()


_LATER = {Stage.RUNNING, Stage.SENT, Stage.BUSY, Stage.TORN}
"""Where its recipe is told later that it is given up: an answer may say what to withdraw."""


class Attempt(Pending[T]):
    """One run of a recipe; its outcome is what the recipe returns, or its error.

    ``make`` makes the recipe. ``recover`` makes the one that cleans up after an error of the code.
    ``terms`` are for the session, when it grants a claim. ``tries``: the clean-ups so far.
    """

    __slots__ = (
        "_asked",
        "_backoffs",
        "_call_off",
        "_events",
        "_make",
        "_recipe",
        "_recover",
        "_stage",
        "_tries",
        "_withdraws",
    )

    def __init__(
        self,
        session: Session,
        make: Callable[[], Recipe[T]],
        *,
        recover: Callable[[], Recipe[Any]] | None = None,
        terms: GrantOptions | None = None,
        tries: int = 0,
    ) -> None:
        super().__init__(session, terms)
        self._make = make
        self._recover = recover
        self._tries = tries
        self._recipe: Recipe[T] | None = None
        self._stage = Stage.NEW
        self._asked: Asked = ()
        self._call_off: Callable[[], object] | None = None  # of a pause
        self._backoffs = 0  # how many answers in a row were "busy"
        self._events: tuple[_Fired, ...] = ()  # while the recipe did not wait
        self._withdraws = False  # it was given up, and its recipe is not told yet

    def _begin(self, awaited: bool) -> None:
        if self._stage is not Stage.NEW:
            return
        self.session.enter(self)
        if awaited:
            self.session.shell.read_for(self)
        self._renew()

    def _renew(self) -> None:
        self._recipe = self._make()
        self._go(None)

    @property
    def stage(self) -> Stage:
        return self._stage

    def torn(self) -> None:
        """Note that an interrupt has struck in a step of it. Repeatable."""
        recipe, self._recipe = self._recipe, None
        if recipe is not None:
            recipe.close()
        if self._stage is Stage.OVER:
            self._end(None, None)
        elif self.made and self.outcome is None:
            self._end(self.made[0], None)
        else:
            self._stage = Stage.TORN
            self._withdraws = self._decided = self.outcome is not None  # it was given up

    def again(self) -> None:
        """Go on with a new connection of the same session."""
        match self._stage:
            case Stage.NEW | Stage.TORN:
                self._renew()
            case Stage.UNSENT | Stage.CLAIM | Stage.WAIT | Stage.PAUSE if self._withdraws:
                self._go(None, Cancelled())  # an interrupt has struck as it was given up
            case Stage.UNSENT:
                self._take(self._asked)
            case Stage.SENT:
                batch: Any = self._asked
                self.answered(batch, [dropped(each) for each in batch])
            case Stage.WAIT:
                self.watched(None, deleted=False)

    def replaced(self) -> None:
        """Hear that the session is gone; ``session.final`` says whether another one will come."""
        if self._stage is Stage.TORN:
            if self.session.final is not None:
                self._renew()
        elif self._stage not in {Stage.NEW, Stage.OVER}:
            self._go(None, self._gone())

    def _gone(self) -> SessionReplaced:
        final = self.session.final
        return SessionReplaced(None if final is None else copy_error(final))

    def granted(self, error: Exception | None = None) -> None:
        """Go on with a claim: the lease is live, or there can be none."""
        if self._stage is Stage.CLAIM:
            self._go(None, error)

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
        has heard yet, may have taken it, and this attempt's own node with it. ``at``: when the
        session heard of it.
        """
        fired = _Fired(path, deleted, held, taken, at)
        if self._stage is not Stage.WAIT:
            self._events = (*self._events, fired)
        elif event := self._meaning(self._asked, fired):
            self._go(event)

    def _meaning(self, wait: Any, fired: _Fired) -> Wakeup | None:
        """Return the event that ends this wait; ``None``: it waits on."""
        if fired.path is None:
            return Wakeup.UNWATCHED
        if fired.path not in {wait.blocker, wait.own, wait.beside}:
            return None
        if fired.deleted and fired.path == wait.own:
            return Wakeup.OWN_GONE
        if fired.deleted and fired.path == wait.blocker:
            self.heard = fired.at
        if not fired.deleted or fired.taken:
            return Wakeup.UNWATCHED
        return Wakeup.HOLDER_GONE if fired.held else Wakeup.BLOCKER_GONE

    def _cancel(self, error: BaseException | None) -> bool:
        if self._decided:
            return False
        self.outcome, self._decided, self._withdraws = (None, error), True, True
        self.resolve(None, error)
        if self._stage is Stage.NEW:
            self._end(None, error)
        elif self._stage not in _LATER:
            self._go(None, Cancelled())
        return True

    def _go(self, value: Any, error: BaseException | None = None) -> None:
        """Advance the recipe until it is suspended or over."""
        session, recipe = self.session, self._recipe
        assert recipe is not None
        if self._call_off is not None:
            self._call_off()
            self._call_off = None
        session.advancing.append(self)
        self._stage = Stage.RUNNING
        if isinstance(error, Cancelled):
            self._withdraws = False
        try:
            while value is not _SUSPENDED:
                asked = recipe.send(value) if error is None else recipe.throw(error)
                value = error = None
                if self._withdraws:
                    self._withdraws, error = False, Cancelled()
                elif session.final is not None:
                    error = self._gone()
                else:
                    value = self._take(asked)
        except StopIteration as stop:
            self._end(stop.value, None)
        except (Cancelled, SessionReplaced) as failed:
            self._end(None, failed)
        except raised_by_zklock(ZkLockError) as failed:
            self._end(None, failed)
        except Exception as failed:
            if may_be_interrupted():
                raise  # a signal handler's: this step is torn
            log.exception("a step failed; what it began is withdrawn", extra=log_fields())
            self._end(None, failed)
            self._clean_up()
        session.advancing.pop()

    def _take(self, asked: Asked) -> Any:
        """Begin what the recipe asks for; return the answer if it is there."""
        self._asked = asked
        match asked:
            case tuple():
                if self.session.connected:
                    self._stage = Stage.SENT
                    self.session.send(self, asked)
                else:
                    self._stage = Stage.UNSENT
                return _SUSPENDED
            case Wait():
                self._stage, self.heard = Stage.WAIT, None
                events, self._events = self._events, ()
                for fired in events:
                    if event := self._meaning(asked, fired):
                        return event
                return _SUSPENDED
            case Claim():
                self._stage = Stage.CLAIM
                grant = self.session.claim(self, asked)
                return _SUSPENDED if grant is None else grant
            case AbandonCreate(path, uuid):
                self.session.abandon_create(path, uuid)
                return None
            case Pause():
                self._stage = Stage.PAUSE
                self._pause(asked.seconds, partial(self._elapsed, asked, None))
                return _SUSPENDED

    def watches(self) -> None:
        """Note that it sets watches: what fired before is over."""
        self._events = ()

    def answered(self, batch: Sequence[Request], results: Sequence[Any]) -> None:
        """Take the results of a batch."""
        if batch is not self._asked or self._stage is not Stage.SENT:
            return  # it was thrown out of this batch
        for result in results:
            if isinstance(result, Failed) and result.busy:
                self._pause(backoff(self._backoffs), partial(self._elapsed, batch, results))
                self._stage = Stage.BUSY
                self._backoffs += 1
                return
        self._backoffs = 0
        self._go(results)

    def _pause(self, seconds: float, then: Callable[[], object]) -> None:
        self._call_off = self.session.pause(seconds, partial(self.session.step, then))

    def _elapsed(self, asked: Asked, answer: Any) -> None:
        if asked is self._asked and self._stage in {Stage.PAUSE, Stage.BUSY}:
            self._go(answer)

    def _end(self, value: Any, error: BaseException | None) -> None:
        """End with the recipe's outcome, unless it was given up. Repeatable."""
        outcome = self.outcome or (value, error)
        self._stage, self.outcome, self._withdraws = Stage.OVER, outcome, False
        self._recipe, self._asked = None, ()
        self.session.leave(self)
        self.resolve(value, error)

    def _clean_up(self) -> None:
        """Start others that remove what this one may have left, until one succeeds."""
        if self._recover is None:
            return
        other: Attempt[None] = Attempt(
            self.session, self._recover, recover=self._recover, tries=self._tries + 1
        )
        self.session.pause(backoff(self._tries), other.start)
