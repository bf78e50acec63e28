"""What every guard has in common: its public face, its arguments, its refusals.

A guard keeps a *mark* with the resource: the highest token that the resource has seen. A token
below the mark is refused. A token at or above the mark advances it and lets the change happen, in
one atomic step of the store. Only an explicit ``create()`` makes the mark. A mark that is missing
later was therefore lost, and the guard refuses everything. It does not start again from nothing.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

from zklock._ground.clock import clock
from zklock._telemetry import subscriptions
from zklock._telemetry.events import StaleTokenRefused
from zklock.errors import GuardUnusable, LockLost, NoAnswer, OutcomeUnknown, StaleToken
from zklock.token import FencingToken

__all__ = [
    "NO_TOKEN",
    "admit",
    "missing",
    "parse_mark",
    "resource_name",
    "stale",
    "token_of",
    "unreadable",
]


@runtime_checkable
class Granted(Protocol):
    """Anything that carries a fencing token, above all a ``Grant``."""

    @property
    def token(self) -> FencingToken:
        """The token of the grant. It stays the same after the grant is over."""


NO_TOKEN = "none"
"""The mark before the first token. It is not the empty text: a truncated file looks like that."""


Fenced: TypeAlias = FencingToken | Granted
"""What guards take: a token, or what carries one, such as a grant."""


@runtime_checkable
class Guard(Protocol):
    """The part that all guards share; each store has its own form of the fenced write."""

    @property
    def resource(self) -> str:
        """The name that errors give to the resource."""

    def create(self) -> None:
        """Make the mark, once in the life of the resource; keep one that exists."""

    def claim(self, token: Fenced) -> None:
        """Advance the mark to ``token`` without another change.

        Call it right after the acquisition: it shuts out every earlier holder before the new
        holder's first write. Raises ``StaleToken`` for a token below the mark and
        ``GuardUnusable`` when the mark is missing or unreadable. A grant that is over is refused
        before the store is asked: ``LockLost``, or ``NotHeld`` after a release. May be repeated.
        """

    def highest(self) -> FencingToken | None:
        """Return the mark; ``None`` while no token has been seen."""


def token_of(value: Fenced) -> FencingToken:
    """Return the token that a guard was given; call it before the store is asked.

    Raises ``TypeError`` for a value that carries no token. A grant whose ``held`` is false is
    refused by its own ``check()``: ``LockLost``, or ``NotHeld`` after a release. A bare token says
    nothing of its grant.
    """
    token = carried_by(value)
    if token is not value and not getattr(value, "held", True):
        if (check := getattr(value, "check", None)) is not None:
            check()
        raise LockLost(
            f"token {token} is not held any more: stop its work and acquire the lock again",
            token=token,
        )
    return token


def carried_by(value: Fenced) -> FencingToken:
    """Return the token of ``value``, held or not; ``TypeError`` if it carries none."""
    if isinstance(value, FencingToken):
        return value
    token = getattr(value, "token", None)
    if isinstance(token, FencingToken):
        return token
    raise TypeError(
        f"a guard takes a FencingToken or a grant, not {type(value).__name__}: "
        "a bare sequence number restarts when the lock's parent znode is re-created"
    )


def resource_name(value: str) -> str:
    """Return ``value`` if it can name a resource, else raise ``TypeError`` or ``ValueError``."""
    if not isinstance(value, str):
        raise TypeError(f"the resource's name must be a str, not {type(value).__name__}")
    if not 0 < len(value) <= 255 or not value.isprintable() or value != value.strip():
        raise ValueError(
            "the resource's name must be 1 to 255 printable characters without spaces around "
            f"them, not {value!r}"
        )
    return str.__str__(value)  # a member of an enum may be formatted as something else


def stale(resource: str, token: FencingToken, highest: FencingToken) -> StaleToken:
    """Return the error that refuses ``token``; telemetry is told of the refusal."""
    refused(resource, token, highest)
    return StaleToken(
        f"{resource}: token {token} is stale, {highest} has been seen: this grant is over; stop "
        "its work and acquire the lock again",
        resource=resource,
        token=token,
        highest=highest,
    )


def refused(resource: str, token: FencingToken, highest: FencingToken | None) -> None:
    """Tell telemetry that a token was refused."""
    if subscriptions.hooks:
        subscriptions.emit(
            StaleTokenRefused(at=clock(), resource=resource, token=token, highest=highest)
        )


def missing(resource: str, where: str) -> GuardUnusable:
    """Return the error for a mark that is not there."""
    return GuardUnusable(
        f"{resource}: no mark at {where}, and every write is refused: call create() once when the "
        "resource is made; if that was done, find out why the mark is gone before you recreate it",
        resource=resource,
    )


def unreadable(resource: str, where: str, found: object) -> GuardUnusable:
    """Return the error for a mark that is no token."""
    return GuardUnusable(
        f"{resource}: the mark at {where} is not a token but {found!r:.60}, and every write is "
        "refused: find out who changed it, and restore it",
        resource=resource,
    )


def parse_mark(resource: str, where: str, text: bytes | str) -> FencingToken | None:
    """Read a mark stored as text; before the first token that text is ``NO_TOKEN``."""
    try:
        decoded = text.decode("ascii") if isinstance(text, bytes) else text
        return None if decoded == NO_TOKEN else FencingToken.parse(decoded)
    except ValueError:
        raise unreadable(resource, where, text) from None


def admit(resource: str, token: FencingToken, mark: FencingToken | None) -> bool:
    """Compare ``token`` with the mark: raise ``StaleToken``, or say whether the mark advances."""
    if mark is not None and token < mark:
        raise stale(resource, token, mark)
    return token != mark


def refusing(resource: str, error: Exception) -> GuardUnusable:
    """Return the error for a store that refuses what a guard asks for itself."""
    return GuardUnusable(
        f"{resource}: the store rejects the guard's requests, and every write is refused: fix "
        f"what it reports: {error!s:.200}",
        resource=resource,
    )


def unasked(resource: str) -> NoAnswer:
    """Return the error for a store that has given no answer, and has changed nothing."""
    return NoAnswer(
        f"{resource}: the store is unreachable, or its connection was lost: nothing has changed; "
        "roll back your own transaction, if any, and try again"
    )


def in_doubt(resource: str) -> OutcomeUnknown:
    """Return the error for a change to which no answer has come."""
    return OutcomeUnknown(
        f"{resource}: no answer came to the change: it may have happened, and may still happen "
        "unless the token has become stale: claim, read, and decide",
        resource=resource,
    )
