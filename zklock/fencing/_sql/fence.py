"""One transaction's hold on the mark."""

from __future__ import annotations

from types import TracebackType

from zklock.errors import TransactionEnded
from zklock.fencing._sql import codes
from zklock.fencing._sql.doubt import doubtful
from zklock.fencing._sql.session import Session
from zklock.fencing._sql.told import ended, told


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
        with told(self._resource):
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
            with told(self._resource):
                self._session.release(self._savepoint)
        except BaseException as failure:
            if doubtful(failure):
                self._session.discard(failure)
            self._session.refuse(over)
            if not isinstance(failure, Exception):
                raise
            if kind is not None:
                return
            if not isinstance(failure, TransactionEnded) and (
                self._session.over or codes.failed_transaction(failure)
            ):
                raise over from failure
            raise
