"""What a lock is for threads and for asyncio alike: its settings, its contenders, its grants.

A kind of lock is declared once, on ``LockBase`` (see ``kinds``). Each front adds how it waits.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any, ClassVar, Generic, Literal, TypedDict, TypeVar

from zklock._core.attempt import Attempt
from zklock._core.callbacks import check_callbacks
from zklock._core.contexts import Acquired, LockContext
from zklock._core.grant import GrantBase, GrantOptions
from zklock._core.loops import check_thread
from zklock._core.script import Front
from zklock._core.session import Session
from zklock._ground.clock import check_timeout
from zklock._ground.loss import LostCallback
from zklock._ground.not_copyable import NotCopyable
from zklock._recipes import lock as lock_recipe, names, queries, revoke
from zklock._recipes.effects import Recipe
from zklock._recipes.nodedata import NodeData
from zklock._recipes.queries import Contender
from zklock._shell.client import AnyClient
from zklock._shell.sessions import session_of
from zklock._telemetry import emit, subscriptions
from zklock.errors import (
    AcquireCancelled,
    AcquireTimeout,
    NotHeld,
    WouldDeadlock,
    WrongThread,
)
from zklock.token import FencingToken

MAX_IDENTITY = 4096
"""The size limit of an identity, in bytes of UTF-8."""

_MAKERS = 1024
"""For so many threads or tasks it is known what their contenders say."""

G = TypeVar("G", bound=GrantBase)
R = TypeVar("R")


class Options(TypedDict, Generic[G], total=False):
    """The options of every lock; see ``LockBase``."""

    identity: str | None
    timeout: float | None
    on_lost: LostCallback | None
    on_suspended: Callable[[G], object] | None
    on_release_requested: Callable[[G], object] | None
    tidy: bool
    naming: Literal["curator", "kazoo"]
    session_timeout: float | None
    lease_fraction: float | None


class Questions:
    """What a lock is asked: who queues, who holds it, and to be given back."""

    _FRONT: ClassVar[Front]
    _path: str
    _session: Session

    async def _ask(self, what: str, query: Callable[[], Recipe[R]], timeout: float | None) -> R:
        """Run a query about the lock and return its result; ``NoAnswer`` if not in time."""
        check_thread(what)
        return await self._FRONT.ask(self._session, query, self._path, check_timeout(timeout))

    async def _break_lock(
        self, token: FencingToken | None, timeout: float | None
    ) -> Contender | None:
        if token is not None and not isinstance(token, FencingToken):
            raise TypeError(f"token must be a FencingToken, not {type(token).__name__}")
        return await self._ask("break_lock()", lambda: self._break(token), timeout)

    def _contenders(self) -> Recipe[list[Contender]]:
        return queries.contenders(self._path)

    def _holder(self) -> Recipe[Contender | None]:
        return queries.holder(self._path)

    def _request_release(self) -> Recipe[list[Contender]]:
        return revoke.request_release(self._contenders)

    def _break(self, token: FencingToken | None) -> Recipe[Contender | None]:
        return revoke.break_lock(self._path, self._contenders, token)


class LockBase(NotCopyable, Questions, LockContext[G]):
    """The part of a lock that does not wait; see ``Lock`` for the arguments."""

    _INSTEAD = "make another one with the same path, in another process with a client of its own"

    _KIND: ClassVar[names.Kind] = names.Kind.EXCLUSIVE
    _CALLED: ClassVar[str] = "exclusive"
    """What telemetry calls this kind."""
    _AWAITS: ClassVar[bool] = False
    _keep_for = 0.0  # seconds
    _GRANT: type[G]

    def __init__(
        self,
        client: AnyClient,
        path: str,
        *,
        identity: str | None = None,
        timeout: float | None = None,
        on_lost: LostCallback | None = None,
        on_suspended: Callable[[G], object] | None = None,
        on_release_requested: Callable[[G], object] | None = None,
        tidy: bool = False,
        naming: Literal["curator", "kazoo"] = "curator",
        session_timeout: float | None = None,
        lease_fraction: float | None = None,
    ) -> None:
        self._path = names.check_path(path)
        self._identity = check_identity(identity)
        self._timeout = check_timeout(timeout)
        check_callbacks(
            self._AWAITS,
            on_lost=on_lost,
            on_suspended=on_suspended,
            on_release_requested=on_release_requested,
        )
        self._on_lost = on_lost
        self._on_suspended = on_suspended
        self._on_release_requested = on_release_requested
        self._tidy = bool(tidy)
        self._naming = _check_naming(naming, self._tidy)
        self._session = session_of(client, session_timeout, lease_fraction)
        # Its users: pending attempts, with None, and perhaps tasks, with what each has acquired.
        # No lock: a signal handler that cancels may have interrupted the code that holds it.
        # Adding, discarding and copying are one step each: nothing can come in between.
        self._users: dict[Any, Acquired[G] | None] = {}
        self._mine = self._storage()
        self._grant: G | None = None

    @property
    def path(self) -> str:
        """The lock's own znode, below which its contenders queue."""
        return self._path

    @property
    def grant(self) -> G | None:
        """The newest grant of this object, ``None`` once it is released. It may be lost."""
        grant = self._grant
        return None if grant is None or grant.released else grant

    @property
    def held(self) -> bool:
        """Whether the newest grant of this object is held (see ``Grant.held``)."""
        grant = self._grant
        return grant is not None and grant.held

    def cancel(self) -> None:
        """Make all pending acquires of this object raise ``AcquireCancelled``, and no others.

        May be called from any thread, and from a signal handler.
        """
        for attempt, mine in self._users.copy().items():
            if mine is None:
                error = AcquireCancelled(
                    f"{self._path}: the acquire was cancelled", path=self._path
                )
                attempt.cancel(error)

    # Scripts: what the fronts' methods do.

    async def _acquire(
        self,
        blocking: bool = True,
        timeout: float | None = None,
        check: Callable[[], object] | None = None,
        **wanted: Any,
    ) -> G | None:
        """Acquire. ``check`` is called once a ``cancel`` reaches this acquire; it may raise."""
        limit = limit_of(blocking, timeout, self._timeout)
        patient = limit != 0
        check_thread("acquire()")
        self._session.check_usable()
        shared = self._again()
        if shared is not None:
            shared._get_ready()
            mine = self._holdings()
            mine.grants = (*mine.grants, shared)
            return shared  # nothing can strike between the two
        terms = self._options()
        kept = self._take_kept(terms)
        if kept is not None:
            return kept
        self._check_own(waits=limit is None)
        entry, attempt = self._attempt(terms, patient, **wanted)
        del terms, wanted  # many may wait
        try:
            self._users[attempt] = None
            if check is not None:
                check()
            self._FRONT.begin(attempt, awaited=True)
            limit = limit if patient else self._session.moment
            if await self._FRONT.finished(attempt, limit, abandon_made):
                grant = attempt.result()
            else:
                grant = await give_up_or_result(self._FRONT, attempt)
            self._users.pop(attempt, None)
            if grant is None:
                self._holdings().asked = entry
            else:
                self._keep(grant)
            return grant
        except BaseException:
            self._session.post(lambda: self._undo(attempt))  # one call in C; see ``ports``
            self._session.shell.wake()
            raise

    def _undo(self, attempt: Attempt[G | None]) -> None:
        """Undo an acquire that has begun."""
        for grant in attempt.made:
            grant._kept = False
        undo(attempt)
        self._users.pop(attempt, None)

    async def _release(self) -> None:
        check_thread("release()")
        await self._give_back(self._newest())

    async def _give_back(self, grant: G) -> None:
        """Release one use of the grant."""
        mine = self._holdings()
        if mine.grants.count(grant) > 1 and grant.held:
            mine.drop(grant)
            return
        try:
            await grant._release()
        finally:
            self._forget(grant, mine)

    # For the fronts.

    def _storage(self) -> Any:
        """Return the store of what each thread or task has acquired."""
        raise NotImplementedError

    def _owner(self) -> object:
        """Return the running thread or task."""
        raise NotImplementedError

    def _holdings(self) -> Acquired[G]:
        """Return what the running thread or task has acquired here."""
        raise NotImplementedError

    def _label(self) -> str:
        """Return the last part of a default identity."""
        raise NotImplementedError

    def _check_own(self, *, waits: bool) -> None:
        """Raise ``WouldDeadlock`` if the running thread or task would wait for itself.

        ``waits``: it would wait without a limit.
        """
        if not waits:
            return
        for grant in self._session.grants_at(self._path):
            mine = grant._kept and grant._terms.owner == self._owner()
            if mine and self._blocked_by(grant) and grant.held:
                raise WouldDeadlock(
                    f"{self._path}: this {self._WHO} already holds it (token {grant.token}) and "
                    "would deadlock: release it first, share one RLock object, or pass timeout= "
                    "if something else will release it",
                    path=self._path,
                    token=grant.token,
                )

    def _blocked_by(self, grant: GrantBase) -> bool:
        """Whether a contender of this kind waits behind a grant of this path."""
        parent, _, name = grant.path.rpartition("/")
        node = names.parse(name)
        reads = node is None or node.kind is names.Kind.READ or grant._reads
        return parent == self._path and not (reads and self._KIND is names.Kind.READ)

    def _again(self) -> G | None:
        """Return the grant that the running thread or task may share, if there is one."""
        return None

    def _entry(self, data: bytes, patient: bool, **wanted: Any) -> lock_recipe.Entry:
        return lock_recipe.Entry(
            self._path,
            data,
            self._KIND,
            patient=patient,
            tidy=self._tidy,
            alone=not self._tidy,
            naming=self._naming,
        )

    def _options(self) -> GrantOptions:
        """Return the options of a grant to the running thread or task."""
        return GrantOptions(
            self._path,
            self._identity or default_identity(os.getpid(), self._label()),
            self._GRANT,
            self._on_lost,
            self._on_suspended,
            self._on_release_requested,
            self._owner(),
            self,
            self._CALLED,
            keep=self._keep_for,
        )

    def _attempt(
        self, terms: GrantOptions, patient: bool, **wanted: Any
    ) -> tuple[lock_recipe.Entry | None, Attempt[G | None]]:
        """Return an attempt, and the contender if there is one for this attempt alone."""
        entry = self._entry(_data(terms.identity), patient, **wanted)
        return entry, self._contend(entry, terms)

    def _contend(self, entry: lock_recipe.Entry, terms: GrantOptions) -> Attempt[Any]:
        """Return an attempt with this contender."""
        entry.is_ours = self._session.owns
        if subscriptions.hooks:
            entry.queued = emit.queued(terms, self._session.now)
        return self._session.attempt(
            partial(lock_recipe.acquire, entry), recover=entry.leave, terms=terms
        )

    def _begin(self, told: Callable[[Attempt[G | None]], object]) -> Attempt[G | None]:
        """Begin to acquire; no thread waits.

        ``told(attempt)`` is called once there is an outcome, on the thread that brings it. It must
        not block. After ``attempt.cancel()`` there is no grant, or it says that it came too late.
        """
        _, attempt = self._attempt(self._options(), patient=True)
        attempt.when_done(lambda: told(attempt))
        return attempt.start()

    def _keep(self, grant: G) -> None:
        """Note what the running thread or task has acquired.

        From the last step on, it has it. Before, an interrupt has it given back; after it, nothing
        can strike until the caller has got it.
        """
        grant._get_ready()
        mine = self._holdings()
        left = [old for old in mine.grants if old in mine.entered or old.held]
        mine.asked = None
        self._grant = grant
        grant._kept = True
        mine.grants = (*left, grant)

    def _take_kept(self, terms: GrantOptions) -> G | None:
        """Return a grant of a kept lock, if one may be had at once; see ``keeping``."""
        return None

    def _newest(self) -> G:
        """Return the newest grant of the running thread or task; ``NotHeld`` if there is none."""
        grants = self._holdings().grants
        if not grants:
            raise self._nothing_here()
        return grants[-1]

    def _abandon_use(self, grant: G) -> None:
        """Give up one use, without waiting; the last one gives the grant back.

        Repeatable until its last step: see ``contexts``.
        """
        if self._used_more(grant) and not grant.released:
            self._holdings().drop(grant)
        else:
            grant.abandon()
            self._forget(grant, self._holdings())

    def _used_more(self, grant: G) -> bool:
        """Whether this thread or task has acquired the grant more than once."""
        return self._holdings().grants.count(grant) > 1

    def _forget(self, grant: G, mine: Acquired[G]) -> None:
        """Forget a grant that has ended; if it was lost, forget only one use of it.

        The code around the other uses still believes that it holds the lock. It must be told, and
        may not acquire anew before that.
        """
        end = grant._ended
        if end is None:
            return
        if end.loss is None:
            mine.grants = tuple([other for other in mine.grants if other is not grant])
        elif grant in mine.grants:
            mine.drop(grant)
        if self._grant is grant and grant not in mine.grants:
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
        ahead, behind = stood(self._holdings().asked)
        return AcquireTimeout(
            f"{self._path}: not granted within {self._timeout:g} s{standing(ahead, behind)}: try "
            "again later, or wait longer (timeout=)",
            path=self._path,
            ahead=ahead,
            behind=behind,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}{' held' if self.held else ''}>"


