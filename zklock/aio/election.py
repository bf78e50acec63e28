"""Leader election for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Literal, overload

from zklock._core.callbacks import is_coroutine_function
from zklock._core.grant import GrantOptions
from zklock._core.session import Session
from zklock._election.base import ElectionBase
from zklock._election.membership import MembershipChange
from zklock._election.observe import LeaderChange
from zklock._election.term import Leading, Term
from zklock._ground.async_event import LOOK
from zklock._ground.public import public
from zklock._ground.records import log_fields
from zklock._locks.base import undo
from zklock._recipes.effects import Claim
from zklock._recipes.queries import Contender
from zklock.aio.grant import Attempting, Grant
from zklock.aio.observers import LeaderChanges, Mail, MembershipChanges, Observer
from zklock.aio.waiting import AWAITING, call_soon, cancel, running_loop, running_task
from zklock.errors import LeaderStuck

log = logging.getLogger("zklock")


class Leadership(Leading, Grant):
    """One term of a leader: a ``Grant``, which ``lead`` is given, or which was acquired.

    ``should_stop`` is an ``asyncio.Event``. It is set when the leader has to end its work. Either
    the leadership is lost, or it has to be resigned or handed over, or the election is being
    stopped. ``lost`` is set in the first case only. ``resign()`` asks for the end of the term.

    A leadership that ``lead`` was given is released when ``lead`` has ended: ``release()``,
    ``abandon()`` and the end of an ``async with`` body only ask for that, as ``resign()`` does.
    Nobody else may lead while ``lead`` still runs. An acquired leadership ends by ``release()``,
    like any grant. If it is lost, ``release()`` and the end of a body raise ``LockLost``. A body in
    ``lead`` itself is not cancelled on its own: the election cancels ``lead``.
    """

    def __init__(
        self, keeper: Session, *, claim: Claim, session_id: int, terms: GrantOptions
    ) -> None:
        super().__init__(keeper, claim=claim, session_id=session_id, terms=terms)
        self.should_stop: asyncio.Event = asyncio.Event()
        self._leader: asyncio.Task[Any] | None = None  # that runs lead, while it does

    @property
    def _leads_here(self) -> bool:
        """Whether the running task runs ``lead``. A loss cancels that once: the election does."""
        leader = self._leader
        return bool(leader and running_loop()) and asyncio.current_task() is leader

    def _enter(self) -> None:
        if not self._leads_here:
            super()._enter()

    def _leave(self, error: BaseException | None) -> bool:
        return not self._leads_here and super()._leave(error)

    def _tell_to_stop(self) -> None:
        if self._loop is None or self._loop is running_loop():
            self.should_stop.set()
        else:
            call_soon(self._loop, self.should_stop.set)

    def _set_lost(self) -> None:
        self._tell_to_stop()  # first: who sees that it is lost sees that it should stop
        super()._set_lost()

    def _tell(self) -> None:
        self.should_stop.set()
        super()._tell()

    def _forget_waiters(self) -> None:
        super()._forget_waiters()
        self.should_stop = asyncio.Event()


class _Term(Term[Leadership]):
    """A leadership and the task that leads."""

    cancelled = False  # by the election
    task: asyncio.Task[Any] | None = None
    look_no_more: Callable[[], object] | None = None  # whether the loop is closed

    def cancel(self) -> None:
        """Cancel the task that leads, once. A loop that ends may have cancelled it already."""
        if not self.cancelled and self.task is not None:
            self.cancelled = cancel(self.task) or self.task.cancelled()

    def ended(self, task: asyncio.Task[Any]) -> None:
        """Give the leadership back, if it is not lost. ``lead`` has ended."""
        if self.look_no_more is not None:
            self.look_no_more()
        error: BaseException | None
        if task.cancelled():
            error = None if self.cancelled else asyncio.CancelledError("lead was cancelled")
        else:
            error = task.exception()
        if error is not None:
            self.failed(error)
        self.leadership.should_stop.set()
        self.give_back()
        if self.answer is not None:
            self.answer.when_done(self.say_refused)
        self.over.come()


@public
class LeaderElection(ElectionBase[Leadership, _Term]):
    """A member of an election: one leads at a time, the others stand in a queue behind it.

    The arguments are those of :class:`zklock.LeaderElection`. Callbacks run on the event loop of
    :meth:`run`; coroutine functions run as tasks of their own. ``grace``: seconds that ``lead`` has
    to end once it is told to, and again once it is cancelled.

    The constructor sends no request. You can observe the election, and ask who leads, without
    :meth:`run`. Use one event loop at a time. Only :meth:`stop`, :meth:`cancel` and :meth:`resign`
    may be called from anywhere.

    *Not guaranteed:* that two never act as leader at the same instant. Nor is it guaranteed that a
    blocked loop tells a leader in time. Use the token to fence every write that must not come late.
    """

    _AWAITS = True
    _FRONT = AWAITING
    _MAIL = Mail
    _LEADERSHIP = Leadership
    _TERM = _Term
    _FAILURES = BaseException
    _ASKED = "cancelled"

    _loop: asyncio.AbstractEventLoop | None = None  # of ``run``

    async def run(
        self,
        lead: Callable[[Leadership], Awaitable[object]],
        stop: asyncio.Event | None = None,
        *,
        on_error: str = "retry",
    ) -> None:
        """Stand for election, and run ``lead(leadership)`` when elected, again and again.

        The rules are those of :meth:`zklock.LeaderElection.run`, with these differences. ``lead``
        is a coroutine function, and runs as a task of its own. Its term ends when the task ends.

        If the leadership is lost, the task is cancelled. If the task has to end for another reason,
        ``leadership.should_stop`` is set, and the task is cancelled ``grace`` seconds later if it
        still runs. If it has not ended ``grace`` seconds after it was cancelled, ``LeaderStuck`` is
        raised.

        ``LockLost`` and ``StaleToken`` of a leadership that is lost count as a return, even in the
        group of a ``TaskGroup``. A cancellation that the election did not ask for counts as a
        failure.

        If ``run`` is cancelled, it cancels ``lead``, waits for its end for ``grace`` seconds, and
        leaves no member behind. Raises ``RuntimeError`` if ``stop`` belongs to another event loop.
        """
        if not is_coroutine_function(lead):
            raise TypeError(f"lead must be a coroutine function, not {lead!r}")
        if stop is not None and not isinstance(stop, asyncio.Event):
            raise TypeError(f"stop must be an asyncio.Event, not {type(stop).__name__}")
        if stop is not None:
            _check_loop_of(stop)
        self._check_run(lead, on_error)
        call, loop = object(), asyncio.get_running_loop()
        self._begin_run(call)
        self._stop = stop
        self._loop = loop
        try:
            with contextlib.nullcontext() if stop is None else self._heeding(stop):
                await self._campaign(lead, on_error)
        finally:
            self._stop = self._loop = None
            self._end_run(call)

    def stop(self) -> None:
        """Make :meth:`run` end, finally: see :meth:`zklock.LeaderElection.stop`.

        May be called from any thread, and by ``loop.add_signal_handler()``.
        """
        self._stop_all()

    @overload
    async def acquire(self, blocking: Literal[True] = True, timeout: None = None) -> Leadership: ...

    @overload
    async def acquire(
        self, blocking: bool = True, timeout: float | None = None
    ) -> Leadership | None: ...

    async def acquire(
        self, blocking: bool = True, timeout: float | None = None
    ) -> Leadership | None:
        """Stand once, without a ``lead``: see :meth:`zklock.LeaderElection.acquire`.

        ``async with await election.acquire() as leadership:`` cancels the body if the leadership
        is lost. If this is cancelled, it leaves no member behind.
        """
        return await self._acquire(blocking, timeout)

    def attempt(
        self, blocking: bool = True, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Leadership | None]:
        """Return a context manager: see :meth:`aio.Lock.attempt <Lock.attempt>`."""
        return Attempting(partial(self.acquire, blocking, timeout))

    async def transfer(self, identity: str, timeout: float | None = None) -> Contender:
        """Hand the leadership over: see :meth:`zklock.LeaderElection.transfer`.

        If this is cancelled, the transfer goes on.
        """
        return await self._transfer(identity, timeout)

    async def set_payload(self, payload: bytes | str, timeout: float | None = None) -> None:
        """Change this member's payload: see :meth:`zklock.LeaderElection.set_payload`.

        If this is cancelled, others may or may not see it; a repeated call is safe.
        """
        await self._set_payload(payload, timeout)

    async def request_release(self, timeout: float | None = None) -> Contender | None:
        """Ask the leader to give up: see :meth:`zklock.LeaderElection.request_release`.

        A leader that is a task is cancelled ``grace`` seconds after ``should_stop`` is set, if it
        still runs. If this is cancelled, the leader may or may not be asked; a repeated call is
        safe.
        """
        return await self._request_release(timeout)

    async def leader(self, timeout: float | None = None) -> Contender | None:
        """Return the first member, or ``None``: see :meth:`zklock.LeaderElection.leader`."""
        return await self._ask("leader()", self._leader, timeout)

    async def members(self, timeout: float | None = None) -> list[Contender]:
        """Return all members, the leader first: see :meth:`zklock.LeaderElection.members`."""
        return await self._ask("members()", self._members, timeout)

    def observe(self, callback: Callable[[LeaderChange], object]) -> Observer:
        """Observe who leads: see :meth:`zklock.LeaderElection.observe`.

        The calls come on the running loop. A coroutine function is awaited.
        """
        self._observing(callback=callback)
        return Observer(self.changes(), callback)

    def changes(self, timeout: float | None = None) -> LeaderChanges:
        """Return an asynchronous iterator: see :meth:`zklock.LeaderElection.changes`.

        Call it on the loop that iterates.
        """
        return LeaderChanges(self._session, self._leaders, self._observing(timeout))

    def observe_membership(
        self, callback: Callable[[MembershipChange[Contender]], object]
    ) -> Observer:
        """Observe the members: see :meth:`zklock.LeaderElection.observe_membership`.

        The calls come on the running loop. A coroutine function is awaited.
        """
        self._observing(callback=callback)
        return Observer(self.membership_changes(), callback)

    def membership_changes(self, timeout: float | None = None) -> MembershipChanges[Contender]:
        """Return an asynchronous iterator: see :meth:`zklock.LeaderElection.membership_changes`.

        Call it on the loop that iterates.
        """
        return MembershipChanges(self._session, self._membership, self._observing(timeout))

    # Inside.

    @contextlib.contextmanager
    def _heeding(self, event: asyncio.Event) -> Iterator[None]:
        """Make this event wake ``run``."""

        async def heed() -> None:
            await event.wait()
            self._leave_queue()  # nothing, once elected
            self._wake()

        task = asyncio.create_task(heed(), name="zklock-heed")
        try:
            yield
        finally:
            cancel(task)

    async def _stand(self, lead: Callable[[Leadership], Awaitable[object]]) -> _Term | None:
        candidacy, attempt = self._candidate(self._on_lost)
        try:
            leadership = await self._elected(attempt)
        except BaseException:
            undo(attempt)
            raise
        if leadership is None:
            return None
        term = self._term = _Term(leadership, candidacy, self._session, led=True)
        try:
            term.task = asyncio.create_task(self._lead(term, lead), name="zklock-lead")
        except BaseException:  # an eager task raises SystemExit at once
            term.end()
            raise
        term.task.add_done_callback(term.ended)
        try:
            self._look_at_loop(asyncio.get_running_loop(), term)
            await self._end_of(term)
        except LeaderStuck:
            raise
        except BaseException:
            leadership.resign()
            term.cancel()
            await self._to_the_end_of(term)
            raise
        if term.answer is not None:
            await leadership._answered(term.answer)
        return term

    def _look_at_loop(self, loop: asyncio.AbstractEventLoop, term: _Term) -> None:
        """Look whether the loop is closed, and has cancelled nothing: then ``lead`` never ends."""
        if not term.leadership.held:
            return
        if loop.is_closed():
            log.warning(
                "%s: leadership released: its event loop is closed",
                term.leadership,
                extra=log_fields(term.leadership),
            )
            term.give_back()
        else:
            look = partial(self._look_at_loop, loop, term)
            term.look_no_more = self._session.pause(LOOK, look)

    def _owner(self) -> object:
        return weakref.ref(running_task())

    def _leads(self, term: _Term) -> bool:
        return asyncio.current_task() is term.task

    async def _lead(self, term: _Term, lead: Callable[[Leadership], Awaitable[object]]) -> None:
        leadership = term.leadership
        term.tell_elected(self._on_elected)
        leadership._leader = running_task()
        try:
            if not self._stopping:
                await lead(leadership)
        finally:
            leadership._leader = None

    async def _end_of(self, term: _Term) -> None:
        """Wait for the end of ``lead``: its grace once it is told, and again once cancelled."""
        leadership = term.leadership
        term.over.when_done(self._wake)
        with self._heeding(leadership.should_stop), self._heeding(leadership.lost):
            while not leadership.should_stop.is_set():
                if self._stopping:
                    leadership.resign()
                else:
                    await self._sleep()
            await self._until_over(term)

    async def _to_the_end_of(self, term: _Term) -> None:
        """Wait for the end of a ``lead`` that was cancelled, however often this is cancelled, too.

        A scope of anyio cancels what is in it again and again. ``lead`` has its grace all the same.
        """
        if running_loop() is not self._loop:
            return  # the loop was closed, and now its coroutines are
        ending = asyncio.create_task(self._end_of(term), name="zklock-end")
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([ending])
        stuck = None if ending.cancelled() else ending.exception()
        if stuck is not None:
            log.error("%s", stuck, extra=log_fields(term.leadership))

    async def _until_over(self, term: _Term) -> None:
        left = self._grace
        while not term.over.done:
            if not term.cancelled and (term.leadership.lost.is_set() or left <= 0):
                term.cancel()
                left = self._grace
            elif left <= 0:
                raise term.stuck(self._grace, self._ASKED)
            left = await self._sleep_slice(left)


def _check_loop_of(event: asyncio.Event) -> None:
    """Raise ``RuntimeError`` if the event belongs to another loop: a wait here hears nothing."""
    waiting = event.wait()
    try:
        with contextlib.suppress(StopIteration):
            waiting.send(None)  # so far it goes without a wait
    finally:
        waiting.close()
