"""What an election is for threads and for asyncio alike: its settings, its candidacies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from zklock._core.attempt import Attempt
from zklock._core.callbacks import check_callback, check_callbacks
from zklock._core.grant import GrantOptions
from zklock._core.loops import check_thread
from zklock._election import observe
from zklock._election.candidate import Candidacy, successor
from zklock._election.changes import TURN, Feed, Mailbox, Observed, Watched
from zklock._election.membership import MembershipChange, Present, watched
from zklock._election.options import (
    check_payload,
    check_retry,
    check_seconds,
    member_identity,
    pause_after,
)
from zklock._election.term import L, Term
from zklock._ground.clock import check_timeout, seconds_left
from zklock._ground.loss import LostCallback
from zklock._ground.not_copyable import NotCopyable
from zklock._locks.base import limit_of, outcome, undo
from zklock._recipes import lock as lock_recipe, names, nodedata, notes, queries, revoke
from zklock._recipes.effects import Recipe
from zklock._recipes.queries import Contender
from zklock._shell.client import AnyClient
from zklock._shell.sessions import session_of
from zklock._telemetry import emit, subscriptions
from zklock._telemetry.events import LeaderChanged
from zklock.errors import AcquireCancelled, NoAnswer, NotHeld, ZkLockError

_STOPPED = "this election was stopped: make another object"

TERM_PAUSE = 0.2
"""The shortest time from the start of a member's term to its next candidacy, in seconds."""

T = TypeVar("T", bound=Term[Any])


class ElectionView(Observed):
    """The part of an election that looks, and asks the leader."""

    def _leaders(self, wake: Callable[[], object]) -> Watched[observe.LeaderChange]:
        session, path, feed = self._session, self._path, Feed()

        def tell(change: observe.LeaderChange) -> None:
            feed.put(change)
            if subscriptions.hooks and not change.same_leader:
                leader = change.leader.identity if change.leader is not None else None
                event = LeaderChanged(
                    at=session.now(), path=path, leader=leader, token=change.token, gap=change.gap
                )
                subscriptions.emit(event)
            wake()

        attempt = session.attempt(partial(observe.observe, path, tell))
        return Watched(path, attempt, feed.take)

    def _membership(self, wake: Callable[[], object]) -> Watched[MembershipChange[Contender]]:
        """Begin to observe who stands in the queue."""
        return watched(self._session, self._path, _queued, partial(_described, self._path), wake)

    async def _request_release(self, timeout: float | None) -> Contender | None:
        first = partial(queries.contenders, self._path, limit=1)
        asked = await self._ask("request_release()", lambda: revoke.request_release(first), timeout)
        return asked[0] if asked else None

    def _members(self) -> Recipe[list[Contender]]:
        return queries.contenders(self._path)

    def _leader(self) -> Recipe[Contender | None]:
        return queries.holder(self._path)


