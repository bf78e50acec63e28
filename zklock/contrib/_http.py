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


class Bearer:
    """Puts the token of a grant into requests, and tells what a refusal of it means."""

    def __init__(self, grant: zklock.Grant | aio.Grant, header: str) -> None:
        if not isinstance(grant, zklock.Grant | aio.Grant):
            raise TypeError(f"grant must be that of one lock, not {type(grant).__name__}")
        self._grant = grant
        self._header = header

    def headers(self) -> dict[str, str]:
        """Return what a request of the holder carries; ``LockLost`` once the lease has lapsed."""
        self._grant.check()
        return {self._header: str(self._grant.token)}

    @staticmethod
    def refused(status: int, conditions: Iterable[str]) -> bool:
        """Tell whether the token is refused; ``conditions``: names of the sent headers."""
        if status != HTTPStatus.PRECONDITION_FAILED:
            return False
        return not _CONDITIONS & {name.lower() for name in conditions}

    def refusal(
        self, method: str, resource: str, said: str, *, again: bool = False
    ) -> StaleToken | OutcomeUnknown:
        """Return the error to raise; ``again``: the request had been sent before."""
        grant, said = self._grant, said.strip()[:_TOLD]
        if again:
            return OutcomeUnknown(
                f"{method} {resource} refused token {grant.token} when the request was repeated: "
                "the first one may have taken effect; read, and decide. The grant of "
                f"{grant.lock_path} is over; stop its work and acquire the lock again. The service "
                f"says: {said}",
                resource=resource,
                token=grant.token,
                path=grant.lock_path,
            )
        return StaleToken(
            f"{method} {resource} refused token {grant.token} and changed nothing: the grant of "
            f"{grant.lock_path} is over; stop its work and acquire the lock again. The service "
            f"says: {said}",
            resource=resource,
            token=grant.token,
            highest=None,
            path=grant.lock_path,
        )
