"""All errors that zklock itself defines.

::

    Exception
     └─ ZkLockError                  the base: catches every error below
         ├─ AcquireTimeout           the lock was not granted in time (also a TimeoutError)
         ├─ NoAnswer                 no answer of ZooKeeper or a guard's store (also a TimeoutError)
         ├─ AcquireCancelled         cancel() ended a pending acquire
         ├─ LockLost                 the grant ended before it was released
         ├─ NotHeld                  release of what is not held, or no longer held
         │   └─ WrongThread          another thread or task holds the re-entrant lock
         ├─ NotOwner                 the grant that was named does not hold the lock now
         ├─ NoSuchMember             no waiting member of an election has that identity
         ├─ LeaderStuck              the work of a term did not end in time
         ├─ PoolStuck                the work on shards did not end in time
         ├─ StaleToken               a resource has already seen a higher token
         ├─ OutcomeUnknown           a guarded write may have happened
         ├─ GuardUnusable            a resource cannot tell which tokens are stale
         ├─ SnapshotTooOld           a guarded transaction lost a race, and has to be repeated
         ├─ TransactionEnded         the transaction ended before the guarded change was complete
         ├─ LimitMismatch            ZooKeeper keeps another limit for the semaphore
         ├─ MixedNames               programs that do not wait for each other queue here
         ├─ SequenceExhausted        the lock's parent has no sequence numbers left
         ├─ WouldDeadlock            a call that would wait for itself
         ├─ AccessDenied             ZooKeeper's ACLs refuse the lock path
         └─ ClientUnusable           the client cannot carry locks (not started, other handler, …)
             ├─ ClientClosed         it was stopped, or its credentials were refused
             └─ ForkedClient         it belongs to the parent of this process

A wrong argument raises the built-in ``TypeError`` or ``ValueError``, before anything is sent.

Each error has ``path`` (the lock's path) and ``token``. Each is ``None`` if it is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zklock._ground.loss import Loss
    from zklock.token import FencingToken


class ZkLockError(Exception):
    """Base of zklock's errors.

    ``path`` is the path of the lock or resource. ``token`` is the fencing token concerned. Each
    is ``None`` if it is not known.
    """

    def __init__(
        self, message: str, *, path: str | None = None, token: FencingToken | None = None
    ) -> None:
        super().__init__(message)
        self.path = path
        self.token = token

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the text and all attributes in a copy, and in another process."""
        return _remade, (type(self), self.args, self._luggage())

    def _luggage(self) -> dict[str, Any]:
        return dict(self.__dict__)


class AcquireTimeout(ZkLockError, TimeoutError):
    """The lock was not granted within the timeout; nothing is held and no contender is left.

    ``ahead`` is how many contenders stood before this one when it last looked at the queue.
    ``behind`` is the identity of the nearest one that it waited for: the holder's if ``ahead`` is
    1. Each is ``None`` if it is not known. Both come from the last look, and may be out of date:
    ZooKeeper is not asked again.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        token: FencingToken | None = None,
        ahead: int | None = None,
        behind: str | None = None,
    ) -> None:
        super().__init__(message, path=path, token=token)
        self.ahead = ahead
        self.behind = behind


class NoAnswer(ZkLockError, TimeoutError):
    """ZooKeeper, or the store of a guard, did not answer. Ask again later.

    No answer is known. For a change through ``ZooKeeperGuard``, it may still happen.
    """


class AcquireCancelled(ZkLockError):
    """``cancel()`` ended a pending acquire; nothing is held and no contender is left."""


class LockLost(ZkLockError):
    """The grant ended without a release: stop the guarded work.

    Somebody else may already hold the lock. Writes with this grant's token are safe only if the
    resource checks tokens. ``loss`` says what happened. It is ``None`` in an error that was copied
    or comes from another process; the text of the error still says the reason.
    """

    loss: Loss | None = None

    def _luggage(self) -> dict[str, Any]:
        # The loss refers to the grant, and a grant belongs to one process.
        return {**super()._luggage(), "loss": None}


class NotHeld(ZkLockError):
    """There is nothing to release: acquire first, and release once for each grant."""


class WrongThread(NotHeld):
    """Held, but not by this thread or task: release where it was acquired."""


class NotOwner(ZkLockError):
    """The lock's present holder is not the one that was named.

    ``holder`` is the identity of the present holder, or ``None`` if there is none.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        token: FencingToken | None = None,
        holder: str | None = None,
    ) -> None:
        super().__init__(message, path=path, token=token)
        self.holder = holder


