"""Transactions of Django that a stale token cannot commit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from zklock.fencing import Fenced, SqlGuard


@contextlib.contextmanager
def fenced_atomic(token: Fenced, resource: str, *, using: str | None = None) -> Iterator[None]:
    """Run the block in ``transaction.atomic()``, unless the resource has seen a higher token.

    ``token`` is a ``FencingToken`` or a grant. ``resource`` names the mark, see ``create_mark()``.
    Read what the change depends on inside the block.

    Raises ``StaleToken``, ``LockLost`` and ``NotHeld`` for a grant that is over, ``GuardUnusable``,
    ``SnapshotTooOld`` and ``TransactionEnded`` as ``SqlGuard.advance`` does; nothing of the block
    is then committed. Inside another ``atomic()`` it sets no savepoint: after any error in the
    block the whole transaction can only be rolled back.
    """
    with transaction.atomic(using=using, savepoint=False), fence(token, resource, using=using):
        yield


@contextlib.contextmanager
def fence(token: Fenced, resource: str, *, using: str | None = None) -> Iterator[None]:
    """Fence the block inside ``transaction.atomic()``; the same as ``fenced_atomic()`` otherwise.

    Call it before anything is read. After ``StaleToken`` the innermost ``atomic()`` can only be
    rolled back, even if the error is caught: Django refuses further queries, and rolls back at its
    end. An ``atomic()`` around that one may go on, and is not fenced.

    Raises ``TransactionManagementError`` outside of ``atomic()``, since nothing would be one step
    there.
    """
    connection = _connection(using)
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError(
            f"{resource}: outside of transaction.atomic() the check and the change would be two "
            "steps: use fenced_atomic()"
        )
    with _guard(connection, resource).advance(connection, token):
        yield


def claim(token: Fenced, resource: str, *, using: str | None = None) -> None:
    """Shut out all lower tokens from now on, in a transaction of its own.

    Call it when the lock is granted. Otherwise an earlier holder may write late until the first
    write with the new token. Raises the errors of ``fenced_atomic()``.

    Inside ``atomic()`` it is a part of that transaction, and is undone if that is rolled back.
    """
    with fenced_atomic(token, resource, using=using):
        pass


def create_mark(resource: str, *, using: str | None = None) -> None:
    """Make the mark of a resource; keep one that exists. Call it once, best in a migration.

    Without its mark every write is refused (``GuardUnusable``): a mark that was lost must not let
    old tokens in.
    """
    connection = _connection(using)
    with transaction.atomic(using=using):
        _guard(connection, resource).create(connection)


def _connection(using: str | None) -> Any:
    return connections[using or DEFAULT_DB_ALIAS]


def _guard(connection: Any, resource: str) -> SqlGuard:
    return SqlGuard(lambda: contextlib.nullcontext(connection), resource)
