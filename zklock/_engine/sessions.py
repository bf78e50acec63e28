"""The one session of each client, made when it is first asked for."""

from __future__ import annotations

import math
import os
import weakref

from zklock._engine.lease import DEFAULT_FRACTION, LeaseSettings
from zklock._engine.runtime import Runtime
from zklock._engine.session import Session, handler_error
from zklock._ground.mutexes import ReentrantMutex, owned_by_me
from zklock._ground.numbers import check_number
from zklock._kazoo.client import Kazoo, check_client

_runtimes: weakref.WeakKeyDictionary[Kazoo, weakref.ref[Runtime]] = weakref.WeakKeyDictionary()
_sessions: weakref.WeakKeyDictionary[Kazoo, weakref.ref[Session]] = weakref.WeakKeyDictionary()
_opening = ReentrantMutex()
_is_opening = owned_by_me(_opening)


def run_on(client: Kazoo, runtime: Runtime) -> None:
    """Have the session of this client run on another clock; call it before the first lock.

    The caller keeps the runtime: it may refer to the client, which is to be forgotten some day.
    """
    _runtimes[client] = weakref.ref(runtime)


def session_of(
    client: Kazoo,
    session_timeout: float | None = None,
    lease_fraction: float | None = None,
) -> Session:
    """Return the session of this client; it is made at the first call.

    Raises ``TypeError``, ``ValueError``, ``ClientUnusable`` if the client or an argument is wrong.
    """
    check_client(client)
    for name, value in (("session_timeout", session_timeout), ("lease_fraction", lease_fraction)):
        if value is None:
            continue
        check_number(name, value, "a number", lambda it: 0 < it < math.inf, "a positive number")
    if lease_fraction is not None and not 0.3 <= lease_fraction <= 0.75:
        raise ValueError(f"lease_fraction must be in 0.3 … 0.75, not {lease_fraction}")
    if _is_opening():
        raise handler_error()
    with _opening:
        found = _sessions.get(client)
        session = found() if found is not None else None
        if session is None:
            settings = LeaseSettings(session_timeout, lease_fraction or DEFAULT_FRACTION)
            runtime = _runtimes.get(client, lambda: None)()
            session = Session(client, settings, runtime)
            _sessions[client] = weakref.ref(session)
            return session
        settings = session.settings
        if session_timeout not in (None, settings.session_timeout) or lease_fraction not in (
            None,
            settings.fraction,
        ):
            raise ValueError(
                "all locks of one client share one lease: this client's has "
                f"session_timeout={settings.session_timeout} and "
                f"lease_fraction={settings.fraction}"
            )
        return session


def _after_fork() -> None:
    global _opening, _is_opening  # noqa: PLW0603
    _opening = ReentrantMutex()
    _is_opening = owned_by_me(_opening)
    for found in list(_sessions.values()):
        session = found()
        if session is not None:
            session.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
