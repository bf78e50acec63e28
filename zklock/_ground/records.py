"""What a log record says beside its text, for those who search logs by field."""

from __future__ import annotations

import logging
from typing import Protocol, TypeAlias

from zklock._ground.addresses import session_text
from zklock._ground.loss import LossReason
from zklock.token import FencingToken

log = logging.getLogger("zklock")

Fields: TypeAlias = dict[str, str | int | None]


class AnyGrant(Protocol):
    """What is known of a grant, whichever its front."""

    @property
    def lock_path(self) -> str: ...

    @property
    def token(self) -> FencingToken: ...

    @property
    def session_id(self) -> int: ...

    @property
    def identity(self) -> str: ...


def log_fields(
    grant: AnyGrant | None = None,
    *,
    path: str | None = None,
    token: FencingToken | None = None,
    session_id: int | None = None,
    identity: str | None = None,
    shard: int | str | None = None,
    resource: str | None = None,
    reason: LossReason | None = None,
) -> Fields:
    """Return the fields of a log record, to be passed as ``extra``; for records of yours, too.

    All log records of zklock have them. ``log.info("written", extra=log_fields(grant))`` gives a
    record of yours the same, so that one search finds both. A ``grant`` fills in ``path``,
    ``token``, ``session_id`` and ``identity``; what is passed beside it counts more.

    Every field is there, so that a format may name it; one that is not known is ``None``. The names
    are ``zklock_path``, ``zklock_token`` (``str(token)``), ``zklock_session`` (hexadecimal),
    ``zklock_identity``, ``zklock_shard`` (a number or a name), ``zklock_resource`` (a guard's name
    for it), and ``zklock_reason`` (the name of a ``LossReason`` in small letters). None is secret:
    the id of a session is of no use without its password, which no record has.
    """
    if grant is not None:
        path = grant.lock_path if path is None else path
        token = grant.token if token is None else token
        session_id = grant.session_id if session_id is None else session_id
        identity = grant.identity if identity is None else identity
    return {
        "zklock_path": path,
        "zklock_token": None if token is None else str(token),
        "zklock_session": session_text(session_id) if session_id else None,
        "zklock_identity": identity,
        "zklock_shard": shard,
        "zklock_resource": resource,
        "zklock_reason": None if reason is None else reason.name.lower(),
    }


class Logs:
    """What logs with fields of its own. Each text comes after the path."""

    def _fields(self) -> Fields:
        return log_fields()

    def _say(
        self, level: int, text: str, *what: object, error: BaseException | None = None
    ) -> None:
        """Log at a level of ``logging``; ``error`` with its traceback."""
        fields = self._fields()
        log.log(
            level,
            f"%s: {text}",
            fields["zklock_path"],
            *what,
            exc_info=error,
            extra=fields,
            stacklevel=2,
        )