class NoSuchMember(ZkLockError):
    """No waiting member has that identity: look at ``members()``, and choose again."""


class LeaderStuck(ZkLockError):
    """``lead`` did not end within its grace time; no other term can begin in this process.

    ``lead`` may still write: only resources that check tokens are safe. End the process.
    """


class PoolStuck(ZkLockError):
    """Handlers or callbacks did not end in time after a worker was told to leave its pool.

    The worker owns their shards until they end, or until the session ends. Call ``stop()`` again,
    or end the process.
    """


class StaleToken(ZkLockError):
    """A resource refused a write: it has already seen a higher token.

    ``resource`` names the resource. ``token`` is the refused token. ``highest`` is the higher token
    that the resource has seen. The writer's grant is over, even if the writer does not know it yet.
    """

    def __init__(
        self,
        message: str,
        *,
        resource: str,
        token: FencingToken,
        highest: FencingToken | None,
        path: str | None = None,
    ) -> None:
        super().__init__(message, path=path, token=token)
        self.resource = resource
        self.highest = highest


class _OfResource:
    """What an error that names a resource adds to ``ZkLockError``."""

    def __init__(
        self,
        message: str,
        *,
        resource: str,
        path: str | None = None,
        token: FencingToken | None = None,
    ) -> None:
        super().__init__(message, path=path, token=token)  # type: ignore[call-arg]
        self.resource = resource


class GuardUnusable(_OfResource, ZkLockError):
    """A guard cannot tell which tokens are stale, so it refuses every write.

    The guard's mark is missing or unreadable, there is no room for it, or the store refuses what
    the guard asks. ``resource`` names the resource.
    """


class OutcomeUnknown(_OfResource, ZkLockError):
    """A guarded write may have happened: claim again, read, and decide.

    No answer came, or the connection broke. The text says whether the write can still happen.
    ``resource`` names the resource.
    """


class SnapshotTooOld(_OfResource, ZkLockError):
    """A guarded transaction lost a race.

    It read before another transaction changed the guarded data, the database ended it in favour of
    another one, or the mark stayed locked. Roll back, and repeat the whole transaction, with
    ``advance`` first. ``resource`` names the resource.
    """


class TransactionEnded(_OfResource, ZkLockError):
    """The transaction of a guarded change ended before the change was complete.

    Later statements are rolled back, unless the connection then committed each statement by itself:
    autocommit, or psycopg2 after a ``COMMIT`` that was sent as text. Earlier statements may be
    rolled back or committed: that depends on what ended the transaction. ``resource`` names the
    resource.
    """


class LimitMismatch(ZkLockError):
    """The limit given is not the limit in ZooKeeper, or that limit is too low for the request.

    ``kept`` is the limit that ZooKeeper keeps, or ``None`` if it keeps none.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        token: FencingToken | None = None,
        kept: int | None = None,
    ) -> None:
        super().__init__(message, path=path, token=token)
        self.kept = kept


class MixedNames(ZkLockError):
    """Programs that do not wait for each other queue at this path.

    Either the lock writes kazoo's names, and kazoo's locks would not wait for a contender that is
    in its queue. Or an ephemeral sequential node with a name that zklock does not know stands
    before its own. Nothing is held, and no contender is left. The check sees only contenders that
    queue while this lock looks. It does not guarantee that there is no mix.
    """


class SequenceExhausted(ZkLockError):
    """The parent's sequence counter is at its end and the parent could not be renewed in time."""


class WouldDeadlock(ZkLockError):
    """A call that would deadlock.

    There are three cases. It would block a kazoo callback or listener thread, and only that thread
    could bring the answer. It asks without a timeout for a lock, or a ``MemoryGuard``, that this
    same thread or task holds. Or a signal handler makes it, and has interrupted zklock in the
    middle of a change.
    """


class AccessDenied(ZkLockError):
    """The client's credentials do not permit what the lock needs on its path."""


class ClientUnusable(ZkLockError):
    """The given client cannot carry locks; the message says what to pass instead."""


class ClientClosed(ClientUnusable):
    """The client was stopped, or ZooKeeper refused its credentials."""


class ForkedClient(ClientUnusable):
    """The client was made before a fork: make a new one in the child process."""


def _remade(kind: type[ZkLockError], args: tuple[Any, ...], state: dict[str, Any]) -> ZkLockError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
