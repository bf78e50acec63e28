"""What a lock is for threads and for asyncio alike: its settings, its contenders, its grants.

A kind of lock is declared once, on ``Acquirable`` (see ``kinds``); each front adds how it waits.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Generic, TypedDict, TypeVar

from zklock import interventions, names, queries, recipe
from zklock.attempt import Attempt
from zklock.clock import check_timeout
from zklock.connection import Client
from zklock.effects import Recipe
from zklock.errors import AcquireCancelled, AcquireTimeout, LockLost, NotHeld, WrongThread
from zklock.grant import GrantBase, LostCallback, Terms
from zklock.queries import Contender
from zklock.session import Session, session_of
from zklock.token import FencingToken

MAX_IDENTITY = 4096
"""Bytes of UTF-8 that an identity may have."""

G = TypeVar("G", bound=GrantBase)


class Holdings(Generic[G]):
    """What one thread or task acquired, newest last, and what of it by ``with``.

    A re-entrant lock has one grant in it several times.
    """

    __slots__ = ("entered", "grants")

    def __init__(self) -> None:
        self.grants: list[G] = []
        self.entered: list[G] = []


class Options(TypedDict, Generic[G], total=False):
    """What every lock may be told; see ``Acquirable``."""

    identity: str | None
    timeout: float | None
    on_lost: LostCallback | None
    on_suspended: Callable[[G], object] | None
    on_release_requested: Callable[[G], object] | None
    tidy: bool
    session_timeout: float | None
    lease_fraction: float | None


class Acquirable(Generic[G]):
    """The part of a lock that does not wait; see ``Lock`` for the arguments."""

    _KIND: ClassVar[names.Kind] = names.Kind.EXCLUSIVE
    _GRANT: type[G]

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        identity: str | None = None,
        timeout: float | None = None,
        on_lost: LostCallback | None = None,
        on_suspended: Callable[[G], object] | None = None,
        on_release_requested: Callable[[G], object] | None = None,
        tidy: bool = False,
        session_timeout: float | None = None,
        lease_fraction: float | None = None,
    ) -> None:
        self._path = names.check_path(path)
        self._identity = check_identity(identity)
        self._timeout = check_timeout(timeout)
        check_callbacks(
            on_lost=on_lost, on_suspended=on_suspended, on_release_requested=on_release_requested
        )
        self._on_lost = on_lost
        self._on_suspended = on_suspended
        self._on_release_requested = on_release_requested
        self._tidy = bool(tidy)
        self._session = self._open(client, session_timeout, lease_fraction)
        self._mine = self._storage()
        self._guard = threading.Lock()
        self._pending: set[Attempt[G | None]] = set()
        self._grant: G | None = None

    @property
    def path(self) -> str:
        """The lock's path."""
        return self._path

    @property
    def grant(self) -> G | None:
        """The newest grant of this object, ``None`` once it is released; it may be lost."""
        grant = self._grant
        return None if grant is None or grant.released else grant

    @property
    def held(self) -> bool:
        """Whether the newest grant of this object is held (see ``Grant.held``)."""
        grant = self._grant
        return grant is not None and grant.held

    def cancel(self) -> None:
        """Have all pending acquires of this object raise ``AcquireCancelled``, and only those."""
        with self._guard:
            pending = list(self._pending)
        for attempt in pending:
            attempt.give_up(
                AcquireCancelled(f"{self._path}: the acquire was cancelled", path=self._path)
            )

    # For the fronts.

    def _open(
        self, client: Client, session_timeout: float | None, lease_fraction: float | None
    ) -> Session:
        return session_of(client, session_timeout, lease_fraction)

    def _storage(self) -> Any:
        """Return where what each thread or task holds is kept."""
        raise NotImplementedError

    def _owner(self) -> object:
        """Return the thread or task that is running."""
        raise NotImplementedError

    def _holdings(self) -> Holdings[G]:
        """Return what the thread or task that is running has acquired here."""
        raise NotImplementedError

    def _label(self) -> str:
        """Return what a default identity ends in."""
        raise NotImplementedError

    def _limit(self, blocking: bool, timeout: float | None) -> float | None:
        if blocking:
            return self._timeout if timeout is None else check_timeout(timeout)
        if timeout is not None:
            raise ValueError("blocking=False waits for nothing: a timeout makes no sense with it")
        return 0

    def _check_acquire(self) -> None:
        """Raise what forbids that the running thread or task acquires now."""
        self._session.check_usable()

    def _again(self) -> G | None:
        """Return the grant that the running thread or task is to share, if it may."""
        return None

    def _entry(self, data: bytes, patient: bool, **wanted: Any) -> recipe.Entry:
        """Return a new contender."""
        return recipe.Entry(self._path, data, self._KIND, patient=patient, tidy=self._tidy)

    def _attempt(self, patient: bool, **wanted: Any) -> Attempt[G | None]:
        identity = self._identity or f"{_host()}:{os.getpid()}:{self._label()}"
        entry = self._entry(identity.encode(), patient, **wanted)
        return self._session.attempt(
            recipe.acquire(entry),
            recover=lambda: recipe.leave(entry),
            terms=Terms(
                self._path,
                identity,
                self._on_lost,
                self._on_suspended,
                self._on_release_requested,
                self._GRANT,
                self._owner(),
            ),
        )

    def _begin(self, told: Callable[[Attempt[G | None]], object]) -> Attempt[G | None]:
        """Begin to acquire, with no thread that waits.

        ``told(attempt)`` is called once there is an outcome, on whichever thread brings it, and
        must not block. Whoever gives the attempt up gets no grant, or is told that it is too late.
        """
        attempt = self._attempt(patient=True)
        attempt.when_done(lambda: told(attempt))
        return attempt.start()

    def _keep(self, grant: G) -> None:
        """Note what the running thread or task has acquired."""
        self._grant = grant
        mine = self._holdings()
        mine.grants[:] = [old for old in mine.grants if old in mine.entered or old.held]
        mine.grants.append(grant)

    def _newest(self) -> G:
        """Return what the running thread or task acquired last, ``NotHeld`` if nothing."""
        grants = self._holdings().grants
        if not grants:
            raise self._nothing_here()
        return grants[-1]

    def _shared(self, grant: G) -> bool:
        """Take one use of the grant back; whether others of this thread or task are left."""
        grants = self._holdings().grants
        if grants.count(grant) > 1 and grant.held:
            grants.remove(grant)
            return True
        return False

    def _forget(self, grant: G) -> None:
        """Forget a grant that is over."""
        if not grant.held:
            grants = self._holdings().grants
            grants[:] = [other for other in grants if other is not grant]
            if self._grant is grant:
                self._grant = None

    def _nothing_here(self) -> NotHeld:
        grant = self._grant
        if grant is not None and grant.held:
            return WrongThread(
                f"{self._path}: held, but not by this {self._WHO}: release it where it was "
                "acquired, or call release() of the grant",
                path=self._path,
                token=grant.token,
            )
        return NotHeld(f"{self._path}: nothing to release: acquire first", path=self._path)

    _WHO: ClassVar[str] = "thread"

    def _timed_out(self) -> AcquireTimeout:
        return AcquireTimeout(
            f"{self._path}: not granted within {self._timeout:g} s: try again later, or "
            "wait longer (timeout=)",
            path=self._path,
        )

    # What may be asked.

    def _contenders(self) -> Recipe[list[Contender]]:
        return queries.contenders(self._path)

    def _holder(self) -> Recipe[Contender | None]:
        return queries.holder(self._path)

    def _request_release(self) -> Recipe[list[Contender]]:
        return interventions.request_release(self._contenders)

    def _break(self, token: FencingToken | None) -> Recipe[Contender | None]:
        return interventions.break_lock(self._path, self._contenders, token)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}{' held' if self.held else ''}>"


