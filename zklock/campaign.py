"""What an election is for threads and for asyncio alike: its settings, its candidacies."""

from __future__ import annotations

import contextlib
import math
import os
import random
import socket
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from zklock import leaders, names, nodedata, queries, recipe
from zklock.attempt import Attempt
from zklock.base import check_callbacks, check_identity
from zklock.candidacy import Candidacy
from zklock.connection import Client, check_thread
from zklock.effects import Recipe
from zklock.errors import LeaderStuck, LockLost, NoAnswer, NotHeld, ZkLockError
from zklock.grant import Answer, GrantBase, LostCallback, Terms
from zklock.leaders import Feed
from zklock.queries import Contender
from zklock.session import session_of

MAX_PAYLOAD = 16384
"""Bytes that a payload may have."""


class Flag(Protocol):
    """An event, of threads or of asyncio."""

    def is_set(self) -> bool:
        """Whether it is."""

    def set(self) -> None:
        """Set it."""


class Leading(GrantBase):
    """What a leadership adds to a grant: it is given back by the election, not by ``lead``."""

    should_stop: Flag

    def resign(self) -> None:
        """Ask for the end of the term: it ends when ``lead`` does."""
        self.should_stop.set()

    def abandon(self) -> None:
        """As ``resign()``."""
        self.resign()


L = TypeVar("L", bound=Leading)


class Term(Generic[L]):
    """A leadership, and what has become of it; ``over`` is set once ``lead`` has ended."""

    over: Flag

    def __init__(self, leadership: L, candidacy: Candidacy) -> None:
        self.leadership = leadership
        self.candidacy = candidacy
        self.error: BaseException | None = None
        self.answer: Answer | None = None

    def give_back(self) -> None:
        """Give the leadership back, if it is not lost; ``lead`` must have ended."""
        with contextlib.suppress(LockLost, NotHeld):
            self.answer = self.leadership._end()


T = TypeVar("T", bound=Term[Any])


