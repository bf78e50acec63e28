"""One acquisition, from its grant to its end; the end may be a release or a loss."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from zklock._core.callbacks import check_callback
from zklock._core.contexts import GrantContext, Uses
from zklock._core.loops import check_thread
from zklock._core.script import Front
from zklock._ground.cached_property import cached_property
from zklock._ground.clock import check_timeout
from zklock._ground.interrupts import raised_by_zklock
from zklock._ground.loss import Loss, LossReason
from zklock._ground.records import log_fields
from zklock._recipes import queries, steps
from zklock._recipes.effects import Claim, Recipe
from zklock._telemetry.subscriptions import Over
from zklock.errors import LockLost, NotHeld
from zklock.token import FencingToken

if TYPE_CHECKING:
    from zklock._core.attempt import Pending
    from zklock._core.session import Session
    from zklock._ground.loss import LostCallback

log = logging.getLogger("zklock")


@dataclass(slots=True, eq=False)  # one that is frozen takes several times as long to make
class GrantOptions:
    """The options of a grant, fixed before it is given.

    ``grant`` is the class of the grant. ``owner`` is the thread or task that asks for it.
    ``uses`` counts the uses of the grant, where a thread or task may have several.
    ``kind`` is a word for what is granted. ``asked_by`` returns the request to release that the
    data of the lock's path has for the grant, ``None`` without one; the grant watches those data.
    Without ``asked_by``, only the grant's own node is watched. ``place`` is where the client's
    contender stands (see ``keep``), and ``keep`` the seconds for which an idle znode stays.
    """

    lock_path: str
    identity: str
    grant: type[GrantBase]
    on_lost: LostCallback | None = None
    on_suspended: Callable[[Any], object] | None = None
    on_release_requested: Callable[[Any], object] | None = None
    owner: Any = None
    uses: Uses | None = None
    kind: str = "exclusive"
    asked_by: Callable[[bytes], str | None] | None = None
    place: Any = None
    keep: float = 0.0


@dataclass(slots=True, eq=False)
class End:
    """How a grant has ended: by this loss, or without one, as it was released."""

    loss: Loss | None = None


class Losable(GrantContext):
    """What may be lost, and tells of it."""

    _AWAITS: ClassVar[bool] = False
    """Whether callbacks run on an event loop; else on threads, which must exist before."""

    @property
    def _loss(self) -> Loss | None:
        raise NotImplementedError

    @cached_property
    def _callbacks(self) -> list[LostCallback]:
        """Those that were not called yet."""
        raise NotImplementedError

    def add_lost_callback(self, callback: LostCallback) -> None:
        """Call ``callback(loss)`` once if the grant is lost; at once if it already is lost.

        It runs on one of zklock's own threads, or, for a grant of ``zklock.aio``, on the event loop
        of the task that acquired. An exception in it is logged; other callbacks still run. It is
        not called for a grant that was released. A ``MultiGrant`` is lost with the first of its
        locks, and that is the one in ``loss.grant``.
        """
        check_callback(self._AWAITS, "a lost callback", callback)
        self._call_when_lost(callback)

    def _call_when_lost(self, callback: LostCallback) -> None:
        self._callbacks.append(callback)
        if self._loss is not None:
            self._call_those_left()

    def _tell_loss(self) -> None:
        """Wake those who wait for the loss, and call the callbacks, if it is lost. Repeatable."""
        if self._loss is not None:
            self._set_lost()
            self._call_those_left()

    def _call_those_left(self) -> None:
        """Call the lost callbacks that were not called yet; each is taken once."""
        if self._callbacks:
            self._notify([self._call_next] * len(self._callbacks))

    def _call_next(self) -> object:
        try:
            callback = self._callbacks.pop(0)
        except IndexError:
            return None  # called already
        assert self._loss is not None
        return callback(self._loss)

    def _set_lost(self) -> None:
        """Wake the threads or tasks that wait for the loss."""
        raise NotImplementedError

    def _notify(self, calls: list[Callable[[], object]]) -> None:
        """Run users' callbacks soon, in order."""
        raise NotImplementedError


