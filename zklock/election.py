"""Leader election for threads."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any

from zklock.campaign import Campaign, Leading, Term, discard, pause_after
from zklock.candidacy import Candidacy, successor
from zklock.clock import check_timeout, clock
from zklock.connection import check_thread
from zklock.effects import Claim, Recipe
from zklock.errors import LeaderStuck, LockLost, ZkLockError
from zklock.grant import Grant, Keeper, Loss, Terms
from zklock.leaders import Feed, LeaderChange
from zklock.queries import Contender

log = logging.getLogger("zklock")

_TURN = 0.2
"""Seconds, at most, that a thread waits at a time: Python misses a signal that arrives just before
it begins to wait."""


class Leadership(Leading, Grant):
    """One term of a leader: a ``Grant`` that is given back when ``lead`` has returned.

    ``should_stop``, a ``threading.Event``, is set when ``lead`` is to end its work and return:
    the leadership is lost, or is to be resigned or handed over, or the election is being
    stopped. ``lost`` is set in the first case only. ``resign()`` asks for the end of the term;
    so do ``release()`` and ``abandon()``, as nobody else may lead while ``lead`` still runs.
    """

    def __init__(self, keeper: Keeper, *, claim: Claim, session_id: int, terms: Terms) -> None:
        super().__init__(keeper, claim=claim, session_id=session_id, terms=terms)
        self.should_stop: threading.Event = threading.Event()

    def release(self) -> None:
        """As ``resign()``."""
        self.resign()

    def _set_lost(self) -> None:
        super()._set_lost()
        self.should_stop.set()

    def _forget_waiters(self) -> None:
        super()._forget_waiters()
        self.should_stop = threading.Event()


class _Term(Term[Leadership]):
    """Whoever gets ``taken`` has to give the leadership back."""

    def __init__(self, leadership: Leadership, candidacy: Candidacy) -> None:
        super().__init__(leadership, candidacy)
        self.over: threading.Event = threading.Event()
        self.taken = threading.Lock()
        self.thread: threading.Thread | None = None
        self.refused: ZkLockError | None = None


class LeaderElection(Campaign[Leadership, _Term]):
    """A member of an election: one leads at a time, the others stand in a queue behind it.

    ``client``: a started ``KazooClient``, best from :func:`zklock.connect`. ``path``: the
    election's own znode, created where missing. ``identity``: text by which others know this
    member, by default ``host:pid:`` and a random part; the members of one election should differ
    in it. ``payload``: at most 16384 bytes (text as UTF-8) for others to read, such as an address.
    ``on_elected(leadership)``: called when a term begins. ``on_lost(loss)``: called when one is
    lost, not when it is given up. Callbacks run on threads of zklock's own, an exception in
    one is logged. ``grace``: seconds that ``lead`` has to return once it is told to. ``retry``:
    the first and the longest pause, in seconds, after a ``lead`` that failed.
    ``session_timeout`` and ``lease_fraction`` as for ``Lock``.

    The constructor asks nothing of ZooKeeper. Observing, and asking who leads, need no
    :meth:`run`. Members are named as those of Curator's ``LeaderLatch``, which may stand in the
    same election.

    *Not guaranteed:* that two never act as leader at one instant. A leader that is paused acts on
    when it goes on, until it looks. What must not be written late has to be guarded by the token.
    """

    _ASKED = "told to"

    def _set_up(self) -> None:
        self._guard = threading.Lock()
        self._mail: SimpleQueue[None] = SimpleQueue()

    def run(
        self,
        lead: Callable[[Leadership], object],
        stop: threading.Event | None = None,
        *,
        on_error: str = "retry",
        handle_signals: bool = False,
    ) -> None:
        """Stand for election, and call ``lead(leadership)`` when elected, again and again.

        Returns when ``stop`` is set or :meth:`stop` was called, and ``lead`` has ended.

        ``lead`` runs in a thread of its own. Its term ends when it returns: the leadership is
        given back, and this member queues again at the end. It is to return soon after
        ``leadership.should_stop`` is set. If it has not after ``grace`` seconds, ``LeaderStuck``
        is raised; whatever is still held is then given back when ``lead`` ends, or the session
        does. No other term begins on this object while ``lead`` still runs.

        An exception in ``lead`` ends the term and is logged. With ``on_error="retry"`` this
        member stands again, after a pause that grows with every failure in a row; with ``"raise"``
        it is raised here. ``LockLost`` of a leadership that is lost counts as a return.

        ``handle_signals=True``: as ``with election.terminating():``. An interrupt
        (``KeyboardInterrupt``) ends the term as a stop does, and is raised.

        Raises what ``Lock.acquire()`` does, but no timeouts.
        """
        if not callable(lead):
            raise TypeError(f"lead must be callable, not {type(lead).__name__}")
        if stop is not None and not isinstance(stop, threading.Event):
            raise TypeError(f"stop must be a threading.Event, not {type(stop).__name__}")
        self._check_run(on_error)
        signals = self.terminating() if handle_signals else contextlib.nullcontext()
        with self._guard:
            self._begin_run()
        try:
            with signals, self._heed(stop):
                self._campaign(lead, on_error)
        finally:
            self._running = False

    def stop(self) -> None:
        """Have :meth:`run` give up the leadership or its place, and return. Does not wait.

        It is final: a later ``run()`` returns at once. May be called from any thread, and from
        a signal handler.
        """
        self._stopped = True
        self._mail.put(None)

    def transfer(self, identity: str, timeout: float | None = None) -> Contender:
        """Hand the leadership over to the waiting member of this identity; return that member.

        ``lead`` is told, and once it has returned, this member's node and those between it and
        the successor are deleted in one transaction, provided that the successor is there:
        it leads next, the others queue again at the end. Of several members of the same
        identity the first is taken.

        Waits until it is done, at most ``timeout`` seconds (default: for as long as it takes),
        then ``NoAnswer``; the transfer goes on. Called by ``lead`` itself it cannot wait: it
        returns at once, and ``lead`` is to return.

        Raises ``NotHeld`` if this object does not lead. Raises ``NoSuchMember`` if there is no
        such member, or none that could be handed over to, and goes on leading. If the member is
        gone by the time that ``lead`` has returned, raises ``NoSuchMember`` too (logs it, for
        ``lead`` itself), and the next in the queue leads.
        """
        if not isinstance(identity, str):
            raise TypeError(f"identity must be a str, not {type(identity).__name__}")
        limit = check_timeout(timeout)
        until = None if limit is None else clock() + limit
        term = self._present()
        leadership = term.leadership
        members = self._ask("transfer()", self._members, limit)
        if all(one.path != leadership.path for one in members):
            leadership.verify(limit)
        _, chosen = successor(self._path, members, leadership.path, identity)
        term.candidacy.successor = identity
        leadership.resign()
        if threading.current_thread() is term.thread:
            return chosen
        left = None if until is None else max(0.0, until - clock())
        done = term.over.wait(left) and _answered(term, until)
        return self._handed_over(term, identity, chosen, None if done else limit)

    @contextlib.contextmanager
    def terminating(self, *signals: int) -> Iterator[None]:
        """Have these signals (``SIGTERM`` if none are given) call :meth:`stop`, for the body.

        ``lead`` is told, ends its piece of work, and the leadership is handed on at once.
        ``ValueError`` outside of the main thread, where Python handles no signals.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("signals can be handled on the main thread only")

        def handle(number: int, frame: FrameType | None) -> None:
            self.stop()

        before = {}
        try:
            for number in signals or (signal.SIGTERM,):
                before[number] = signal.signal(number, handle)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def leader(self, timeout: float | None = None) -> Contender | None:
        """Return the first member, confirmed by a quorum; ``None`` if there is none.

        ``NoAnswer`` after ``timeout`` seconds, by default the session timeout. ``None`` is not
        confirmed.
        """
        found: Contender | None = self._ask("leader()", self._leader, timeout)
        return found

    def members(self, timeout: float | None = None) -> list[Contender]:
        """Return all members in queue order, the leader first; foreign clients' included.

        Asks through the leader of ZooKeeper; ``timeout`` as of :meth:`leader`.
        """
        found: list[Contender] = self._ask("members()", self._members, timeout)
        return found

    def observe(self, callback: Callable[[LeaderChange], object]) -> Observer:
        """Have ``callback(change)`` called with the present leader, and with every other later.

        In order, one call at a time, on threads of zklock's own; an exception is logged. See
        :meth:`changes` for what may be missed. Ends with ``close()`` of what is returned, or with
        the client.
        """
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {type(callback).__name__}")
        self._session.check_usable()
        return Observer(self, callback)

    def changes(self, timeout: float | None = None) -> LeaderChanges:
        """Return an iterator over the present leader, and every other later, as ``LeaderChange``.

        It ends after ``timeout`` seconds without a change (``None``: never), or with ``close()``.
        Nothing is missed unnoticed: where others may have led unseen, as the iterator was left
        more than 64 changes behind, or the connection was lost, the change has ``gap`` set, and
        tells of the present leader. Raises ``ClientClosed`` once the client is stopped.
        """
        limit = check_timeout(timeout)
        self._session.check_usable()
        return LeaderChanges(self, limit)

    # Inside.

    def _ask(self, what: str, query: Callable[[], Recipe[Any]], timeout: float | None) -> Any:
        check_thread(what)
        return self._session.ask(query, self._path, check_timeout(timeout))

    @contextlib.contextmanager
    def _heed(self, stop: threading.Event | None) -> Iterator[None]:
        """Have the caller's event wake this thread."""
        done = threading.Event()

        def watch(stop: threading.Event) -> None:
            while not stop.wait(_TURN) and not done.is_set():
                pass
            self._mail.put(None)

        try:
            self._stop = stop
            if stop is not None:
                threading.Thread(
                    target=watch, args=(stop,), name="zklock-stop", daemon=True
                ).start()
            yield
        finally:
            self._stop = None
            done.set()

    def _sleep(self, seconds: float) -> None:
        """Sleep until there is news, at most so long."""
        with contextlib.suppress(Empty):
            self._mail.get(timeout=max(0.0, min(seconds, _TURN)))

    def _campaign(self, lead: Callable[[Leadership], object], on_error: str) -> None:
        failures = 0
        while not self._stopping:
            term = self._stand(lead)
            if term is None:
                return
            if term.refused is not None:
                raise term.refused
            if term.error is None:
                failures = 0
                continue
            if on_error == "raise" or not isinstance(term.error, Exception):
                raise term.error
            failures += 1
            until = clock() + pause_after(failures, self._retry)
            while not self._stopping and clock() < until:
                self._sleep(until - clock())

    def _stand(self, lead: Callable[[Leadership], object]) -> _Term | None:
        """Queue, and lead once → the term that is over; ``None`` if stopped before it began."""
        candidacy = self._candidacy()
        attempt = self._attempt(candidacy, Leadership, self._lost, Leadership.resign)
        term: _Term | None = None
        try:
            attempt.when_done(lambda: self._mail.put(None))
            # Not on this thread: kazoo swallows an interrupt that strikes while it sends.
            self._session.later(attempt.start)
            while not attempt.done:
                if self._stopping:
                    attempt.give_up()  # too late if the grant is on its way
                self._sleep(_TURN)
            leadership = attempt.result()
            if leadership is None:
                return None
            term = self._term = _Term(leadership, candidacy)
            term.thread = threading.Thread(
                target=self._serve, args=(term, lead), name="zklock-lead", daemon=True
            )
            term.thread.start()
            if not self._await_end(term):
                raise self._stuck(term)
            return term
        except BaseException as error:
            if attempt.give_up() or isinstance(error, LeaderStuck):
                raise
            if term is None:
                attempt.when_done(lambda: discard(attempt))
            elif term.taken.acquire(blocking=False):
                term.give_back()
                term.over.set()
            elif not self._await_end(term, interrupted=True):
                error.add_note(str(self._stuck(term)))
            raise

    def _serve(self, term: _Term, lead: Callable[[Leadership], object]) -> None:
        """Lead, then give back; whoever waits for it may have been interrupted meanwhile."""
        if not term.taken.acquire(blocking=False):
            return
        leadership = term.leadership
        try:
            if self._on_elected is not None:
                elected = self._on_elected
                self._session.notify([lambda: elected(leadership)])
            if not self._stopping:
                lead(leadership)
        except BaseException as error:
            if not (isinstance(error, LockLost) and leadership.lost.is_set()):
                term.error = error
                log.exception("%s: what leads with token %s raised", self._path, leadership.token)
        finally:
            leadership.should_stop.set()
            try:
                term.give_back()
                if term.answer is not None:
                    leadership._keeper.await_answer(term.answer)
                if term.candidacy.refused is not None:
                    log.warning("not handed over: %s", term.candidacy.refused)
            except ZkLockError as error:
                term.refused = error
            finally:
                term.over.set()
                self._mail.put(None)

    def _await_end(self, term: _Term, *, interrupted: bool = False) -> bool:
        """Wait until ``lead`` has ended, for its grace once it is told to; whether it has."""
        leadership, left, last = term.leadership, self._grace, clock()
        while not term.over.is_set():
            if left <= 0:
                return False
            told = leadership.should_stop.is_set()
            if not told and (interrupted or self._stopping):
                # Not on this thread: an interrupt in the middle would leave the event locked.
                self._session.later(leadership.resign)
            self._sleep(left)
            now = clock()
            if told:
                # A pause of this process is none of its grace.
                left -= min(now - last, 2 * _TURN)
            last = now
        return True

    def _lost(self, loss: Loss) -> None:
        self._mail.put(None)
        if self._on_lost is not None:
            self._on_lost(loss)