class Campaign(Generic[L, T]):
    """The part of an election that does not wait; see ``LeaderElection`` for the arguments."""

    _ASKED: ClassVar[str]
    """What ``lead`` was before its grace began."""

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        identity: str | None = None,
        payload: bytes | str = b"",
        on_elected: Callable[[Any], object] | None = None,
        on_lost: LostCallback | None = None,
        grace: float = 10.0,
        retry: tuple[float, float] = (0.5, 30.0),
        session_timeout: float | None = None,
        lease_fraction: float | None = None,
    ) -> None:
        self._path = names.check_path(path)
        self._identity = member_identity(identity)
        self._payload = _check_payload(payload)
        check_callbacks(on_elected=on_elected, on_lost=on_lost)
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._grace = _check_seconds("grace", grace)
        self._retry = check_retry(retry)
        self._session = session_of(client, session_timeout, lease_fraction)
        self._running = False
        self._stopped = False
        self._stop: Flag | None = None
        self._term: T | None = None
        self._set_up()

    def _set_up(self) -> None:
        """Make what the front needs besides."""
        raise NotImplementedError

    @property
    def path(self) -> str:
        """The election's path."""
        return self._path

    @property
    def identity(self) -> str:
        """What this member is called in the election."""
        return self._identity

    @property
    def leadership(self) -> L | None:
        """The present term of this object, ``None`` outside of one; it may be lost."""
        term = self._term
        return None if term is None or term.over.is_set() else term.leadership

    @property
    def is_leader(self) -> bool:
        """Whether this object leads, as far as may be believed (see ``Grant.held``)."""
        leadership = self.leadership
        return leadership is not None and leadership.held

    def resign(self) -> None:
        """Give up the leadership, and queue again at the end. Does not wait.

        ``lead`` is told, and the next in the queue leads once it has ended. Raises ``NotHeld``
        if this object does not lead.
        """
        self._present().leadership.resign()

    def _present(self) -> T:
        term = self._term
        if term is None or term.over.is_set() or not term.leadership.held:
            raise NotHeld(f"{self._path}: {self._identity!r} does not lead", path=self._path)
        return term

    @property
    def _stopping(self) -> bool:
        return self._stopped or (self._stop is not None and self._stop.is_set())

    def _check_run(self, on_error: str) -> None:
        """Raise what forbids ``run``, but that it runs already."""
        if on_error not in {"retry", "raise"}:
            raise ValueError(f"on_error must be 'retry' or 'raise', not {on_error!r}")
        check_thread("run()")
        self._session.check_usable()

    def _begin_run(self) -> None:
        """Note that ``run`` has begun, unless that must not be."""
        if self._running:
            raise ZkLockError(
                f"{self._path}: this election runs already: make another object", path=self._path
            )
        if self._term is not None and not self._term.over.is_set():
            raise self._stuck(self._term)
        self._running = True

    def _handed_over(
        self, term: T, identity: str, chosen: Contender, limit: float | None
    ) -> Contender:
        """Return who leads next, after a transfer; ``limit`` is what was too short for it."""
        if limit is not None:
            raise NoAnswer(
                f"{self._path}: not handed over to {identity!r} within {limit:g} s, which goes on",
                path=self._path,
                token=term.leadership.token,
            )
        if term.candidacy.refused is not None:
            raise term.candidacy.refused
        if term.candidacy.handed_to is None:
            term.leadership.check()
        return term.candidacy.handed_to or chosen

    def _stuck(self, term: T) -> LeaderStuck:
        token = term.leadership.token
        return LeaderStuck(
            f"{self._path}: lead() with token {token} did not end within {self._grace:g} s of "
            f"being {self._ASKED}: no other term begins in this process; end it",
            path=self._path,
            token=token,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}{' leads' if self.is_leader else ''}>"

    def _candidacy(self) -> Candidacy:
        """Return a new member, not yet in the queue."""
        data = nodedata.NodeData(self._identity.encode(), payload=self._payload)
        return Candidacy(self._path, bytes(data), names.Kind.LATCH)

    def _attempt(
        self,
        candidacy: Candidacy,
        grant: type[GrantBase],
        on_lost: LostCallback | None,
        on_release_requested: Callable[[Any], object],
        owner: object = None,
    ) -> Attempt[Any]:
        """Return the attempt of a member to be elected."""
        return self._session.attempt(
            recipe.acquire(candidacy),
            recover=lambda: recipe.leave(candidacy),
            terms=Terms(
                self._path,
                self._identity,
                on_lost,
                on_release_requested=on_release_requested,
                grant=grant,
                owner=owner,
            ),
        )

    def _observation(self, feed: Feed, wake: Callable[[], object]) -> Attempt[None]:
        """Return an attempt that feeds every change of leader, and wakes who is to take it."""

        def tell(change: leaders.LeaderChange) -> None:
            feed.put(change)
            wake()

        return self._session.attempt(leaders.observe(self._path, tell))

    def _members(self) -> Recipe[list[Contender]]:
        return queries.contenders(self._path)

    def _leader(self) -> Recipe[Contender | None]:
        return queries.holder(self._path)


def member_identity(identity: Any) -> str:
    """Return a member's identity, or by default ``host:pid:`` and a random part."""
    default = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    return check_identity(identity) or default


def pause_after(
    failures: int,
    retry: tuple[float, float],
    between: Callable[[float, float], float] = random.uniform,
) -> float:
    """Return the seconds to wait after so many failures in a row: they double, up to a limit.

    Something between half of that and all of it, so that members do not fail in step.
    """
    first, longest = retry
    whole = min(longest, first * 2.0 ** min(failures - 1, 64))
    return between(whole / 2, whole)


def discard(attempt: Attempt[Any]) -> None:
    """Give back a leadership that came when nobody waited for it any more."""
    try:
        leadership = attempt.result()
    except BaseException:
        return  # there is none
    if leadership is not None:
        with contextlib.suppress(LockLost, NotHeld):
            leadership._end()


def _check_payload(payload: Any) -> bytes:
    if isinstance(payload, str):
        payload = payload.encode()
    if not isinstance(payload, bytes):
        raise TypeError(f"payload must be bytes or str, not {type(payload).__name__}")
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"payload must have at most {MAX_PAYLOAD} bytes, not {len(payload)}")
    return payload


def _check_seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not value > 0:
        raise ValueError(f"{name} must be above 0 seconds, not {value}")
    return float(value)


def check_retry(retry: Any) -> tuple[float, float]:
    """Return the first and the longest pause; ``TypeError`` or ``ValueError`` for others."""
    if not isinstance(retry, tuple | list) or len(retry) != 2:
        raise TypeError(f"retry must be a pair of seconds, (first, longest), not {retry!r}")
    first, longest = map(partial(_check_seconds, "retry"), retry)
    if not first <= longest < math.inf:
        raise ValueError(f"retry must be (first, longest) with first <= longest, not {retry}")
    return first, longest
