"""Locks for threads."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from zklock._core.blocking import BLOCKING, run
from zklock._core.contexts import Acquired
from zklock._ground.public import public
from zklock._locks import kinds
from zklock._locks.base import LockBase
from zklock._locks.grant import Attempting, Enters, Grant, Mine
from zklock._recipes.queries import Contender
from zklock.token import FencingToken


class _Thread(threading.local):
    """What identifies a thread. Python uses the numbers of ended threads again."""

    def __init__(self) -> None:
        self.token = object()


_this_thread = _Thread()


class ThreadLock(LockBase[Grant], Enters[Grant]):
    """How a thread acquires, holds and releases a lock of any kind."""

    _FRONT = BLOCKING
    _GRANT = Grant

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Grant | None:
        """Wait for the lock, in turn; return its grant, or ``None``: not free, or not in time.

        ``timeout``: seconds for the whole call, by default the lock's own. With
        ``blocking=False`` or ``timeout=0`` it waits only for ZooKeeper's answer. That takes a
        bounded moment (at most a second), connected or not.

        However it ends without a grant, it leaves no contender behind. Where ZooKeeper cannot be
        reached, the contender is removed in the background. If the session is lost while it waits,
        it queues again, at the end, within the same timeout.

        Raises ``AcquireCancelled`` after :meth:`cancel`; ``ClientClosed`` if the client is stopped
        or being stopped; ``ForkedClient`` in a child process; ``AccessDenied`` where ACLs forbid
        it; ``SequenceExhausted``. Raises ``WouldDeadlock`` on a kazoo thread. Without a timeout, it
        also raises ``WouldDeadlock`` if this thread already holds the lock by any object of this
        client.
        """
        return run(self._acquire, blocking, timeout)

    def attempt(
        self, blocking: bool = True, timeout: float | None = None
    ) -> AbstractContextManager[Grant | None]:
        """Return a context manager: acquire as :meth:`acquire` does, and release at the end.

        ::

            with lock.attempt(timeout=2.0) as grant:
                if grant is None:
                    ...  # not in time: somebody else has it
                else:
                    ...  # held; released at the end of the block

        The call itself does nothing: the lock is acquired where the block begins. The end of the
        block raises ``LockLost`` if the lock was lost, as that of ``with lock`` does. The errors
        are those of :meth:`acquire`. Entered a second time, it raises ``RuntimeError``.
        """
        return Attempting(lambda: self.acquire(blocking, timeout))

    def release(self) -> None:
        """Release what this thread acquired last.

        Raises ``LockLost`` if that grant was lost meanwhile (once: it is then forgotten). Raises
        ``WrongThread`` if only another thread holds a grant of this object (see
        ``Grant.release()``), else ``NotHeld``. See ``Grant.release()`` for how long it takes.
        """
        run(self._release)

    def contenders(self, timeout: float | None = None) -> list[Contender]:
        """Return all contenders in queue order: holders and waiters, foreign clients' included.

        Asks through ZooKeeper's leader. Raises ``NoAnswer`` after ``timeout`` seconds, by default
        the session timeout. The queue may have changed by the time that you read the result.
        """
        return run(self._ask, "contenders()", self._contenders, timeout)

    def holder(self, timeout: float | None = None) -> Contender | None:
        """Return the first in the queue, confirmed by a quorum; ``None`` if it is empty.

        The same ``timeout`` and errors as :meth:`contenders`. ``None`` is not confirmed: where the
        network is partitioned, somebody may hold the lock on the other side.
        """
        return run(self._ask, "holder()", self._holder, timeout)

    def request_release(self, timeout: float | None = None) -> list[Contender]:
        """Ask all present holders to release; return those that were asked.

        Their ``on_release_requested`` is called with the grant. Requests that come close together
        count as one. It runs on one of zklock's own threads, normally within a tenth of their
        session timeout. The holder decides whether it releases; nothing is taken by force.
        Curator's ``Revocable`` holders do not hear the request. The leader of an election on this
        path is asked as :meth:`LeaderElection.request_release` does it, which Curator's latches do
        not notice. The same ``timeout`` and errors as :meth:`contenders`, and ``AccessDenied``
        without write permission on the holder's node, or on the election's path.
        """
        return run(self._ask, "request_release()", self._request_release, timeout)

    def break_lock(
        self, token: FencingToken | None = None, *, timeout: float | None = None
    ) -> Contender | None:
        """Delete the node of the present holder; return that holder, ``None`` if there is none.

        A tool for operators. The holder is told (``LossReason.NODE_DELETED``), but may be in the
        middle of its work, and the next in the queue is granted at once. Only a resource that
        checks tokens is safe then.

        ``token``: break only the grant with this token. Raises ``NotOwner`` if that grant is no
        longer held. Without it, the oldest grant of the present holders is broken. The same
        ``timeout`` and errors as :meth:`contenders`.
        """
        return run(self._break_lock, token, timeout)

    def _owner(self) -> object:
        return _this_thread.token

    async def _take(self) -> Grant | None:
        return self.acquire()

    def _holdings(self) -> Acquired[Grant]:
        mine: Acquired[Grant] = self._mine.holdings
        return mine

    def _storage(self) -> Mine:
        return Mine()

    def _label(self) -> str:
        return threading.current_thread().name


@public
class Lock(kinds.Exclusive[Grant], ThreadLock):
    """An exclusive lock: at most one grant at a time, in the order of the requests.

    ``client``: a started client of :func:`zklock.connect`, or of kazoo with ``zklock.Handler``.
    ``path``: the lock's own znode, created if it is missing. ``identity``: text that is stored with
    every contender, by default ``host:pid:thread`` of the thread that acquires. ``timeout``: the
    default wait of ``with`` and ``acquire()`` in seconds, ``None`` for no limit.

    ``on_lost(loss)``: called once for every grant that is lost. ``on_suspended(grant)``: called
    when the connection is lost while the lease still runs; the connection may come back.
    ``on_release_requested(grant)``: called when somebody asks for the release, see
    :meth:`request_release`. Callbacks run on zklock's own threads. An exception in one is logged.

    ``tidy``: remove the lock's znode when a release leaves it without contenders. The next
    contender makes it anew, and tokens still rise. ``naming="kazoo"``: write names that kazoo's own
    ``Lock``, ``ReadLock`` and ``WriteLock`` see without any change. Curator does not see them. All
    zklock users of the path have to set it. It excludes ``tidy``. ``acquire`` then raises
    ``MixedNames`` if it sees a contender that kazoo does not see.

    ``keep``: seconds for which the znode may stay after a release while nobody else queues; by
    default it is deleted. The next ``acquire`` on this client then sends no request, by any thread
    and any object that is alike. All grants of one znode have the same token: a guard does not
    fence them against each other. Others that ask with ``blocking=False`` get ``None`` meanwhile.
    The default ``identity`` is ``host:pid``. It excludes ``track_abandoned`` and ``lock_delay``.

    ``track_abandoned``: ``grant.abandoned`` then tells whether the grant before ended without a
    release (lost, crashed, broken), and you can check the guarded state first. It costs two more
    round trips per acquire. All users of the path have to set it. ``lock_delay``: seconds that the
    next grant waits after such an end, for resources that cannot check tokens. It implies
    ``track_abandoned``, and needs the same value everywhere.

    ``lease_fraction``: the part of the session timeout for which a proof of life is good, 2/3 by
    default, at least 0.3. Up to 0.75 is safe if the timeout is at least 4 ticks of the server. All
    locks of a client share it: another value is a ``ValueError``. ``session_timeout`` has no
    effect: zklock sees the negotiated timeout.

    The constructor sends no request. One object may be shared by threads: every ``acquire`` is a
    contender of its own. It is not re-entrant: a thread that acquires what it holds gets
    ``WouldDeadlock``, or waits until its timeout.

    *Not guaranteed:* that the holder still holds when its write arrives at a resource. Between
    ``check()`` and the write any amount of time can pass. A resource that must not see a late
    write has to compare fencing tokens (``zklock.fencing``).
    """


@public
class RLock(kinds.Reentrant[Grant], ThreadLock):
    """A lock that its holding thread may acquire again; that thread gets the same grant.

    However often the thread acquires, there is one contender. The lock is released after as many
    releases as acquires. Once the grant is lost, acquiring again raises ``LockLost`` until it was
    released as often as it was acquired. For arguments, errors and what is not guaranteed see
    :class:`Lock`.
    """


@public
class ReadLock(kinds.Read[Grant], ThreadLock):
    """The reading side of a lock for many readers or one writer, fair to both.

    A reader waits for the writers that asked before it, and for nobody else. Raises
    ``WouldDeadlock`` if the thread holds the write lock of this path: see
    :meth:`WriteLock.downgrade`. It is not re-entrant: a thread may acquire again, as another
    contender, but deadlocks once a writer stands between the two. For arguments, errors and what is
    not guaranteed see :class:`Lock`. ``track_abandoned`` and ``lock_delay`` are for exclusive locks
    only.

    A token does not tell readers from writers: a resource that is only read needs no token.
    """


@public
class WriteLock(kinds.Write[Grant], ThreadLock):
    """The writing side of a lock for many readers or one writer, fair to both.

    A writer waits for everybody that asked before it. Raises ``WouldDeadlock`` if the thread holds
    a read lock of this path: an upgrade is not possible. See :class:`ReadLock`.
    """

    def downgrade(self, timeout: float | None = None) -> Grant:
        """Become a reader: let in the waiting readers, but no writer; return the grant.

        It is this thread's newest grant, the same object with the same token. Releasing it releases
        the read lock. The readers before the next writer in the queue get in. Curator's and kazoo's
        readers wait for its release.

        Raises ``NotHeld`` and ``WrongThread`` as :meth:`release` does, and ``LockLost``. Raises
        ``NoAnswer`` after ``timeout`` seconds, by default the session timeout. Then the caller does
        not know whether readers are let in; a repeated call is safe.
        """
        return run(self._downgrade, timeout)


@public
class Semaphore(kinds.Permits[Grant], ThreadLock):
    """A counting semaphore: first come, first served, however many permits each asks for.

    ``limit``: the number of permits. The first user stores it in ZooKeeper, and a user with another
    number gets ``LimitMismatch``. ``None`` uses the stored limit. For the other arguments, errors
    and what is not guaranteed see :class:`Lock`. ``tidy`` and ``naming`` are refused.

    A grant has a token for each permit (``grant.tokens``), higher than those of all permits given
    before. ``grant.token`` is the highest. All permits of a grant are lost together. The layout
    below the path is that of Curator's ``InterProcessSemaphoreV2``: its permits count, too.
    """

    def acquire(
        self, blocking: bool = True, timeout: float | None = None, *, permits: int = 1
    ) -> Grant | None:
        """Wait for this many permits at once, all or none; see :meth:`Lock.acquire`.

        With ``blocking=False`` it waits, for the same bounded moment, for contenders that came
        before and are about to take permits. ``None`` means that not enough permits were idle, or
        that there was no answer in time.

        Raises ``ValueError`` or ``LimitMismatch`` if ``permits`` is above the limit. A thread that
        holds permits and waits for more may deadlock.
        """
        return run(self._acquire, blocking, timeout, wanted=self._wanted(permits))

    def attempt(
        self, blocking: bool = True, timeout: float | None = None, *, permits: int = 1
    ) -> AbstractContextManager[Grant | None]:
        """Return a context manager for this many permits; see :meth:`Lock.attempt`."""
        return Attempting(lambda: self.acquire(blocking, timeout, permits=permits))

    def set_limit(self, limit: int, timeout: float | None = None) -> None:
        """Change the stored limit, and that of this object if it has one.

        A higher limit lets waiters in at once, if their objects have ``limit=None``. A lower one
        takes no permit away. Once this returns, permits are given within the new limit only. A
        permit that ZooKeeper gave before stays, even if its ``acquire`` has not returned yet.
        Objects that were made with another limit get ``LimitMismatch`` from now on, their waiters
        too. The same ``timeout`` and errors as :meth:`contenders`. After ``NoAnswer`` the caller
        does not know which limit is stored.
        """
        run(self._set_limit, limit, timeout)