class GrantBase(Losable):
    """The common part of a grant, for threads and for asyncio; see ``Grant``.

    Nothing here takes a lock. A signal handler may therefore ask and abandon a grant, even if it
    has interrupted a change of the same grant.
    """

    _INSTEAD = "pass its token on (str(grant.token)), and have the resource compare it"

    _FRONT: ClassVar[Front]

    # What few grants have takes no memory in the others.
    _ended: End | None = None  # set by _end_with()
    _asked: str | None = None
    _reads = False  # a downgraded write lock
    _kept = False  # its owner has got it
    _release_begun = False  # its nodes are being deleted
    _place: Any = None  # what keeps its znode; see ``keep``
    kept = False
    """Whether its znode was kept from a grant before, whose token it has, too."""
    _undo: Callable[[], Recipe[Any]] | None = None  # what gives it back if nobody has got it
    _granted_at: float | None = None  # if telemetry was told of it

    def __init__(
        self, keeper: Session, *, claim: Claim, session_id: int, terms: GrantOptions
    ) -> None:
        self.token = claim.token
        self.path = claim.path
        self.lock_path = terms.lock_path
        self.session_id = session_id
        self.identity = terms.identity
        self.abandoned = claim.abandoned
        self._others = claim.others
        # One that is alone needs no more of its contender than its node.
        self._departs = None if claim.alone else claim.release
        if claim.undo is not None:
            self._undo = claim.undo
        self._keeper = keeper
        self._terms = terms

    @property
    def tokens(self) -> tuple[FencingToken, ...]:
        """A token for each permit of a semaphore, in order; for other locks just the one."""
        return (*(token for _, token in self._others), self.token)

    @property
    def _paths(self) -> tuple[str, ...]:
        """The nodes that the grant is on."""
        return (*(path for path, _ in self._others), self.path) if self._others else (self.path,)

    @property
    def _give_back(self) -> Callable[[], Recipe[Any]]:
        """What makes the recipe that gives it back."""
        undo = None if self._kept else self._undo
        return undo or self._departs or partial(steps.remove, self.path)

    @cached_property
    def _callbacks(self) -> list[LostCallback]:
        return [self._terms.on_lost] if self._terms.on_lost else []

    @cached_property
    def _end_told(self) -> Over:
        return {}

    @property
    def held(self) -> bool:
        """Whether the lock may be believed to be held, at the moment of the call.

        The answer is local and conservative; it comes from the clock. It becomes ``False`` before
        ZooKeeper can give the lock to another, even in the first instruction after a pause of the
        process. Time passes between this answer and its use: only a resource that checks the token
        closes that gap.
        """
        return not self._ended and self.remaining() > 0

    def remaining(self) -> float:
        """Return the seconds of lease left if nothing more is heard; 0 once the grant is over."""
        left = self._keeper.remaining()
        if left <= 0 and not self._ended:
            # A signal handler has interrupted the session, which would lose the grant only later.
            keeper = self._keeper
            self._lose(LossReason.LEASE_LAPSED, noticed=keeper.now(), lease_end=keeper.lease_end)
        return 0.0 if self._ended else left

    @property
    def released(self) -> bool:
        """Whether the grant was given back (and not lost before)."""
        return self._ended is not None and self._loss is None

    def check(self) -> None:
        """Raise ``LockLost`` if the lease has lapsed, or the grant is lost for another reason.

        Raises ``NotHeld`` after the release. It asks the clock, not the network.
        """
        if not self.held:
            raise self._why_not()

    def abandon(self) -> None:
        """Release the lock without waiting for ZooKeeper's answer; no error if the grant is over.

        May be called from any thread, and from a signal handler.
        """
        try:
            if self._place is None or not self._place.give_back(self):
                self._end()
        except raised_by_zklock(LockLost, NotHeld):
            return

    async def _verify(self, timeout: float | None) -> None:
        limit = check_timeout(timeout)
        check_thread("verify()")
        self.check()
        sent = self._keeper.now()
        try:
            there = await self._FRONT.ask(
                self._keeper,
                lambda: queries.confirm(self._paths),
                self.lock_path,
                self.remaining() if limit is None else limit,
            )
            self._keeper.confirmed(self, sent, there)
        finally:
            self.check()

    async def _release(self) -> None:
        check_thread("release()")
        if self._place is None or not self._place.give_back(self):
            await self._answered(self._end(awaited=self._FRONT.hears(self._keeper)))

    async def _answered(self, answer: Pending[Any], limit: float | None = None) -> None:
        """Wait for ZooKeeper's answer to the end of the grant, for a moment, or so long."""
        if self._keeper.interrupted:
            return  # no answer can be taken while this signal handler waits
        if await self._FRONT.finished(answer, self._keeper.moment if limit is None else limit):
            answer.result()
            if self._loss is not None:  # ZooKeeper has found nothing to delete
                raise self._why_not()
        else:
            log.info(
                "ZooKeeper has not confirmed a release yet: it continues in the background",
                extra=log_fields(self),
            )

    async def _give_back_use(self) -> None:
        uses = self._terms.uses
        await (self._release() if uses is None else uses._give_back(self))

    def _abandon_body(self) -> None:
        uses = self._terms.uses
        if uses is None:
            self.abandon()
        else:
            uses._abandon_use(self)

    @property
    def _loss(self) -> Loss | None:
        end = self._ended
        return None if end is None else end.loss

    def _end_with(self, end: End) -> bool:
        """End in this way, unless it has ended; return whether it has ended in this way.

        setdefault() is one step: no other thread or handler comes in between.
        """
        mine = self.__dict__.setdefault("_ended", end) is end
        self._get_unready()
        return mine

    def _end(self, *, awaited: bool = False) -> Pending[Any]:
        end = End()
        finish = partial(self._keeper.finish, self, end)
        try:
            if not self._ended and self.remaining() > 0 and self._end_with(end):
                return self._keeper.release_grant(self, awaited=awaited)
        except BaseException:
            self._keeper.post(finish)
            raise
        raise self._why_not()

    def _lose(self, reason: LossReason, *, noticed: float, lease_end: float) -> None:
        """Lose the grant if it is held, and tell of it. Repeatable after an interrupt."""
        self._note_loss(reason, noticed=noticed, lease_end=lease_end)
        self._tell_loss()

    def _note_loss(
        self, reason: LossReason, *, noticed: float, lease_end: float, refused: bool = False
    ) -> None:
        """Lose the grant if it is held. Tells nobody yet. ``refused``: the credentials were."""
        loss = Loss(reason, self, noticed, lease_end)
        if refused:
            object.__setattr__(loss, "_refused", True)
        self._end_with(End(loss))

    def _forget_waiters(self) -> None:
        """Start over in a forked child: a lock of ``lost`` may be taken there for ever."""
        raise NotImplementedError

    def _suspended(self) -> None:
        callback = self._terms.on_suspended
        if callback is not None and not self._ended:
            self._notify([partial(self._unless_over, callback)])

    def _release_requested(self, request: str) -> None:
        """Call the holder's callback, once for the same request to release."""
        callback = self._terms.on_release_requested
        if callback is not None and not self._ended and request != self._asked:
            self._asked = request
            self._notify([partial(self._unless_over, callback)])

    def _unless_over(self, callback: Callable[[Any], object]) -> object:
        """Call the callback, unless the grant is over by now."""
        return None if self._ended else callback(self)

    def _why_not(self) -> LockLost | NotHeld:
        loss = self._loss
        if loss is not None:
            error = LockLost(str(loss), path=self.lock_path, token=self.token)
            error.loss = loss
            return error
        return NotHeld(
            f"{self.lock_path}: token {self.token} was released already: acquire again",
            path=self.lock_path,
            token=self.token,
        )

    def __repr__(self) -> str:
        state = "lost" if self._loss else "released" if self._ended else "held"
        return f"<{type(self).__name__} {self.path} token={self.token} {state}>"
