"""What guards raise if their store gives no answer, or refuses what they ask for themselves."""

from __future__ import annotations

from zklock.errors import GuardUnusable, NoAnswer, OutcomeUnknown


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