def _check_naming(naming: object, tidy: bool) -> names.Naming:
    try:
        found = names.Naming(naming)
    except ValueError:
        raise ValueError(f'naming must be "curator" or "kazoo", not {naming!r}') from None
    if tidy and found is names.Naming.KAZOO:
        raise ValueError(
            'naming="kazoo" and tidy=True do not go together: kazoo\'s locks do not make a path '
            "again that was removed"
        )
    return found


def stood(asked: lock_recipe.Entry | None) -> tuple[int | None, str | None]:
    """Return how many stood before a contender when it last looked, and who was the nearest."""
    return (None, None) if asked is None else (asked.ahead, asked.behind or None)


def standing(ahead: int | None, behind: str | None) -> str:
    if not ahead:
        return ""
    if ahead == 1:
        return f", held by {behind!r}" if behind else ", with one contender before it"
    return f", with {ahead} contenders before it" + (f", the nearest {behind!r}" if behind else "")


@cache
def _host() -> str:
    return socket.gethostname()


@lru_cache(maxsize=_MAKERS)
def default_identity(pid: int, label: str) -> str:
    """Return a default identity. Grants of the same thread or task share one text.

    Threads and tasks may have any name: what cannot be in an identity is replaced, or cut off.
    """
    text = ":".join(filter(None, (_host(), str(pid), label))).replace("\0", "?")
    return text.encode(errors="replace")[:MAX_IDENTITY].decode(errors="ignore")


