"""The exclusive lock, for threads."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from zklock import names, queries, recipe
from zklock.attempt import Attempt
from zklock.clock import check_timeout
from zklock.connection import Client, check_thread
from zklock.effects import Recipe
from zklock.errors import AcquireCancelled, AcquireTimeout, LockLost, NotHeld, WrongThread
from zklock.grant import Grant, LostCallback, Terms
from zklock.queries import Contender
from zklock.session import session_of

MAX_IDENTITY = 4096
"""Bytes of UTF-8 that an identity may have."""


class Lock:
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

    The constructor asks nothing of ZooKeeper. One object may be shared by threads: every
    ``acquire`` is a contender of its own. It is not re-entrant: a thread that acquires twice
    waits for itself.

    *Not guaranteed:* that the holder still holds when its write arrives at a resource. Between
    ``check()`` and the write any amount of time can pass; a resource that must not see a late
    write has to compare fencing tokens (``zklock.fencing``).
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        identity: str | None = None,
        timeout: float | None = None,
        on_lost: LostCallback | None = None,
        on_suspended: Callable[[Grant], object] | None = None,
        session_timeout: float | None = None,
        lease_fraction: float | None = None,
    ) -> None:
        self._path = names.check_path(path)
        self._identity = _check_identity(identity)
        self._timeout = check_timeout(timeout)
        for name, callback in (("on_lost", on_lost), ("on_suspended", on_suspended)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{name} must be callable, not {type(callback).__name__}")
        self._on_lost = on_lost
        self._on_suspended = on_suspended
        self._session = session_of(client, session_timeout, lease_fraction)
        self._guard = threading.Lock()
        self._pending: set[Attempt[Grant | None]] = set()
        self._grant: Grant | None = None
        self._mine = threading.local()

    @property
    def path(self) -> str:
        """The lock's path."""
        return self._path

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
        limit = self._limit(blocking, timeout)
        patient = limit != 0
        check_thread("acquire()")
        self._session.check_usable()
        attempt = self._attempt(patient)
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
                attempt.when_done(lambda: _abandon_result(attempt))
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
        if not self._stack:
            raise self._nothing_here()
        self._release(self._stack[-1])

    def cancel(self) -> None:
        """Have all pending acquires of this object raise ``AcquireCancelled``, and only those."""
        with self._guard:
            pending = list(self._pending)
        for attempt in pending:
            attempt.give_up(
                AcquireCancelled(f"{self._path}: the acquire was cancelled", path=self._path)
            )

    @property
    def grant(self) -> Grant | None:
        """The newest grant of this object, ``None`` once it is released; it may be lost."""
        grant = self._grant
        return None if grant is None or grant.released else grant

    @property
    def held(self) -> bool:
        """Whether the newest grant of this object is held (see ``Grant.held``)."""
        grant = self._grant
        return grant is not None and grant.held

    def contenders(self, timeout: float | None = None) -> list[Contender]:
        """Return who holds and who waits, in queue order, foreign clients' contenders included.

        Asks through the leader; ``NoAnswer`` after ``timeout`` seconds, by default the session
        timeout. What it returns may have changed by the time it is looked at.
        """
        found: list[Contender] = self._ask("contenders()", queries.contenders, timeout)
        return found

    def holder(self, timeout: float | None = None) -> Contender | None:
        """Return the first in the queue, confirmed by a quorum; ``None`` if it is empty.

        ``timeout`` and errors as of :meth:`contenders`. ``None`` is not confirmed: where the
        network is partitioned, somebody may hold the lock on the other side.
        """
        found: Contender | None = self._ask("holder()", queries.holder, timeout)
        return found

    def __enter__(self) -> Grant:
        grant = self.acquire()
        try:
            if grant is None:
                raise AcquireTimeout(
                    f"{self._path}: not granted within {self._timeout:g} s: try again later, or "
                    "wait longer (timeout=)",
                    path=self._path,
                )
            self._entered.append(grant)
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
            entered = self._entered
            if not entered:
                raise self._nothing_here()
            try:
                self._release(entered[-1])
            finally:
                entered.pop()
        except LockLost as lost:
            if error is None:
                raise
            if not isinstance(error, LockLost):
                error.add_note(f"moreover the lock was lost meanwhile: {lost}")
        except NotHeld:
            if error is None:
                raise
        except BaseException:
            for grant in self._stack:  # interrupted: whatever is held still is what was entered
                grant.abandon()
            raise

    @property
    def _stack(self) -> list[Grant]:
        """What this thread acquired, newest last."""
        grants: list[Grant] = self._mine.__dict__.setdefault("grants", [])
        return grants

    @property
    def _entered(self) -> list[Grant]:
        """What this thread acquired by ``with``, innermost last."""
        grants: list[Grant] = self._mine.__dict__.setdefault("entered", [])
        return grants

    def _nothing_here(self) -> NotHeld:
        grant = self._grant
        if grant is not None and grant.held:
            return WrongThread(
                f"{self._path}: held, but not by this thread: release it where it was acquired, "
                "or call release() of the grant",
                path=self._path,
                token=grant.token,
            )
        return NotHeld(f"{self._path}: nothing to release: acquire first", path=self._path)

    def _keep(self, grant: Grant) -> None:
        self._grant = grant
        stack, entered = self._stack, self._entered
        stack[:] = [old for old in stack if old in entered or old.held]
        stack.append(grant)

    def _limit(self, blocking: bool, timeout: float | None) -> float | None:
        if blocking:
            return self._timeout if timeout is None else check_timeout(timeout)
        if timeout is not None:
            raise ValueError("blocking=False waits for nothing: a timeout makes no sense with it")
        return 0

    def _attempt(self, patient: bool) -> Attempt[Grant | None]:
        thread = threading.current_thread().name
        identity = self._identity or f"{socket.gethostname()}:{os.getpid()}:{thread}"
        entry = recipe.Entry(self._path, identity.encode(), names.Kind.EXCLUSIVE, patient=patient)
        return self._session.attempt(
            recipe.acquire(entry),
            recover=lambda: recipe.leave(entry),
            terms=Terms(identity, self._on_lost, self._on_suspended),
        )

    def _release(self, grant: Grant) -> None:
        try:
            grant.release()
        finally:
            if not grant.held:
                if grant in self._stack:
                    self._stack.remove(grant)
                if self._grant is grant:
                    self._grant = None

    def _ask(self, what: str, query: Callable[[str], Recipe[Any]], timeout: float | None) -> Any:
        check_thread(what)
        limit = check_timeout(timeout)
        return self._session.ask(lambda: query(self._path), self._path, limit)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}{' held' if self.held else ''}>"


def _check_identity(identity: Any) -> str | None:
    if identity is None:
        return None
    if not isinstance(identity, str):
        raise TypeError(f"identity must be a str, not {type(identity).__name__}")
    size = len(identity.encode())
    if not 0 < size <= MAX_IDENTITY:
        raise ValueError(f"identity must have 1 to {MAX_IDENTITY} bytes of UTF-8, not {size}")
    return identity


def _outcome(attempt: Attempt[Grant | None], limit: float | None) -> Grant | None:
    """Wait for the outcome; ``None`` when the limit has passed, even if a grant is on its way."""
    if not attempt.wait(limit) and attempt.give_up():
        return None
    attempt.wait()
    return attempt.result()


def _abandon_result(attempt: Attempt[Grant | None]) -> None:
    """Give back a grant that was given while its caller was being interrupted."""
    try:
        grant = attempt.result()
    except BaseException:
        return  # there is none
    if grant is not None:
        grant.abandon()
