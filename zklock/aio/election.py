"""Leader election for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any

from zklock.aio.grant import Grant
from zklock.aio.lock import running_task
from zklock.aio.waiting import ask, call_soon, finished, starter
from zklock.attempt import Attempt
from zklock.campaign import Campaign, Leading, Term, discard, pause_after
from zklock.candidacy import Candidacy, successor
from zklock.clock import check_timeout, clock
from zklock.connection import check_thread
from zklock.effects import Claim, Recipe
from zklock.errors import ClientClosed, LeaderStuck, LockLost, ZkLockError
from zklock.grant import Terms
from zklock.leaders import Feed, LeaderChange
from zklock.queries import Contender
from zklock.session import Session

log = logging.getLogger("zklock")

_TURN = 0.2
"""Seconds, at most, that are taken off a grace at a time."""


class Leadership(Leading, Grant):
    """One term of a leader: a ``Grant`` that is given back when ``lead`` has ended.

    ``should_stop``, an ``asyncio.Event``, is set when ``lead`` is to end its work and return:
    the leadership is lost, or is to be resigned or handed over, or the election is being
    stopped. ``lost`` is set in the first case only. ``resign()`` asks for the end of the term, on
    the loop only; so do ``release()`` and ``abandon()``, as nobody else may lead while ``lead``
    still runs.
    """

    def __init__(self, keeper: Session, *, claim: Claim, session_id: int, terms: Terms) -> None:
        super().__init__(keeper, claim=claim, session_id=session_id, terms=terms)
        self.should_stop: asyncio.Event = asyncio.Event()

    async def release(self) -> None:
        """As ``resign()``."""
        self.resign()

    def _tell(self) -> None:
        self.should_stop.set()
        super()._tell()

    def _forget_waiters(self) -> None:
        super()._forget_waiters()
        self.should_stop = asyncio.Event()


class _Term(Term[Leadership]):
    """A leadership and the task that leads."""

    def __init__(self, leadership: Leadership, candidacy: Candidacy) -> None:
        super().__init__(leadership, candidacy)
        self.over: asyncio.Event = asyncio.Event()
        self.cancelled = False  # by the election
        self.task: asyncio.Task[Any] | None = None

    def cancel(self) -> None:
        """Cancel what leads, once."""
        if not self.cancelled and self.task is not None:
            self.cancelled = self.task.cancel()

    def ended(self, task: asyncio.Task[Any]) -> None:
        """Give the leadership back, if it is not lost: ``lead`` has ended."""
        leadership = self.leadership
        error: BaseException | None
        if task.cancelled():
            error = None if self.cancelled else asyncio.CancelledError("lead was cancelled")
        else:
            error = task.exception()
        if error is not None and not (isinstance(error, LockLost) and leadership._loss):
            self.error = error
            log.error(
                "%s: what leads with token %s raised",
                leadership.lock_path,
                leadership.token,
                exc_info=error,
            )
        leadership.should_stop.set()
        self.give_back()
        if self.answer is not None:
            self.answer.when_done(self._answered)
        self.over.set()

    def _answered(self) -> None:
        if self.candidacy.refused is not None:
            log.warning("not handed over: %s", self.candidacy.refused)


class LeaderElection(Campaign[Leadership, _Term]):
    """A member of an election: one leads at a time, the others stand in a queue behind it.

    Arguments as of :class:`zklock.LeaderElection`. Callbacks run on the event loop of
    :meth:`run`; those that are coroutine functions run as tasks of their own. ``grace``: seconds
    that ``lead`` has to end once it is told to, and again once it is cancelled.

    The constructor asks nothing of ZooKeeper. Observing, and asking who leads, need no
    :meth:`run`. To be used on one event loop at a time; only :meth:`stop` may be called from
    anywhere.

    *Not guaranteed:* that two never act as leader at one instant, nor that a leader is told in
    time by a loop that is blocked. What must not be written late has to be guarded by the token.
    """

    _ASKED = "cancelled"

    def _set_up(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()

    async def run(
        self,
        lead: Callable[[Leadership], Awaitable[object]],
        stop: asyncio.Event | None = None,
        *,
        on_error: str = "retry",
    ) -> None:
        """Stand for election, and run ``lead(leadership)`` when elected, again and again.

        Returns when ``stop`` is set or :meth:`stop` was called, and ``lead`` has ended.

        ``lead``, a coroutine function, runs as a task of its own. Its term ends when it does:
        the leadership is given back, and this member queues again at the end. If the leadership
        is lost, the task is cancelled. If it is to end otherwise, ``leadership.should_stop`` is
        set, and the task is cancelled if it has not ended ``grace`` seconds later. If it has not
        ended ``grace`` seconds after it was cancelled, ``LeaderStuck`` is raised; whatever is
        still held is then given back when ``lead`` ends, or the session does. No other term
        begins on this object while ``lead`` still runs.

        An exception in ``lead`` ends the term and is logged. With ``on_error="retry"`` this
        member stands again, after a pause that grows with every failure in a row; with ``"raise"``
        it is raised here. ``LockLost`` of a leadership that is lost counts as a return, and a
        cancellation that does not come from here as a failure.

        Cancelled, it cancels ``lead``, waits for its end for ``grace`` seconds, and leaves no
        member behind.

        Raises what ``Lock.acquire()`` does, but no timeouts.
        """
        if not _is_coroutine_function(lead):
            raise TypeError(f"lead must be a coroutine function, not {lead!r}")
        if stop is not None and not isinstance(stop, asyncio.Event):
            raise TypeError(f"stop must be an asyncio.Event, not {type(stop).__name__}")
        self._check_run(on_error)
        self._begin_run()
        self._stop = stop
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            with contextlib.nullcontext() if stop is None else self._heeding(stop):
                await self._campaign(lead, on_error)
        finally:
            self._running, self._stop, self._loop = False, None, None

    def stop(self) -> None:
        """Have :meth:`run` give up the leadership or its place, and return. Does not wait.

        It is final: a later ``run()`` returns at once. May be called from any thread, and is
        fit for ``loop.add_signal_handler()``.
        """
        self._stopped = True
        loop = self._loop
        if loop is not None:
            call_soon(loop, self._news.set)

    async def transfer(self, identity: str, timeout: float | None = None) -> Contender:
        """Hand the leadership over to the waiting member of this identity; return that member.

        See :meth:`zklock.LeaderElection.transfer`. Waits until it is done, at most ``timeout``
        seconds (default: for as long as it takes), then ``NoAnswer``; the transfer goes on, as it
        does if this is cancelled. Awaited by ``lead`` itself it returns as soon as the successor
        is known to wait, and ``lead`` is to return.
        """
        if not isinstance(identity, str):
            raise TypeError(f"identity must be a str, not {type(identity).__name__}")
        limit = check_timeout(timeout)
        until = None if limit is None else clock() + limit
        term = self._present()
        leadership = term.leadership
        members = await self._ask("transfer()", self._members, limit)
        if all(one.path != leadership.path for one in members):
            await leadership.verify(limit)
        _, chosen = successor(self._path, members, leadership.path, identity)
        leadership.check()
        term.candidacy.successor = identity
        leadership.resign()
        if asyncio.current_task() is term.task:
            return chosen
        try:
            async with asyncio.timeout(_left(until)):
                await term.over.wait()
            done = term.answer is None or await finished(term.answer, _left(until))
        except TimeoutError:
            done = False
        return self._handed_over(term, identity, chosen, None if done else limit)

    async def leader(self, timeout: float | None = None) -> Contender | None:
        """Return the first member, confirmed by a quorum; ``None`` if there is none.

        ``NoAnswer`` after ``timeout`` seconds, by default the session timeout. ``None`` is not
        confirmed.
        """
        found: Contender | None = await self._ask("leader()", self._leader, timeout)
        return found

    async def members(self, timeout: float | None = None) -> list[Contender]:
        """Return all members in queue order, the leader first; foreign clients' included.

        Asks through the leader of ZooKeeper; ``timeout`` as of :meth:`leader`.
        """
        found: list[Contender] = await self._ask("members()", self._members, timeout)
        return found

    def observe(self, callback: Callable[[LeaderChange], object]) -> Observer:
        """Have ``callback(change)`` called with the present leader, and with every other later.

        In order, one call at a time, on the running loop; one that is a coroutine function is
        awaited. An exception is logged. See :meth:`changes` for what may be missed. Ends with
        ``close()`` of what is returned, or with the client.
        """
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {type(callback).__name__}")
        return Observer(self.changes(), callback)

    def changes(self, timeout: float | None = None) -> LeaderChanges:
        """Return an asynchronous iterator over the present leader, and every other later.

        See :meth:`zklock.LeaderElection.changes`. To be called on the loop that iterates.
        """
        limit = check_timeout(timeout)
        self._session.check_usable()
        return LeaderChanges(self, limit)

    # Inside.

    async def _ask(self, what: str, query: Callable[[], Recipe[Any]], timeout: float | None) -> Any:
        check_thread(what)
        return await ask(self._session, query, self._path, check_timeout(timeout))

    @contextlib.contextmanager
    def _heeding(self, event: asyncio.Event) -> Iterator[None]:
        """Have this event wake ``run``."""
        news = self._news

        async def heed() -> None:
            await event.wait()
            news.set()

        task = asyncio.create_task(heed(), name="zklock-heed")
        try:
            yield
        finally:
            task.cancel()

    async def _sleep(self, seconds: float | None = None) -> None:
        """Sleep until there is news, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()

    async def _campaign(
        self, lead: Callable[[Leadership], Awaitable[object]], on_error: str
    ) -> None:
        failures = 0
        while not self._stopping:
            term = await self._stand(lead)
            if term is None:
                return
            if term.error is None:
                failures = 0
                continue
            if on_error == "raise":
                raise term.error
            failures += 1
            until = clock() + pause_after(failures, self._retry)
            while not self._stopping and clock() < until:
                await self._sleep(until - clock())

    async def _stand(self, lead: Callable[[Leadership], Awaitable[object]]) -> _Term | None:
        """Queue, and lead once → the term that is over; ``None`` if stopped before it began."""
        candidacy = self._candidacy()
        leadership = await self._elected(candidacy)
        if leadership is None:
            return None
        term = self._term = _Term(leadership, candidacy)
        term.task = asyncio.create_task(self._lead(leadership, lead), name="zklock-lead")
        term.task.add_done_callback(term.ended)
        try:
            await self._end_of(term)
        except LeaderStuck:
            raise
        except BaseException:
            leadership.resign()
            term.cancel()
            try:
                await self._end_of(term)
            except LeaderStuck as stuck:
                log.error("%s", stuck)
            raise
        if term.answer is not None:
            if await finished(term.answer, self._session.moment):
                term.answer.result()
            else:
                log.info("no answer to a resignation yet: it goes on in the background")
        return term

    async def _elected(self, candidacy: Candidacy) -> Leadership | None:
        """Queue until elected; ``None`` if stopped before."""
        loop, news = asyncio.get_running_loop(), self._news
        attempt: Attempt[Leadership | None] = self._attempt(
            candidacy,
            Leadership,
            self._on_lost,
            Leadership.resign,
            owner=weakref.ref(running_task()),
        )

        def wake() -> None:
            if not call_soon(loop, news.set):
                discard(attempt)

        try:
            attempt.when_done(wake)
            starter().start(attempt.start)
            while not attempt.done:
                if self._stopping:
                    attempt.give_up()  # too late if the grant is on its way
                await self._sleep()
            return attempt.result()
        except BaseException:
            if not attempt.give_up():
                attempt.when_done(lambda: discard(attempt))
            raise

    async def _lead(
        self, leadership: Leadership, lead: Callable[[Leadership], Awaitable[object]]
    ) -> None:
        if self._on_elected is not None:
            elected = self._on_elected
            leadership._notify([lambda: elected(leadership)])
        if not self._stopping:
            await lead(leadership)

    async def _end_of(self, term: _Term) -> None:
        """Wait until ``lead`` has ended, for its grace once it is told to, and once cancelled."""
        leadership = term.leadership
        with (
            self._heeding(leadership.should_stop),
            self._heeding(leadership.lost),
            self._heeding(term.over),
        ):
            while not leadership.should_stop.is_set():
                if self._stopping:
                    leadership.resign()
                else:
                    await self._sleep()
            left, last = self._grace, clock()
            while not term.over.is_set():
                if not term.cancelled and (leadership.lost.is_set() or left <= 0):
                    term.cancel()
                    left = self._grace
                elif left <= 0:
                    raise self._stuck(term)
                await self._sleep(min(left, _TURN))
                now = clock()
                # A pause of this process is none of its grace.
                left -= min(now - last, 2 * _TURN)
                last = now