@lru_cache(maxsize=_MAKERS)
def _data(identity: str) -> bytes:
    """Return the data of a contender's node."""
    return bytes(NodeData(identity.encode()))


def limit_of(blocking: bool, timeout: Any, default: float | None = None) -> float | None:
    """Return for how long an acquire waits, in seconds; ``None``: without a limit."""
    if not isinstance(blocking, bool):  # acquire(5) would wait without a limit
        raise TypeError(
            f"blocking must be True or False, not {blocking!r}: pass seconds as timeout="
        )
    if timeout is None:
        return default if blocking else 0
    if not blocking:
        raise ValueError("blocking=False does not wait: it takes no timeout")
    return check_timeout(timeout)


async def outcome(front: Front, attempt: Attempt[R | None], limit: float | None) -> R | None:
    """Wait for the outcome; ``None`` after the limit, even if a grant is on its way."""
    if await front.finished(attempt, limit, abandon_made):
        return attempt.result()
    return await give_up_or_result(front, attempt)


async def give_up_or_result(front: Front, attempt: Attempt[R | None]) -> R | None:
    """Return ``None``, as the limit is over, unless it is too late to give up."""
    if attempt.cancel():
        return None
    if not attempt.done:
        await front.finished(attempt, None, abandon_made)
    return attempt.result()


def undo(attempt: Attempt[Any]) -> None:
    """Give up, or give back what is granted. Repeatable."""
    if not attempt.cancel():
        attempt.when_done(partial(abandon_made, attempt))
        abandon_made(attempt)  # now, if it is there


def abandon_made(attempt: Attempt[Any]) -> None:
    """Give back the grants that were made for an attempt whose caller has gone away."""
    for grant in attempt.made:
        grant.abandon()


def check_identity(identity: Any) -> str | None:
    """Return a valid identity; ``TypeError`` or ``ValueError`` if a node cannot carry it."""
    if identity is None:
        return None
    if not isinstance(identity, str):
        raise TypeError(f"identity must be a str, not {type(identity).__name__}")
    try:
        size = len(identity.encode())
    except UnicodeEncodeError:
        raise ValueError(f"identity must be UTF-8 text, not {identity!r}") from None
    if not 0 < size <= MAX_IDENTITY:
        raise ValueError(f"identity must have 1 to {MAX_IDENTITY} bytes of UTF-8, not {size}")
    if "\0" in identity:
        raise ValueError("identity must not have a NUL character")
    return str.__str__(identity)  # a member of an enum may be formatted as something else