class Observer:
    """Calls back with every change of leader, until ``close()``; leaving ``with`` closes it."""

    def __init__(
        self, election: Campaign[Any, Any], callback: Callable[[LeaderChange], object]
    ) -> None:
        self._callback = callback
        self._session = election._session
        self._feed = Feed()
        self._lock = threading.Lock()
        self._calling = False
        self._closed = False
        self._attempt = election._observation(self._feed, self._wake)
        self._attempt.start()

    def close(self) -> None:
        """Call no more; a call under way goes on."""
        self._closed = True
        self._attempt.give_up()

    def _wake(self) -> None:
        with self._lock:
            if self._calling:
                return
            self._calling = True
        self._session.notify([self._call])

    def _call(self) -> None:
        while True:
            with self._lock:
                change = None if self._closed else self._feed.take()
                self._calling = change is not None
            if change is None:
                return
            try:
                self._callback(change)
            except BaseException:  # SystemExit too: it would end this thread, unheard
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


class LeaderChanges:
    """Iterates over the changes of leader; leaving ``with`` closes it. For one thread."""

    def __init__(self, election: Campaign[Any, Any], timeout: float | None) -> None:
        self._timeout = timeout
        self._feed = Feed()
        self._mail: SimpleQueue[None] = SimpleQueue()
        mail = self._mail

        def wake() -> None:
            if mail.empty():
                mail.put(None)

        # Neither knows of this object, so that one which is forgotten is closed.
        self._attempt = election._observation(self._feed, wake)
        self._attempt.when_done(wake)
        self._attempt.start()
        session, attempt = election._session, self._attempt
        self._close = weakref.finalize(self, lambda: session.later(attempt.give_up))
        self._close.atexit = False
        attempt.when_done(self._close.detach)  # what it has come to may refer to this object

    def next(self, timeout: float | None = None) -> LeaderChange | None:
        """Return the next change; ``None`` if there is none within ``timeout`` seconds."""
        check_thread("next()")
        limit = check_timeout(timeout)
        until = None if limit is None else clock() + limit
        while (change := self._feed.take()) is None:
            if self._attempt.done:
                self._attempt.result()
                return None
            left = _TURN if until is None else until - clock()
            if left <= 0:
                return None
            with contextlib.suppress(Empty):
                self._mail.get(timeout=min(left, _TURN))
        return change

    def close(self) -> None:
        """End the iteration."""
        self._attempt.give_up()

    def __iter__(self) -> LeaderChanges:
        return self

    def __next__(self) -> LeaderChange:
        change = self.next(self._timeout)
        if change is None:
            raise StopIteration
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


def _answered(term: _Term, until: float | None) -> bool:
    """Wait for ZooKeeper's answer to a leadership that was given back; whether it is in."""
    if term.answer is None:
        return True
    return term.answer.wait(None if until is None else max(0.0, until - clock()))