@cache
def _host() -> str:
    return socket.gethostname()


def note_loss(lost: LockLost, error: BaseException | None) -> bool:
    """Note the loss on the error that is on its way already; whether there is one."""
    if error is not None and not isinstance(error, LockLost):
        error.add_note(f"moreover the lock was lost meanwhile: {lost}")
    return error is not None


def abandon_result(attempt: Attempt[Any]) -> None:
    """Give back a grant that was given while its caller was being interrupted."""
    try:
        grant = attempt.result()
    except BaseException:
        return  # there is none
    if grant is not None:
        grant.abandon()


def check_callbacks(**callbacks: object) -> None:
    """Raise ``TypeError`` for what cannot be called; ``None`` stands for none."""
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise TypeError(f"{name} must be callable, not {type(callback).__name__}")


def check_identity(identity: Any) -> str | None:
    """Return an identity that a node can carry; ``TypeError`` or ``ValueError`` if it is none."""
    if identity is None:
        return None
    if not isinstance(identity, str):
        raise TypeError(f"identity must be a str, not {type(identity).__name__}")
    size = len(identity.encode())
    if not 0 < size <= MAX_IDENTITY:
        raise ValueError(f"identity must have 1 to {MAX_IDENTITY} bytes of UTF-8, not {size}")
    if "\0" in identity:
        raise ValueError("identity must not have a NUL character")
    return identity
