"""Turns what a driver says of the guard's own statements into errors of zklock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from zklock.errors import SnapshotTooOld, TransactionEnded, ZkLockError
from zklock.fencing._sql import codes
from zklock.fencing._sql.recognise import of_a_library
from zklock.fencing._told import in_doubt, refusing, unasked


@contextlib.contextmanager
def told(resource: str, *, commit: bool = False) -> Iterator[None]:
    """Raise an error of zklock for an error of the driver, with that as its cause.

    ``commit``: the block commits. What the database then says of the user's data passes. So does
    what is no error of a driver.
    """
    try:
        yield
    except Exception as error:
        if (known := _known(resource, error, commit)) is None:
            raise
        raise known from error


def ended(resource: str) -> TransactionEnded:
    """Return the error for a transaction that is not the one of ``advance`` any more."""
    return TransactionEnded(
        f"{resource}: the transaction of advance() has ended or failed: later statements were "
        "rolled back, or committed without the check; look for an ignored error, a commit or "
        "rollback, or DDL",
        resource=resource,
    )


def _known(resource: str, error: Exception, commit: bool) -> ZkLockError | None:
    outside = isinstance(error, OSError) and not (commit and isinstance(error, TimeoutError))
    if isinstance(error, ZkLockError) or not (of_a_library(error) or outside):
        return None
    if codes.lost_race(error):
        return SnapshotTooOld(
            f"{resource}: the database ended this transaction in favour of another one, or the "
            "mark stayed locked: roll back, and repeat the whole transaction with advance first",
            resource=resource,
        )
    if codes.failed_transaction(error) or codes.no_savepoint(error):
        return ended(resource)
    if codes.unanswered(error):
        return in_doubt(resource) if commit else unasked(resource)
    return None if commit else refusing(resource, error)
