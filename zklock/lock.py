"""Locks for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from zklock import kinds
from zklock.attempt import Attempt
from zklock.base import Acquirable, Holdings, abandon_result, note_loss
from zklock.clock import check_timeout
from zklock.connection import check_thread
from zklock.effects import Recipe
from zklock.errors import LockLost, NotHeld
from zklock.grant import Grant
from zklock.queries import Contender
from zklock.token import FencingToken


class _Mine(threading.local):
    """A thread's own."""

    def __init__(self) -> None:
        self.holdings: Holdings[Grant] = Holdings()


class Acquiring(Acquirable[Grant]):
    """How a thread acquires, holds and releases a lock of any kind."""

    _GRANT = Grant

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Grant | None:
        """Wait for the lock, in turn; return its grant, or ``None``: not free, or not in time.

        ``timeout``: seconds for the whole call, by default the lock's own. With
        ``blocking=False`` or ``timeout=0`` nothing is waited for but ZooKeeper's answer, and for
        that a bounded moment (at most a second), connected or not.

        Leaves no contender behind whichever way it ends; where ZooKeeper cannot be reached, that
        is seen to in the background. A session that is lost while waiting means queueing again,
        at the end, within the same timeout.

        Raises ``AcquireCancelled`` after :meth:`cancel`; ``ClientClosed`` if the client is or is
        being stopped, ``ForkedClient`` in a child process; ``AccessDenied`` where ACLs forbid
        it; ``SequenceExhausted``; ``WouldDeadlock`` on a thread of kazoo's.
        """
        return self._acquire(blocking, timeout)

    def _acquire(self, blocking: bool, timeout: float | None, **wanted: Any) -> Grant | None:
        limit = self._limit(blocking, timeout)
        patient = limit != 0
        check_thread("acquire()")
        self._check_acquire()
        shared = self._again()
        if shared is not None:
            self._holdings().grants.append(shared)
            return shared
        attempt = self._attempt(patient, **wanted)
        try:
            with self._guard:
                self._pending.add(attempt)
            attempt.start()
            grant = _outcome(attempt, limit if patient else self._session.moment)
            if grant is not None:
                self._keep(grant)
            with self._guard:
                self._pending.discard(attempt)
            return grant  # from within: an interrupt that strikes before it must not miss a grant
        except BaseException:
            if not attempt.give_up():
                attempt.when_done(lambda: abandon_result(attempt))
            with self._guard:
                self._pending.discard(attempt)
            raise

    def release(self) -> None:
        """Give back what this thread acquired last.

        Raises ``LockLost`` if that grant was lost meanwhile (once: it is then forgotten),
        ``WrongThread`` if only another thread holds a grant of this object (see
        ``Grant.release()``), else ``NotHeld``. See ``Grant.release()`` for how long it takes.
        """
        check_thread("release()")
        self._release(self._newest())

    def contenders(self, timeout: float | None = None) -> list[Contender]:
        """Return who holds and who waits, in queue order, foreign clients' contenders included.

        Asks through the leader; ``NoAnswer`` after ``timeout`` seconds, by default the session
        timeout. What it returns may have changed by the time it is looked at.
        """
        found: list[Contender] = self._ask("contenders()", self._contenders, timeout)
        return found

    def holder(self, timeout: float | None = None) -> Contender | None:
        """Return the first in the queue, confirmed by a quorum; ``None`` if it is empty.

        ``timeout`` and errors as of :meth:`contenders`. ``None`` is not confirmed: where the
        network is partitioned, somebody may hold the lock on the other side.
        """
        found: Contender | None = self._ask("holder()", self._holder, timeout)
        return found

    def request_release(self, timeout: float | None = None) -> list[Contender]:
        """Ask all present holders to release; return those that were asked.

        Their ``on_release_requested`` is called with the grant, once for each request, on a thread
        of zklock's own and within a tenth of their session timeout as a rule; whether they heed it
        is theirs to decide, nothing is taken by force. Curator's ``Revocable`` holders do not hear
        it. ``timeout`` and errors as of :meth:`contenders`; ``AccessDenied`` without write
        permission on the holder's node.
        """
        asked: list[Contender] = self._ask("request_release()", self._request_release, timeout)
        return asked

    def break_lock(
        self, token: FencingToken | None = None, *, timeout: float | None = None
    ) -> Contender | None:
        """Delete the node of the present holder; return whose it was, ``None`` if nobody's.

        An operator's tool: the holder is told (``LossReason.NODE_DELETED``) but may be in the
        middle of its work, and the next in the queue is granted at once. Only a resource that
        checks tokens is safe then. ``token``: break only the grant with this token, and raise
        ``NotOwner`` if that holds no more; without it, the oldest of the present holders'.
        ``timeout`` and errors as of :meth:`contenders`.
        """
        if token is not None and not isinstance(token, FencingToken):
            raise TypeError(f"token must be a FencingToken, not {type(token).__name__}")
        broken: Contender | None = self._ask("break_lock()", lambda: self._break(token), timeout)
        return broken

    def __enter__(self) -> Grant:
        grant = self.acquire()
        try:
            if grant is None:
                raise self._timed_out()
            self._holdings().entered.append(grant)
            return grant
        except BaseException:
            if grant is not None:
                grant.abandon()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release. ``LockLost`` if the grant was lost; an error of the body is kept, and noted."""
        try:
            entered = self._holdings().entered
            if not entered:
                raise self._nothing_here()
            try:
                self._release(entered[-1])
            finally:
                entered.pop()
        except LockLost as lost:
            if not note_loss(lost, error):
                raise
        except NotHeld:
            if error is None:
                raise
        except Exception:
            raise
        except BaseException:
            # Interrupted: whatever is held still is what was entered.
            for grant in self._holdings().grants:
                grant.abandon()
            raise

    def _owner(self) -> object:
        return threading.get_ident()

    def _holdings(self) -> Holdings[Grant]:
        holdings: Holdings[Grant] = self._mine.holdings
        return holdings

    def _storage(self) -> _Mine:
        return _Mine()

    def _label(self) -> str:
        return threading.current_thread().name

    def _release(self, grant: Grant) -> None:
        if self._shared(grant):
            return
        try:
            grant.release()
        finally:
            self._forget(grant)

    def _ask(self, what: str, query: Callable[[], Recipe[Any]], timeout: float | None) -> Any:
        check_thread(what)
        limit = check_timeout(timeout)
        return self._session.ask(query, self._path, limit)


class Lock(kinds.Exclusive[Grant], Acquiring):
    """An exclusive lock: at most one grant at a time, in the order of asking.

    ``client``: a started ``KazooClient``, best from :func:`zklock.connect`. ``path``: the lock's
    own znode, created where missing. ``identity``: text stored with every contender, by default
    ``host:pid:thread`` of the thread that acquires. ``timeout``: seconds that ``with`` and
    ``acquire()`` wait by default, ``None`` for as long as it takes. ``on_lost(loss)``: called
    once for every grant that is lost. ``on_suspended(grant)``: called when the connection is
    lost while the lease still runs; it may yet come back. Callbacks run on threads of zklock's
    own, an exception in one is logged.

    Only for clients that were not made by ``connect()``: ``session_timeout``, the negotiated
    session timeout in seconds, where it is known. ``lease_fraction``: how much of the session
    timeout a proof of life is good for, 2/3 by default, at least 0.3; up to 0.75 is safe where the
    timeout is at least 4 ticks of the server. Both are shared by all locks of a client.

    ``on_release_requested(grant)``: called when somebody asks for the release, see
    :meth:`request_release`. ``tidy``: remove the lock's znode when a release leaves it without
    contenders; the next one makes it anew, and tokens go on rising. ``track_abandoned``: have
    ``grant.abandoned`` tell whether the grant before ended without a release (lost, crashed,
    broken), so that the guarded state can be looked at first; costs two round trips for each
    acquire, and has to be said by all who use the path. ``lock_delay``: seconds that the next grant
    waits after such an end, for resources that cannot check tokens; implies ``track_abandoned``,
    and needs the same value everywhere.

    The constructor asks nothing of ZooKeeper. One object may be shared by threads: every
    ``acquire`` is a contender of its own. It is not re-entrant: a thread that acquires twice
    waits for itself.

    *Not guaranteed:* that the holder still holds when its write arrives at a resource. Between
    ``check()`` and the write any amount of time can pass; a resource that must not see a late
    write has to compare fencing tokens (``zklock.fencing``).
    """


class RLock(kinds.Reentrant[Grant], Acquiring):
    """A lock that the thread which holds it may acquire again: it gets the same grant.

    One contender however often; the lock is released when it was released as often as acquired.
    Once the grant is lost, acquiring again raises ``LockLost`` until all of it was released. For
    arguments, errors and what is not guaranteed see :class:`Lock`.
    """


class ReadLock(kinds.Read[Grant], Acquiring):
    """The reading side of a lock for many readers or one writer, fair to both.

    A reader waits for the writers that asked before it, and for nobody else. ``WouldDeadlock`` if
    the thread holds the write lock of this path: see :meth:`WriteLock.downgrade`. Not re-entrant: a
    thread may acquire again, as another contender, but will wait for itself once a writer stands
    between. For arguments, errors and what is not guaranteed see :class:`Lock`; ``track_abandoned``
    and ``lock_delay`` are for exclusive locks only.

    A token does not tell readers from writers: a resource that is only read needs none.
    """


class WriteLock(kinds.Write[Grant], Acquiring):
    """The writing side of a lock for many readers or one writer, fair to both.

    A writer waits for everybody that asked before it. ``WouldDeadlock`` if the thread holds a read
    lock of this path: an upgrade is not possible. See :class:`ReadLock`.
    """

    def downgrade(self, timeout: float | None = None) -> Grant:
        """Go on as a reader: let in the readers that wait, and no writer; return the grant.

        It is this thread's newest grant, the same one as before, with the same token; releasing it
        releases the read lock. Readers get in as far as the next writer in the queue. Curator's
        and kazoo's readers wait for its release.

        Raises ``NotHeld`` and ``WrongThread`` as :meth:`release` does, ``LockLost``, ``NoAnswer``
        after ``timeout`` seconds, by default the session timeout: whether readers are let in is
        then not known, and asking again is safe.
        """
        grant = self._newest()
        grant.check()
        there = self._ask("downgrade()", lambda: self._downgrade(grant), timeout)
        self._downgraded(grant, there)
        return grant


class Semaphore(kinds.Permits[Grant], Acquiring):
    """So many permits, given in the order of asking, whoever asks for how many.

    ``limit``: how many there are. The first to come keeps it in ZooKeeper, and whoever says another
    one gets ``LimitMismatch``; ``None`` goes by what is kept. For the other arguments, errors and
    what is not guaranteed see :class:`Lock`; ``tidy`` is refused.

    A grant has a token for each permit (``grant.tokens``), higher than those of all permits given
    before; ``grant.token`` is the highest. It is lost as a whole. The layout below the path is that
    of Curator's ``InterProcessSemaphoreV2``, which counts as well.
    """

    def acquire(
        self, blocking: bool = True, timeout: float | None = None, *, permits: int = 1
    ) -> Grant | None:
        """Wait for so many permits at once, all or none; see :meth:`Lock.acquire`.

        ``ValueError`` or ``LimitMismatch`` if there are not so many. A thread that holds permits
        and waits for more may wait for itself.
        """
        return self._acquire(blocking, timeout, wanted=self._wanted(permits))

    def set_limit(self, limit: int, timeout: float | None = None) -> None:
        """Change the limit that is kept, for this object and for all to come.

        A higher one lets waiters in at once, a lower one takes no permit away. Objects that were
        made with another limit get ``LimitMismatch`` from now on. ``timeout`` and errors as of
        :meth:`contenders`.
        """
        kinds.check_permits("limit", limit)
        self._ask("set_limit()", lambda: self._set_limit(limit), timeout)


def _outcome(attempt: Attempt[Grant | None], limit: float | None) -> Grant | None:
    """Wait for the outcome; ``None`` when the limit has passed, even if a grant is on its way."""
    if not attempt.wait(limit) and attempt.give_up():
        return None
    attempt.wait()
    return attempt.result()
