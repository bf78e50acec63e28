"""The one session of each client."""

from __future__ import annotations

import math

from zklock._core.holdings import handler_error
from zklock._core.lease import DEFAULT_FRACTION
from zklock._core.session import Session
from zklock._ground.numbers import check_number
from zklock._shell.client import Kazoo, check_client


def session_of(
    client: Kazoo,
    session_timeout: float | None = None,
    lease_fraction: float | None = None,
) -> Session:
    """Return the session of this client.

    Raises ``TypeError``, ``ValueError``, ``ClientUnusable`` if the client or an argument is wrong.
    ``session_timeout`` is checked, and has no effect: zklock sees the negotiated one.
    """
    check_client(client)
    for name, value in (("session_timeout", session_timeout), ("lease_fraction", lease_fraction)):
        if value is None:
            continue
        check_number(name, value, "a number", lambda it: 0 < it < math.inf, "a positive number")
    if lease_fraction is not None and not 0.3 <= lease_fraction <= 0.75:
        raise ValueError(f"lease_fraction must be in 0.3 … 0.75, not {lease_fraction}")
    session: Session = client.handler.session
    if session.interrupted:
        raise handler_error()
    known = session.step(session.settle, lease_fraction or DEFAULT_FRACTION)
    if lease_fraction not in (None, known):
        raise ValueError(
            f"all locks of one client share one lease: this client's has lease_fraction={known}"
        )
    return session
