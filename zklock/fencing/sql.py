"""A guard for rows of a SQL database: SQLite, PostgreSQL, MariaDB and MySQL.

The mark is a row of the table that ``SqlGuard.ddl`` describes. It is locked and compared inside the
transaction that changes the data. Every transaction that passes writes a new random ``stamp`` into
the row, even with an equal token. Two transactions of one mark therefore always conflict, and each
is distinguishable.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from zklock._core.callbacks import check_callback, ran
from zklock.fencing._sql.errors import told
from zklock.fencing._sql.mark import (
    ATTEMPTS,
    Result,
    SqlFence,
    SqlMark,
    Work,
    is_retryable,
    pauses,
)
from zklock.fencing._sql.session import SqlSession, refuse_asynchronous
from zklock.fencing._sql.statements import TABLE, Dialect
from zklock.fencing.guard import Fenced
from zklock.token import FencingToken

__all__ = ["TABLE", "Dialect", "SqlFence", "SqlGuard", "is_retryable"]


class SqlGuard(SqlMark):
    """Fences what a transaction changes in a SQL database.

    ``connect()`` returns a new DB-API 2.0 connection, a new SQLAlchemy ``Connection`` or
    ``Session``, or a context manager that yields one. ``create_table``, ``create``, ``claim``,
    ``highest`` and ``run`` use it and close it. ``table`` is the table of the marks; make it with
    ``create_table``, or by a migration with the text of ``ddl``. ``dialect`` is ``sqlite``,
    ``postgresql``, or ``mysql``, which also stands for MariaDB. ``dialect`` and ``paramstyle``
    (PEP 249) are recognised for the common drivers and must be given for others.

    Not guaranteed:

    - What was read before ``advance`` in the same transaction is not fenced. Read what the change
      depends on after it.
    - What a ``Session`` with several engines writes by another one than that of
      ``session.connection()`` is not fenced. Pass the connection that writes to ``advance``.
    - MyISAM and other tables without transactions are not protected.
    - What a failover to an asynchronous replica takes back, mark and data alike, is not protected.
    """

    def create_table(self) -> None:
        """Make the table of the marks, once for each database; keep one that exists.

        Several processes may call it at the same time.
        """
        self._repeat(self._make_table)

    def create(self, connection: Any = None) -> None:
        """Make the mark, once; keep one that exists.

        With ``connection``, it becomes part of the transaction that is open there, for example the
        one that makes the resource itself.
        """
        if connection is not None:
            self._insert(self._on(connection))
        else:
            self._repeat(self._make_mark)

    def advance(self, connection: Any, token: Fenced) -> SqlFence:
        """Advance the mark inside the open transaction of ``connection``.

        Call it first in the transaction, then read and write, and commit. The row of the mark
        stays locked until then: a higher token waits, and a lower one is refused.
        ``connection`` is a DB-API connection, a SQLAlchemy ``Connection`` or ``Session``, or
        Django's ``connection``. The result may be used in ``with``: the end of the block checks
        that the transaction is still the same.

        Raises ``StaleToken``, ``LockLost`` or ``NotHeld`` for a grant that is over,
        ``GuardUnusable``, ``SnapshotTooOld``, or ``NoAnswer`` if the database cannot be asked.
        Raises ``TransactionEnded`` when the transaction has failed, or when an earlier ``advance``
        on this connection of SQLAlchemy has been undone. The driver's error is the cause;
        ``is_retryable`` tells a lost race from the rest. After any of these errors the transaction
        can only be rolled back: SQLAlchemy refuses a commit, and elsewhere a commit has nothing to
        commit. Raises ``ValueError`` for a connection that commits every
        statement by itself, because nothing would be atomic.
        """
        return self._advance_on(connection, token)

    def claim(self, token: Fenced, *, attempts: int = ATTEMPTS) -> None:
        """Advance the mark in a transaction of its own; see ``Guard.claim`` and ``run``."""
        self.run(token, lambda _: None, attempts=attempts)

    def run(
        self, token: Fenced, change: Callable[[Any], Result], *, attempts: int = ATTEMPTS
    ) -> Result:
        """Run ``change(connection)`` after ``advance`` in a transaction; commit, return its result.

        On a connection in autocommit mode, ``run`` begins the transaction. The database may end it
        because of a deadlock, a serialisation failure or a lock timeout. Then ``run`` tries all of
        it again, after a short random pause, up to ``attempts`` times in all. ``change`` must
        therefore do nothing but use the connection, and must not commit.

        Raises ``TransactionEnded``, and commits nothing more, if the transaction in which
        ``change`` began is over when ``change`` returns. Raises ``OutcomeUnknown`` if the
        connection is lost during the commit; the caller decides whether to repeat it. ``NoAnswer``:
        the database could not be asked, and nothing has happened. Errors of ``connect`` and
        ``change`` pass. An error that the commit reports, such as a deferred constraint, passes as
        well. So does an error from closing the connection after the commit: the change has happened
        then.
        """
        check_callback(False, "change", change)

        def work(session: SqlSession, _: Any) -> Result:
            result = change(session.connection)
            ran("change", result)
            return result

        return self._repeat(self._fenced(token, work), attempts)

    def highest(self) -> FencingToken | None:
        """Return the committed mark; ``None`` while no token has been seen."""
        return self._attempt(self._read_mark, [])

    def _repeat(self, work: Work[Result], attempts: int = ATTEMPTS) -> Result:
        left = pauses(attempts)
        while True:
            done: list[Result] = []
            try:
                return self._attempt(work, done)
            except Exception as error:
                if done or not is_retryable(error) or (pause := next(left, None)) is None:
                    raise
            time.sleep(pause)

    def _attempt(self, work: Work[Result], done: list[Result]) -> Result:
        failed: BaseException | None = None
        try:
            with contextlib.ExitStack() as stack:
                with told(self._resource):
                    connection = self._connect()
                    refuse_asynchronous(connection)
                    if hasattr(connection, "cursor") or hasattr(connection, "execute"):
                        connection = _closing(connection)
                    opened = stack.enter_context(connection)
                try:
                    self._try(self._on(opened), opened, work, done)
                except BaseException as error:
                    failed = error
                    raise
            if failed is not None:  # the context manager has swallowed it
                raise failed
            return done[0]
        finally:
            del failed  # else a cycle would keep the connection for as long as the error


@contextlib.contextmanager
def _closing(connection: Any) -> Iterator[Any]:
    try:
        yield connection
    except BaseException:
        with contextlib.suppress(Exception):  # some drivers' own, if the connection is lost
            connection.close()
        raise
    connection.close()
