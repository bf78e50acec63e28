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
from typing import Any

from zklock import leaders, names, nodedata, queries, recipe
from zklock.attempt import Attempt
from zklock.base import check_identity
from zklock.candidacy import Candidacy
from zklock.connection import Client
from zklock.effects import Recipe
from zklock.errors import LockLost, NotHeld
from zklock.grant import GrantBase, LostCallback, Terms
from zklock.leaders import Feed
from zklock.queries import Contender
from zklock.session import session_of

MAX_PAYLOAD = 16384
"""Bytes that a payload may have."""


class Campaign:
    """The part of an election that does not wait; see ``LeaderElection`` for the arguments."""

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
        self._identity = (
            check_identity(identity)
            or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        )
        self._payload = _check_payload(payload)
        for name, callback in (("on_elected", on_elected), ("on_lost", on_lost)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{name} must be callable, not {type(callback).__name__}")
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._grace = _check_seconds("grace", grace)
        self._retry = check_retry(retry)
        self._session = session_of(client, session_timeout, lease_fraction)
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
