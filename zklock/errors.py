"""Every error that zklock raises by itself.

::

    Exception
     └─ ZkLockError                  caught: whatever zklock has to report
         ├─ AcquireTimeout           the lock was not granted in time (also a TimeoutError)
         ├─ NoAnswer                 ZooKeeper did not answer in time (also a TimeoutError)
         ├─ AcquireCancelled         cancel() or a stopping client ended a pending acquire
         ├─ LockLost                 the grant ended before it was released
         ├─ NotHeld                  release of something that is not held (any more)
         │   └─ WrongThread          a re-entrant lock is held, by another thread or task
         ├─ NotOwner                 the present holder is somebody else
         ├─ NoSuchMember             an election has no member of that identity to hand over to
         ├─ LeaderStuck              the work of a term goes on although the term is to end
         ├─ StaleToken               a resource has already seen a higher token
         ├─ GuardUnusable            a resource cannot tell which tokens are stale
         ├─ LimitMismatch            a semaphore is kept with another limit
         ├─ SequenceExhausted        the lock's parent has no sequence numbers left
         ├─ WouldDeadlock            a blocking call on the thread that would have to answer it
         ├─ AccessDenied             ZooKeeper's ACLs refuse the lock path
         └─ ClientUnusable           the client cannot carry locks (not started, other handler, …)
             ├─ ClientClosed         it was stopped, or its credentials were refused
             └─ ForkedClient         it belongs to the parent of this process

Wrong arguments raise the built-in ``TypeError`` and ``ValueError``, before anything is sent.

Each error carries ``path`` (the lock's path) and ``token`` where they are known, else ``None``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zklock.grant import Loss
    from zklock.token import FencingToken


class ZkLockError(Exception):
    """Base of zklock's errors.

    ``path`` is the path of the lock or resource, ``token`` the fencing token concerned; either
    is ``None`` where it is not known.
    """

    def __init__(
        self, message: str, *, path: str | None = None, token: FencingToken | None = None
    ) -> None:
        super().__init__(message)
        self.path = path
        self.token = token


class AcquireTimeout(ZkLockError, TimeoutError):
    """The lock was not granted within the timeout; nothing is held and no contender is left."""


class NoAnswer(ZkLockError, TimeoutError):
    """ZooKeeper did not answer within the time given; nothing was learnt. Ask again later."""


class AcquireCancelled(ZkLockError):
    """A pending acquire was ended by ``cancel()``; nothing is held and no contender is left."""


class LockLost(ZkLockError):
    """The grant is over although it was not released: stop the guarded work.

    Somebody else may already hold the lock. What was written with this grant's token is safe
    only where the resource checks tokens. ``loss`` says what happened.
    """

    loss: Loss | None = None


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
    """Nobody of that identity waits in the election: look at ``members()``, and choose again."""


class LeaderStuck(ZkLockError):
    """``lead`` did not end within its grace, so that no other term can begin in this process.

    It may go on writing: only resources that check tokens are safe. End the process.
    """


class StaleToken(ZkLockError):
    """A resource refused a write: it has already seen a higher token.

    ``resource`` names the resource, ``token`` is the refused token and ``highest`` the one that
    the resource has seen. The writer's grant is over, whatever it still believes.
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


class GuardUnusable(ZkLockError):
    """A guard cannot tell which tokens are stale, so it refuses every write.

    Its mark is missing, unreadable or has no room. ``resource`` names the resource.
    """

    def __init__(
        self,
        message: str,
        *,
        resource: str,
        path: str | None = None,
        token: FencingToken | None = None,
    ) -> None:
        super().__init__(message, path=path, token=token)
        self.resource = resource


class LimitMismatch(ZkLockError):
    """A semaphore's limit is not the one that is kept in ZooKeeper, or too low for the request.

    ``kept`` is the limit that is kept, ``None`` if none is.
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


class SequenceExhausted(ZkLockError):
    """The parent's sequence counter is at its end and the parent could not be renewed in time."""


class WouldDeadlock(ZkLockError):
    """A blocking call on a kazoo callback or listener thread, which would wait for itself."""


class AccessDenied(ZkLockError):
    """The client's credentials do not permit what the lock needs on its path."""


class ClientUnusable(ZkLockError):
    """The given client cannot carry locks; the message says what to pass instead."""


class ClientClosed(ClientUnusable):
    """The client was stopped, or ZooKeeper refused its credentials."""


class ForkedClient(ClientUnusable):
    """The client was made before a fork: make a new one in the child process."""
