"""Leader election for threads."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType
from typing import Any, Literal, overload

from zklock._core.attempt import Attempt
from zklock._core.blocking import BLOCKING, run
from zklock._core.callbacks import ran
from zklock._core.grant import GrantOptions
from zklock._core.session import Session as SessionPort
from zklock._election.base import ElectionBase
from zklock._election.changes import TURN
from zklock._election.membership import MembershipChange
from zklock._election.observe import LeaderChange
from zklock._election.observers import LeaderChanges, Mail, MembershipChanges, Observer
from zklock._election.term import Leading, Term
from zklock._ground import threads
from zklock._ground.events import Event
from zklock._ground.loss import Loss
from zklock._ground.process import this_process
from zklock._ground.public import public
from zklock._locks.grant import Attempting, Grant
from zklock._recipes.effects import Claim
from zklock._recipes.queries import Contender
from zklock._telemetry.subscriptions import in_child
from zklock.errors import LeaderStuck, LockLost, NotHeld, ZkLockError


class Leadership(Leading, Grant):
    """One term of a leader: a ``Grant``, which ``lead`` is given, or which was acquired.

    ``should_stop`` is a ``threading.Event``. It is set when the leader has to end its work. Either
    the leadership is lost, or it has to be resigned or handed over, or the election is being
    stopped. ``lost`` is set in the first case only. ``resign()`` asks for the end of the term.

    A leadership that ``lead`` was given is released when ``lead`` has returned: ``release()``,
    ``abandon()`` and the end of a ``with`` body only ask for that, as ``resign()`` does. Nobody
    else may lead while ``lead`` still runs. An acquired leadership ends by ``release()``, like any
    grant. If it is lost, ``release()`` and the end of a body raise ``LockLost``.
    """

    def __init__(
        self, keeper: SessionPort, *, claim: Claim, session_id: int, terms: GrantOptions
    ) -> None:
        super().__init__(keeper, claim=claim, session_id=session_id, terms=terms)
        self.should_stop: threading.Event = Event()

    def _tell_to_stop(self) -> None:
        self.should_stop.set()

    def _set_lost(self) -> None:
        self.should_stop.set()  # first: who sees that it is lost sees that it should stop
        super()._set_lost()

    def _forget_waiters(self) -> None:
        super()._forget_waiters()
        self.should_stop = Event()


class _Term(Term[Leadership]):
    thread: threading.Thread | None = None

    def is_up_to(self, who: str) -> bool:
        """Whether it has to be given back by this one, who asks first or has asked first."""
        first: str = self.__dict__.setdefault("_giver", who)  # one step
        return first == who


@public
class LeaderElection(ElectionBase[Leadership, _Term]):
    """A member of an election: one leads at a time, the others stand in a queue behind it.

    ``client``: a started client of :func:`zklock.connect`, or of kazoo with ``zklock.Handler``.
    ``path``: the election's own znode, created if it is missing. ``identity``: text by which others
    know this member, by default ``host:pid:`` and a random part. The members of one election should
    have different identities. ``payload``: at most 16384 bytes (text as UTF-8) for others to read,
    such as an address.

    ``on_elected(leadership)``: called when a term begins. ``on_lost(loss)``: called when a
    leadership is lost, not when it is given up. Callbacks run on zklock's own threads. An exception
    in one is logged.

    ``grace``: seconds that ``lead`` has to return once it is told to. ``retry``: the first and the
    longest pause, in seconds, after a ``lead`` that failed. ``session_timeout`` and
    ``lease_fraction``: as for ``Lock``.

    The constructor sends no request. You can observe the election, and ask who leads, without
    :meth:`run`. Members' nodes have the same names as in Curator's ``LeaderLatch``. A
    ``LeaderLatch`` may take part in the same election.

    *Not guaranteed:* that two never act as leader at the same instant. A leader that was paused
    acts on when it resumes, until it checks. Use the token to fence every write that must not come
    late.
    """

    _FRONT = BLOCKING
    _MAIL = Mail
    _LEADERSHIP = Leadership
    _TERM = _Term
    _FAILURES = Exception
    _ASKED = "told to"

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
        released, and this member queues again at the end. If the term was shorter than 0.2 seconds,
        the member queues 0.2 seconds after the term began.

        ``lead`` has to return soon after ``leadership.should_stop`` is set. If it has not returned
        after ``grace`` seconds, ``LeaderStuck`` is raised. A leadership that is still held is
        released when ``lead`` or the session ends. No other term begins on this object while
        ``lead`` still runs.

        An exception in ``lead`` ends the term and is logged. With ``on_error="retry"`` this member
        stands again, after a pause that grows with every failure in a row. With ``"raise"``, the
        exception is raised here. ``LockLost`` and ``StaleToken`` of a leadership that is lost count
        as a return.

        ``handle_signals=True``: the same as ``with election.terminating():``. An interrupt
        (``KeyboardInterrupt``) ends the term as a stop does, and is raised.

        Raises the same errors as ``Lock.acquire()``, but no timeouts.
        """
        if stop is not None and not isinstance(stop, threading.Event):
            raise TypeError(f"stop must be a threading.Event, not {type(stop).__name__}")
        self._check_run(lead, on_error)
        signals = self.terminating() if handle_signals else contextlib.nullcontext()
        call = object()
        try:
            try:
                self._begin_run(call)
                with signals, self._heed(stop):
                    run(self._campaign, lead, on_error)
            finally:
                self._end_run(call)
        except BaseException:
            self._end_run(call)  # an interrupt may have struck in it
            raise

    def stop(self) -> None:
        """Make :meth:`run` give up the leadership or its place, and return. Does not wait.

        An :meth:`acquire` that waits raises ``AcquireCancelled``. An acquired leadership gets
        ``should_stop`` set, and has to be released.

        It is final: a later ``run()`` returns at once, and a later ``acquire()`` raises. May be
        called from any thread, and from a signal handler.
        """
        self._stop_all()

    @overload
    def acquire(self, blocking: Literal[True] = True, timeout: None = None) -> Leadership: ...

    @overload
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Leadership | None: ...

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Leadership | None:
        """Stand once, without a ``lead``; return the leadership, or ``None``: not in time.

        ``timeout``: seconds for the whole call; ``None``: no limit. With ``blocking=False`` or
        ``timeout=0`` it leads if nobody else stands there, and waits only for ZooKeeper's answer.
        That takes a bounded moment (at most a second), connected or not.

        The caller leads until it releases: ``with election.acquire() as leadership:``, or
        ``leadership.release()`` from any thread. It should end its work and release when
        ``leadership.should_stop`` is set; nothing makes it. ``is_leader`` and ``leadership.held``
        say whether it leads.

        Without a leadership, it leaves no member behind, however it ends. If the session is lost
        while it waits, it queues again, at the end, within the same timeout.

        One object stands once at a time: raises ``ZkLockError`` while it runs or acquires, and
        ``WouldDeadlock`` while it leads. Raises ``AcquireCancelled`` after :meth:`cancel` and
        :meth:`stop`. The other errors are those of ``Lock.acquire()``.
        """
        return run(self._acquire, blocking, timeout)

    def attempt(
        self, blocking: bool = True, timeout: float | None = None
    ) -> AbstractContextManager[Leadership | None]:
        """Return a context manager: acquire as :meth:`acquire` does, and release at the end.

        The body gets the leadership, or ``None``: not in time. The rules are those of
        :meth:`Lock.attempt`.
        """
        return Attempting(lambda: self.acquire(blocking, timeout))

    def transfer(self, identity: str, timeout: float | None = None) -> Contender:
        """Hand the leadership over to the waiting member of this identity; return that member.

        ``should_stop`` is set. Once ``lead`` has returned, one transaction deletes this member's
        node and the nodes between it and the successor, provided that the successor is there. The
        successor leads next; the others queue again at the end. If several members have this
        identity, the first one is taken. An acquired leadership is handed over at once:
        ``should_stop`` is set, and the call waits for nobody. Nothing is left to release:
        ``release()`` and the end of the body do nothing then.

        Waits until it is done, at most ``timeout`` seconds. Then it raises ``NoAnswer``, and the
        transfer goes on. If ZooKeeper did not even list the members, the transfer has not begun.
        The message says which is true. By default only the queries before it begins have a limit:
        the session timeout. If ``lead`` itself calls it, it cannot wait for the end of ``lead``: it
        returns as soon as the successor is known to wait, and ``lead`` has to return.

        Raises ``NotHeld`` if this object does not lead. Raises ``NoSuchMember`` if there is no such
        member, or none to which it can hand over; this object then leads on. If the member is gone
        by the time that ``lead`` has returned, it raises ``NoSuchMember`` too, and the next in the
        queue leads. If ``lead`` itself called it, that error is logged instead. Of
        two transfers of one term, the later one counts, as long as ``lead`` runs. The other one
        raises ``ZkLockError``.
        """
        return run(self._transfer, identity, timeout)

    @contextlib.contextmanager
    def terminating(self, *signals: int) -> Iterator[None]:
        """Make these signals (``SIGTERM`` if none are given) call :meth:`stop`, for the body.

        ``lead`` is told and ends its piece of work. The next member can lead as soon as ``lead``
        has returned. Raises ``ValueError`` outside of the main thread, where Python handles no
        signals.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("signals can be handled on the main thread only")

        def handle(number: int, frame: FrameType | None) -> None:
            self.stop()

        before = {}
        try:
            for number in signals or (signal.SIGTERM,):
                before[number] = signal.getsignal(number)
                signal.signal(number, handle)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def set_payload(self, payload: bytes | str, timeout: float | None = None) -> None:
        """Change this member's payload, whether it stands, leads, or neither.

        It keeps its place in the queue, or the leadership. Observers are told if it leads
        (``LeaderChange.same_leader``). If it does not stand now, others see the payload when it
        stands next. If it is just taking its place, they see it soon after; the call does not wait
        for that. The members' changed payloads are kept in the data of the election's own znode, at
        most 524288 bytes together (``ZkLockError``): a ``LeaderLatch`` of Curator that waits behind
        a member would never lead after a change of that member's node.

        Raises ``NoAnswer`` after ``timeout`` seconds, by default the session timeout. Then the
        caller does not know whether others see it; a repeated call is safe. Raises ``AccessDenied``
        if ACLs forbid reading or writing the election's znode.
        """
        run(self._set_payload, payload, timeout)

    def request_release(self, timeout: float | None = None) -> Contender | None:
        """Ask the present leader to give the leadership up; return the leader that was asked.

        Returns ``None`` if nobody leads, or if the leader has left before it could be asked: its
        successor is not asked. You need no :meth:`run` to ask. Nothing is taken by force:
        ``should_stop`` of the leadership is set, as by ``resign()``, within a tenth of the leader's
        session timeout while it is connected. A disconnected leader hears of it after it
        reconnects. The call does not wait for the end of the term; :meth:`changes` reports it.

        The request is written into the data of the election's own znode, with the name of the
        leader's node. A later term therefore never hears of it, and a ``LeaderLatch`` of Curator
        that waits is not disturbed. The leader takes the request along when it leaves. If it
        crashes, or leaves before it hears, a later leader does.

        *Not guaranteed:* that the leader hears. A ``LeaderLatch`` that leads does not. It is
        returned, too.

        Raises ``NoAnswer`` after ``timeout`` seconds, by default the session timeout. Then the
        leader may or may not be asked; a repeated call is safe. Raises ``AccessDenied`` if ACLs
        forbid reading or writing the election's znode.
        """
        return run(self._request_release, timeout)

    def leader(self, timeout: float | None = None) -> Contender | None:
        """Return the first member, confirmed by a quorum; ``None`` if there is none.

        Raises ``NoAnswer`` after ``timeout`` seconds, by default the session timeout. ``None`` is
        not confirmed.
        """
        return run(self._ask, "leader()", self._leader, timeout)

    def members(self, timeout: float | None = None) -> list[Contender]:
        """Return all members in queue order, the leader first, foreign clients' members included.

        Asks through ZooKeeper's leader. The same ``timeout`` as :meth:`leader`.
        """
        return run(self._ask, "members()", self._members, timeout)

    def observe(self, callback: Callable[[LeaderChange], object]) -> Observer:
        """Call ``callback(change)`` with the present leader, and with every later one.

        The calls come in order, one at a time, on zklock's own threads. An exception is logged. See
        :meth:`changes` for what may be missed. It ends with ``close()`` of the returned object, or
        with the client.
        """
        self._observing(callback=callback)
        return Observer(self._session, self._leaders, callback)

    def changes(self, timeout: float | None = None) -> LeaderChanges:
        """Return an iterator over the present leader, and every later one, as ``LeaderChange``.

        A new payload of the leader is a change, too: it has ``same_leader`` set.

        It ends after ``timeout`` seconds without a change (``None``: never), or with ``close()``.
        Nothing is missed unnoticed. Others may have led unseen if the iterator was more than 64
        changes behind, or if the connection was lost. The change then has ``gap`` set, and tells
        the present leader. Raises ``ClientClosed`` once the client is stopped.
        """
        return LeaderChanges(self._session, self._leaders, self._observing(timeout))

    def observe_membership(
        self, callback: Callable[[MembershipChange[Contender]], object]
    ) -> Observer:
        """Call ``callback(change)`` with the present members, and with every change of them.

        It gets a ``MembershipChange``: the first has all that are present, later ones have those
        that joined, left, or changed their data. Each call reports the difference from the call
        before, even after a lost connection. One that comes and goes between two calls is not seen.
        The calls come in order, one at a time, on zklock's own threads. An exception is logged. It
        ends with ``close()`` of the returned object, or with the client.

        It leaves a watch at every member. It wakes none of them.
        """
        self._observing(callback=callback)
        return Observer(self._session, self._membership, callback)

    def membership_changes(self, timeout: float | None = None) -> MembershipChanges[Contender]:
        """Return an iterator over the present members and every change of them.

        It yields what :meth:`observe_membership` calls back with, in queue order. It ends after
        ``timeout`` seconds without a change (``None``: never), or with ``close()``. Raises
        ``ClientClosed`` once the client is stopped.
        """
        return MembershipChanges(self._session, self._membership, self._observing(timeout))

    # Inside.

    @contextlib.contextmanager
    def _heed(self, stop: threading.Event | None) -> Iterator[None]:
        """Make the caller's event wake this thread."""
        done: list[None] = []

        def watch(stop: threading.Event) -> None:
            while not stop.wait(TURN) and not done:
                pass
            if not done:
                self._leave_queue()
                self._wake()

        try:
            self._stop = stop
            if stop is not None:
                threads.begin(
                    threading.Thread(target=watch, args=(stop,), name="zklock-stop", daemon=True)
                )
            yield
        finally:
            self._stop = None
            done.append(None)  # one step: an interrupt in set() of an event would keep the thread

    async def _stand(self, lead: Callable[[Leadership], object]) -> _Term | None:
        candidacy, attempt = self._candidate(self._lost)
        term: _Term | None = None
        try:
            leadership = await self._elected(attempt)
            if leadership is None:
                return None
            term = self._term = _Term(leadership, candidacy, self._session, led=True)
            term.over.when_done(self._wake)
            term.thread = threading.Thread(
                target=self._serve, args=(term, lead), name="zklock-lead", daemon=True
            )
            threads.begin(term.thread)
            if not await self._await_end(term):
                raise term.stuck(self._grace, self._ASKED)
            return term
        except LeaderStuck:
            raise
        except BaseException as error:
            # On another thread: a further interrupt in the middle would leave half of it undone.
            try:
                self._session.later(partial(self._undo, attempt, term))
            except BaseException:
                self._session.later(partial(self._undo, attempt, term))
                raise
            if term is not None and not await self._await_end(term):
                error.add_note(str(term.stuck(self._grace, self._ASKED)))
            raise

    def _undo(self, attempt: Attempt[Leadership], term: _Term | None) -> None:
        """Give up, or have what has begun end."""
        if attempt.cancel():
            return
        if term is None:
            attempt.when_done(lambda: discard(attempt))
        elif term.is_up_to("who has asked"):
            term.end()
        else:
            term.leadership.resign()

    def _serve(self, term: _Term, lead: Callable[[Leadership], object]) -> None:
        """Lead, then give back. The thread that waits may have been interrupted meanwhile."""
        if not term.is_up_to("who leads"):
            return
        leadership, process = term.leadership, this_process()
        try:
            term.tell_elected(self._on_elected)
            if not self._stopping:
                ran("lead", lead(leadership))
        except BaseException as error:
            term.failed(error)
        finally:
            if not in_child(process):
                self._finish(term)

    def _finish(self, term: _Term) -> None:
        """Give back, as ``lead`` has ended."""
        leadership = term.leadership
        leadership.should_stop.set()
        try:
            term.give_back()
            answer = term.answer
            if answer is not None:
                run(leadership._answered, answer)
            term.say_refused()
        except ZkLockError as error:
            term.refused = error
        finally:
            term.over.come()

    async def _await_end(self, term: _Term) -> bool:
        """Wait for the end of ``lead``, for its grace once it is told. Return whether it ended."""
        leadership, left = term.leadership, self._grace
        while not term.over.done:
            if left <= 0:
                return False
            told = leadership.should_stop.is_set()
            if not told and self._stopping:
                # On another thread: an interrupt in the middle would leave the event locked.
                self._session.later(leadership.resign)
            after = await self._sleep_slice(left)
            if told:
                left = after
        return True

    def _leads(self, term: _Term) -> bool:
        return threading.current_thread() is term.thread

    def _lost(self, loss: Loss) -> None:
        self._wake()
        if self._on_lost is not None:
            self._on_lost(loss)


def discard(attempt: Attempt[Any]) -> None:
    """Give back a leadership that ``lead`` was to get, and that arrived too late."""
    leadership, _ = attempt.settled()
    if leadership is not None:
        with contextlib.suppress(LockLost, NotHeld):
            leadership._end()
