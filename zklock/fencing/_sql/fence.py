"""One transaction's hold on the mark, and what is said when the transaction has ended."""

from __future__ import annotations

from types import TracebackType

from zklock.errors import TransactionEnded
from zklock.fencing._sql import codes
from zklock.fencing._sql.doubt import doubtful
from zklock.fencing._sql.session import Session


class SqlFence:
    """The result of ``SqlGuard.advance``: one transaction's hold on the mark.

    In ``with``, the end of the block raises ``TransactionEnded`` in two cases: the transaction in
    which the block began is over, or it was rolled back to a point before the block. Commit after
    the block.
    """

    def __init__(self, resource: str, session: Session) -> None:
        self._resource = resource
        self._session = session
        self._savepoint = ""

    def __enter__(self) -> SqlFence:
        self._savepoint = self._session.savepoint()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        over = ended(self._resource)
        if error is not None and doubtful(error):
            self._session.discard(error)
            self._session.refuse(over)
            return
        try:
            if kind is None:
                self._session.flush()
            # The database forgets the savepoint with the transaction, however that has ended.
            self._session.release(self._savepoint)
        except Exception as failure:
            self._session.refuse(over)
            if kind is not None:
                return
            if (
                self._session.over
                or codes.no_savepoint(failure)
                or codes.failed_transaction(failure)
            ):
                raise over from failure
            raise


def ended(resource: str) -> TransactionEnded:
    """Return the error for a transaction that is not the one of ``advance`` any more."""
    return TransactionEnded(
        f"{resource}: the transaction in which advance() was called is over or has failed; what "
        "came after it is rolled back, or, if the connection commits each statement by itself "
        "(autocommit, or psycopg2 after a COMMIT sent as text), committed without the check: look "
        "for an error that was caught and ignored (a deadlock rolls everything back), for a "
        "commit or rollback, and for a statement that commits by itself, such as DDL",
        resource=resource,
    )