class ElectionBase(NotCopyable, ElectionView, Generic[L, T]):
    """The part of an election that does not wait; see ``LeaderElection`` for the arguments."""

    _INSTEAD = "make another member, in another process with a client of its own"

    _AWAITS: ClassVar[bool] = False
    _MAIL: ClassVar[type[Mailbox]]
    _LEADERSHIP: type[L]
    _TERM: type[T]
    _FAILURES: ClassVar[type[BaseException]]
    """What may be retried after ``lead`` has raised it."""
    _ASKED: ClassVar[str]
    """How a message names the event that began the grace of ``lead``, such as "told to"."""

    def __init__(
        self,
        client: AnyClient,
        path: str,
        *,
        identity: str | None = None,
        payload: bytes | str = b"",
        on_elected: Callable[[Any], object] | None = None,
        on_lost: LostCallback | None = None,
        grace: float = 10.0,
        retry: tuple[float, float] = (0.5, 30.0),
        session_timeout: float | None = None,
        lease_fraction: float | None = None,
    ) -> None:
        self._path = names.check_path(path)
        self._identity = member_identity(identity)
        self._payload = check_payload(payload)
        self._standing: Candidacy | None = None  # the newest
        check_callbacks(self._AWAITS, on_elected=on_elected, on_lost=on_lost)
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._grace = check_seconds("grace", grace)
        self._retry = check_retry(retry)
        self._session = session_of(client, session_timeout, lease_fraction)
        self._running: dict[None, object] = {}  # the call of ``run`` or ``acquire`` that runs now
        self._pending: Attempt[L | None] | None = None  # of ``acquire``
        self._queued: Attempt[L | None] | None = None  # of ``run``
        self._stopped = False
        self._stop: Any = None  # the event of ``run``
        self._term: T | None = None
        self._mail: Mailbox | None = None  # of ``run``

    @property
    def path(self) -> str:
        """The election's znode: all members have the same."""
        return self._path

    @property
    def identity(self) -> str:
        """The name of this member in the election."""
        return self._identity

    @property
    def payload(self) -> bytes:
        """What others read about this member, as last set here; at most 16384 bytes."""
        return self._payload

    @property
    def leadership(self) -> L | None:
        """The present term of this object, ``None`` if there is none. It may be lost."""
        term = self._term
        return None if term is None or term.is_over else term.leadership

    @property
    def is_leader(self) -> bool:
        """Whether this object may be believed to lead (see ``Grant.held``)."""
        leadership = self.leadership
        return leadership is not None and leadership.held

    def resign(self) -> None:
        """Give up the leadership, and queue again at the end. Does not wait.

        It sets ``should_stop``. The next in the queue leads once ``lead`` has ended, or once an
        acquired leadership is released. Raises ``NotHeld`` if this object does not lead.
        """
        self._present().leadership.resign()

    def cancel(self) -> None:
        """Make a pending :meth:`acquire` of this object raise ``AcquireCancelled``.

        May be called from any thread, and from a signal handler. It does not end the object: it
        may acquire again.
        """
        self._call_off("the acquire was cancelled")

    def _present(self) -> T:
        term = self._term
        if term is None or term.is_over or not term.leadership.held:
            raise NotHeld(f"{self._path}: {self._identity!r} does not lead", path=self._path)
        return term

    @property
    def _stopping(self) -> bool:
        return self._stopped or (self._stop is not None and self._stop.is_set())

    def _check_run(self, lead: object, on_error: str) -> None:
        """Raise if ``run`` is not allowed now. A second ``run`` is checked elsewhere."""
        check_callback(self._AWAITS, "lead", lead)
        if on_error not in {"retry", "raise"}:
            raise ValueError(f"on_error must be 'retry' or 'raise', not {on_error!r}")
        check_thread("run()")
        self._session.check_usable()

    def _begin_run(self, call: object) -> None:
        """Note that ``run`` or ``acquire`` has begun.

        Raise if another still runs, or if what an earlier one has begun is not over.
        """
        if self._running.setdefault(None, call) is not call:
            raise ZkLockError(
                f"{self._path}: this election already runs or acquires: make another object",
                path=self._path,
            )
        term = self._term
        if term is not None and not term.is_over:
            self._end_run(call)
            if term.leadership._led:
                raise term.stuck(self._grace, self._ASKED)
            raise term.leads_already()

    def _end_run(self, call: object) -> None:
        """Note that ``run`` or ``acquire`` has ended, if the call that had begun is this one."""
        if self._running.get(None) is call:
            self._pending = self._queued = None
            del self._running[None]

    def _call_off(self, why: str) -> None:
        """Make a pending acquire raise ``AcquireCancelled``. From any thread."""
        pending = self._pending
        if pending is not None:
            pending.cancel(AcquireCancelled(f"{self._path}: {why}", path=self._path))

    def _leave_queue(self) -> None:
        """Have ``run`` not wait to be elected any more. From any thread."""
        queued = self._queued
        if queued is not None:
            queued.cancel()

    def _stop_all(self) -> None:
        """Note that it is stopped for good; tell what is acquired, or is being acquired."""
        self._stopped = True
        self._call_off(_STOPPED)
        self._leave_queue()
        term = self._term
        if term is not None and not term.leadership._led:
            term.leadership._tell_to_stop()
        self._wake()

    def _wake(self) -> None:
        """Have ``run`` look for news. From any thread."""
        mail = self._mail
        if mail is not None:
            mail.put()

    # Scripts: what the fronts' methods do.

    async def _campaign(self, lead: Callable[[L], Any], on_error: str) -> None:
        """Stand for election, again and again, until it has to stop."""
        self._mail = self._MAIL()
        failures = 0
        while not self._stopping:
            term = await self._stand(lead)
            if term is None:
                return
            if term.refused is not None:
                raise term.refused
            if term.error is None:
                failures = 0
            elif on_error == "raise" or not isinstance(term.error, self._FAILURES):
                raise term.error
            else:
                failures += 1
            now = self._session.now
            until = term.began + TERM_PAUSE
            if failures:
                until = now() + pause_after(failures, self._retry)
            while not self._stopping and (left := until - now()) > 0:
                await self._sleep(left)

    async def _acquire(self, blocking: bool, timeout: float | None) -> L | None:
        limit = limit_of(blocking, timeout)
        patient = limit != 0
        check_thread("acquire()")
        self._session.check_usable()
        call = object()
        attempt: Attempt[L | None] | None = None

        def give_up() -> None:
            if attempt is not None:
                undo(attempt)
            self._end_run(call)

        try:
            self._begin_run(call)
            candidacy, attempt = self._candidate(self._on_lost, patient)
            self._pending = attempt
            if self._stopped:  # a stop() that comes later finds the attempt
                self._call_off(_STOPPED)
            self._FRONT.begin(attempt, awaited=True)
            leadership = await outcome(
                self._FRONT, attempt, limit if patient else self._session.moment
            )
            if leadership is not None:
                leadership._get_ready()
                term = self._term = self._TERM(leadership, candidacy, self._session, led=False)
                if self._stopped:  # a stop() that comes later finds the term
                    leadership._tell_to_stop()
                term.tell_elected(self._on_elected)
            self._end_run(call)
            return leadership  # inside the try: an interrupt before the return must not miss it
        except BaseException:
            try:
                give_up()
            finally:  # a second interrupt may have struck in it
                give_up()
            raise

    async def _elected(self, attempt: Attempt[L | None]) -> L | None:
        """Queue until elected; ``None`` if stopped before."""
        self._queued = attempt
        if self._stopping:  # a stop that comes later finds the attempt
            attempt.cancel()
        self._FRONT.begin(attempt, awaited=True)
        return await outcome(self._FRONT, attempt, None)

    async def _sleep_slice(self, grace: float) -> float:
        """Sleep for a turn at most; return what is left of the grace.

        A pause of this process uses up at most two turns of it.
        """
        before = self._session.now()
        await self._sleep(min(grace, TURN))
        return grace - min(self._session.now() - before, 2 * TURN)

    async def _set_payload(self, payload: bytes | str, timeout: float | None) -> None:
        said = check_payload(payload)
        check_timeout(timeout)
        check_thread("set_payload()")
        self._payload = said
        member = self._standing
        if member is not None:
            member.says(said)
            if member.node is not None:  # else it announces it when it has a node
                await self._ask("set_payload()", member.announce, timeout)

    async def _transfer(self, identity: str, timeout: float | None) -> Contender:
        if not isinstance(identity, str):
            raise TypeError(f"identity must be a str, not {type(identity).__name__}")
        limit = check_timeout(timeout)
        until = None if limit is None else self._session.now() + limit
        term = self._present()
        leadership = term.leadership
        try:
            members = await self._ask("transfer()", self._members, limit)
            if all(one.path != leadership.path for one in members):
                await leadership._verify(seconds_left(until, self._session.now()))
        except NoAnswer as error:
            raise NoAnswer(
                f"{error}: the transfer has not begun, and {self._identity!r} still leads: ask "
                "again",
                path=self._path,
            ) from None
        _, chosen = successor(self._path, members, leadership.path, identity)
        leadership.check()
        term.candidacy.successor = identity
        if leadership._led:
            leadership.resign()
            if self._leads(term):
                return chosen
        else:
            leadership._transferred = True
            term.end()  # then it is told: who hears of it may release at once
        done = await self._ended(term, until)
        return term.handed_over(identity, chosen, None if done else limit)

    async def _ended(self, term: T, until: float | None) -> bool:
        """Wait for the end of the term and ZooKeeper's answer to it; whether both have come."""
        now = self._session.now
        if not await self._FRONT.finished(term.over, seconds_left(until, now())):
            return False
        answer = term.answer
        return answer is None or await self._FRONT.finished(answer, seconds_left(until, now()))

    # For the fronts.

    async def _stand(self, lead: Callable[[L], Any]) -> T | None:
        """Queue, and lead once → the ended term; ``None`` if stopped before it began."""
        raise NotImplementedError

    async def _sleep(self, seconds: float = math.inf) -> None:
        """Sleep until there is news, for at most ``seconds``."""
        assert self._mail is not None
        await self._mail.wait(self._session, None if seconds == math.inf else seconds)

    def _leads(self, term: T) -> bool:
        """Whether it is ``lead`` itself that calls."""
        raise NotImplementedError

    def _owner(self) -> object:
        """Return the running task, ``None`` for threads."""
        return None

    # Inside.

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}{' leads' if self.is_leader else ''}>"

    def _candidate(
        self, on_lost: LostCallback | None, patient: bool = True
    ) -> tuple[Candidacy, Attempt[Any]]:
        """Return a new member, not yet in the queue, and its attempt to be elected."""
        said = self._payload
        data = nodedata.NodeData(self._identity.encode(), payload=said)
        member = Candidacy(self._path, bytes(data), names.Kind.LATCH, patient=patient)
        self._standing = member
        if self._payload is not said:  # a set_payload() that comes later finds the member
            member.says(self._payload)
        terms = GrantOptions(
            self._path,
            self._identity,
            self._LEADERSHIP,
            on_lost,
            on_release_requested=self._LEADERSHIP.resign,
            owner=self._owner(),
            kind="election",
            asked_by=member.asked_by,
        )
        if subscriptions.hooks:
            member.queued = emit.queued(terms, self._session.now)
        return member, self._session.attempt(
            partial(lock_recipe.acquire, member),
            recover=lambda: lock_recipe.leave(member),
            terms=terms,
        )


def _queued(found: Iterable[str]) -> list[str]:
    return [name.text for name in names.Queue(found).contenders]


def _described(path: str, present: Present) -> dict[str, Contender]:
    queue = names.Queue(present.nodes).contenders
    there = [(name, present.nodes[name.text]) for name in queue]
    found = queries.describe(path, present.folder.epoch, there, notes.parse(present.folder.data))
    return {name.text: one for name, one in zip(queue, found, strict=True)}
