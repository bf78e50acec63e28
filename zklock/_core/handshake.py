"""How long a session is believed in while a handshake has no answer. Pure."""

from __future__ import annotations

UNANSWERED_FRACTION = 1 / 6
UNANSWERED_SECONDS = 1.0


def unanswered(timeout: float) -> float:
    """Return the seconds for which a session is believed in after an unanswered handshake.

    ``timeout`` is the session timeout. The result is a sixth of it, but at least 1 s. Under 3 s it
    is a third of it. It is an assumption that no server gives the session less.
    """
    return max(UNANSWERED_FRACTION * timeout, min(UNANSWERED_SECONDS, timeout / 3))
