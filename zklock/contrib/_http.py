"""What the clients of a fenced HTTP service share: the header, and what its refusal means."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

import zklock
from zklock import aio
from zklock.errors import OutcomeUnknown, StaleToken

HEADER = "Fencing-Token"

# RFC 9110 section 13.1: with one of these, a 412 may be the answer to it.
_CONDITIONS = {"if-match", "if-none-match", "if-unmodified-since"}

_TOLD = 200


def bearing(grant: zklock.Grant | aio.Grant, header: str) -> dict[str, str]:
    """Return what a request of the holder carries; ``LockLost`` once the lease has lapsed."""
    grant.check()
    return {header: str(grant.token)}


def refuses(status: int, conditions: Iterable[str]) -> bool:
    """Tell whether this is the refusal of a token; ``conditions``: names of the sent headers."""
    if status != HTTPStatus.PRECONDITION_FAILED:
        return False
    return not _CONDITIONS & {name.lower() for name in conditions}


def stale(
    grant: zklock.Grant | aio.Grant, method: str, host: str, path: str, said: str
) -> StaleToken:
    """Return the error to raise for a refusal."""
    resource = f"{host}{path}"
    return StaleToken(
        f"{method} {resource} refused token {grant.token} and changed nothing: the grant of "
        f"{grant.lock_path} is over; stop its work and acquire the lock again. The service says: "
        f"{said.strip()[:_TOLD]}",
        resource=resource,
        token=grant.token,
        highest=None,
        path=grant.lock_path,
    )


def unknown(
    grant: zklock.Grant | aio.Grant, method: str, host: str, path: str, said: str
) -> OutcomeUnknown:
    """Return the error to raise for a refusal of what had been sent before."""
    resource = f"{host}{path}"
    return OutcomeUnknown(
        f"{method} {resource} refused token {grant.token} when the request was repeated: the "
        f"first one may have taken effect; read, and decide. The grant of {grant.lock_path} is "
        f"over; stop its work and acquire the lock again. The service says: {said.strip()[:_TOLD]}",
        resource=resource,
        token=grant.token,
        path=grant.lock_path,
    )