class LeaderChanges:
    """Iterates over the changes of leader, by ``async for``; leaving ``with`` closes it."""

    def __init__(self, election: Campaign[Any, Any], timeout: float | None) -> None:
        self._timeout = timeout
        self._feed = Feed()
        self._news = asyncio.Event()
        loop, news = asyncio.get_running_loop(), self._news

        def wake() -> None:
            call_soon(loop, news.set)

        # Neither knows of this object, so that one which is forgotten is closed.
        self._attempt = election._observation(self._feed, wake)
        self._attempt.when_done(wake)
        session, attempt = election._session, self._attempt
        starter().start(attempt.start)
        self._close = weakref.finalize(self, lambda: session.later(attempt.give_up))
        self._close.atexit = False
        attempt.when_done(self._close.detach)  # what it has come to may refer to this object

    async def next(self, timeout: float | None = None) -> LeaderChange | None:
        """Return the next change; ``None`` if there is none within ``timeout`` seconds.

        Raises ``ClientClosed`` once the client is stopped.
        """
        limit = check_timeout(timeout)
        until = None if limit is None else clock() + limit
        while True:
            self._news.clear()
            change = self._feed.take()
            if change is not None:
                return change
            if self._attempt.done:
                self._attempt.result()
                return None
            try:
                async with asyncio.timeout(_left(until)):
                    await self._news.wait()
            except TimeoutError:
                return None

    def close(self) -> None:
        """End the iteration."""
        self._attempt.give_up()

    def __aiter__(self) -> LeaderChanges:
        return self

    async def __anext__(self) -> LeaderChange:
        change = await self.next(self._timeout)
        if change is None:
            raise StopAsyncIteration
        return change

    def __enter__(self) -> LeaderChanges:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Observer:
    """Calls back with every change of leader, until ``close()``; leaving ``with`` closes it."""

    def __init__(self, changes: LeaderChanges, callback: Callable[[LeaderChange], object]) -> None:
        self._changes = changes
        self._callback = callback
        self._closed = False
        self._task = asyncio.create_task(self._serve(), name="zklock-observer")
        _observing.add(self._task)
        self._task.add_done_callback(_observing.discard)

    def close(self) -> None:
        """Call no more; a call under way goes on."""
        self._closed = True
        self._changes.close()

    async def _serve(self) -> None:
        try:
            with self._changes:
                async for change in self._changes:
                    if self._closed:
                        return
                    await self._call(change)
        except ClientClosed:
            return
        except ZkLockError as error:
            log.error("an observer of an election is told no more: %s", error)

    async def _call(self, change: LeaderChange) -> None:
        try:
            outcome = self._callback(change)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            log.exception("an observer of an election raised")

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


_observing: set[asyncio.Task[None]] = set()
"""Those that run: the loop itself keeps only weak references to tasks."""


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - clock())


def _is_coroutine_function(call: Any) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
    )
