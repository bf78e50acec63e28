"""What both guards for SQL databases do, written once: those for threads and for asyncio.

Nothing here awaits: SQLAlchemy runs it for asyncio, too. Each front has two methods of its own, one
that opens a session for the work, and the loop of the attempts.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from zklock.errors import GuardUnusable, SnapshotTooOld, ZkLockError
from zklock.fencing._sql import statements
from zklock.fencing._sql.errors import Says, doubtful, ended, says, told
from zklock.fencing._sql.session import AlchemySession, SqlSession, open_session, render
from zklock.fencing._sql.statements import TABLE, Dialect
from zklock.fencing.guard import Fenced, admit, missing, resource_name, token_of, unreadable
from zklock.token import FencingToken

Result = TypeVar("Result")

Work: TypeAlias = Callable[[SqlSession, Any], Result]
"""Called with the session, and with the connection as the user knows it; it never awaits."""

ATTEMPTS = 10


def pauses(attempts: int) -> Iterator[float]:
    """Return the seconds to wait before each attempt but the first."""
    if attempts < 1:
        raise ValueError(f"attempts must be at least 1, not {attempts}")
    return (random.uniform(0, 0.01 * 2 ** min(attempt, 6)) for attempt in range(1, attempts))


class SqlFence:
    """The result of ``SqlGuard.advance``: one transaction's hold on the mark.

    In ``with``, the end of the block raises ``TransactionEnded`` in two cases: the transaction in
    which the block began is over, or it was rolled back to a point before the block. Commit after
    the block.
    """

    def __init__(self, resource: str, session: SqlSession) -> None:
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
            return self._session.refuse(error, over)
        try:
            # The database forgets the savepoint with the transaction, however that has ended.
            try:
                with told(self._resource):
                    self._session.release(self._savepoint)
            except GuardUnusable as failure:
                raise over from failure.__cause__
        except BaseException as failure:
            self._session.refuse(failure, over)
            if kind is None or not isinstance(failure, Exception):
                raise
        return None


class SqlMark:
    """The row of a resource, and what is done with it."""

    def __init__(
        self,
        connect: Callable[[], Any],
        resource: str,
        *,
        table: str = TABLE,
        dialect: Dialect | None = None,
        paramstyle: str | None = None,
    ) -> None:
        if not callable(connect) or hasattr(connect, "cursor"):
            raise TypeError(
                "connect must be a function that returns a connection, not "
                f"{type(connect).__name__}: for SQLAlchemy pass engine.connect"
            )
        self._connect = connect
        self._resource = resource_name(resource)
        self._table = statements.table_name(table)
        self._dialect, self._paramstyle = dialect, paramstyle
        if dialect is not None:
            self.ddl(dialect)
        if paramstyle is not None:
            render("", {}, paramstyle)

    @staticmethod
    def ddl(dialect: Dialect, *, table: str = TABLE) -> str:
        """Return the statement that makes the table of the marks, for a migration."""
        if dialect not in statements.DDL:
            raise ValueError(f"unknown dialect {dialect!r}: one of {', '.join(statements.DDL)}")
        return statements.DDL[dialect].format(table=statements.table_name(table))

    @property
    def resource(self) -> str:
        """The name of the resource: the key of its row."""
        return self._resource

    def _try(
        self, session: SqlSession, connection: Any, work: Work[Result], done: list[Result]
    ) -> None:
        """Do the work, and put its result into ``done``: then it must not be done again."""
        try:
            done.append(work(session, connection))
        except BaseException as error:
            session.end(error)
            raise

    # What is done in a session; each is a ``Work``.

    def _make_table(self, session: SqlSession, _: Any, *, again: bool = True) -> None:
        try:
            with told(self._resource):
                session.run(self.ddl(session.dialect, table=self._table))
                session.commit()
        except GuardUnusable:
            if not again:
                raise
            # PostgreSQL looks first and creates later: another transaction may have come between.
            session.rollback()
            self._make_table(session, _, again=False)

    def _make_mark(self, session: SqlSession, _: Any) -> None:
        self._insert(session)
        with told(self._resource, commit=True):
            session.commit()

    def _read_mark(self, session: SqlSession, _: Any) -> FencingToken | None:
        with told(self._resource):
            mark, _ = self._read(session, statements.SELECT)
            session.rollback()
        return mark

    def _fenced(self, token: Fenced, change: Work[Result]) -> Work[Result]:
        """Return the work that advances the mark, and does ``change`` in the same transaction."""
        given = token_of(token)

        def work(session: SqlSession, connection: Any) -> Result:
            with told(self._resource):
                mark, stamp = self._lock(session)
                if not session.in_transaction():
                    session.begin()
                    mark, stamp = self._lock(session)
                self._advance(session, given, mark, stamp)
            with SqlFence(self._resource, session):
                result = change(session, connection)
            with told(self._resource, commit=True):
                session.commit()
            return result

        return work

    def _advance_on(self, connection: Any, token: Fenced) -> SqlFence:
        """Advance the mark inside the open transaction of ``connection``, which is synchronous."""
        session = self._on(connection)
        try:
            with told(self._resource):
                given = token_of(token)
                mark, stamp = self._lock(session)
                if begun := session.in_transaction():
                    self._expect(session, self._advance(session, given, mark, stamp), stamp)
        except BaseException as error:
            # After any error: a caller that ignores it and commits would not be fenced.
            refusal = error if isinstance(error, ZkLockError) else ended(self._resource)
            session.refuse(error, refusal)
            raise
        if not begun:
            raise ValueError(
                f"{self._resource}: the connection is in autocommit mode: begin a transaction, so "
                "that the check and the change are one step"
            )
        return SqlFence(self._resource, session)

    def _insert(self, session: SqlSession) -> None:
        with told(self._resource):
            session.run(self._sql(statements.INSERT[session.dialect]), resource=self._resource)

    def _lock(self, session: SqlSession) -> tuple[FencingToken | None, int]:
        """Lock the mark until the transaction ends; return its newest state, with its stamp."""
        if session.dialect == "sqlite":
            session.run(self._sql(statements.SQLITE_LOCK), resource=self._resource)
            return self._read(session, statements.SELECT)
        return self._read(session, statements.SELECT_LOCKED)

    def _advance(
        self, session: SqlSession, token: FencingToken, mark: FencingToken | None, stamp: int
    ) -> int:
        """Let the token pass, or refuse it; return the stamp that identifies this transaction."""
        admit(self._resource, token, mark)
        # InnoDB locks the newest row, but reads from a snapshot that may be older. The other
        # databases refuse to lock a row that is newer than the transaction's snapshot.
        if session.dialect == "mysql" and self._seen(session) != stamp:
            raise SnapshotTooOld(
                f"{self._resource}: the transaction read before another one changed the guarded "
                "data, and would read stale data: roll back, call advance before anything else, "
                "and read after it",
                resource=self._resource,
                token=token,
            )
        made = secrets.randbits(62)
        session.run(
            self._sql(statements.UPDATE),
            resource=self._resource,
            epoch=token.epoch,
            sequence=token.sequence,
            stamp=made,
        )
        return made

    def _expect(self, session: SqlSession, made: int, found: int) -> None:
        """Make SQLAlchemy commit only if the mark is still as this transaction has left it."""
        if not isinstance(session, AlchemySession):
            return
        checks, mark = session.watch.checks, (self._table, self._resource)
        if mark in checks and checks[mark][0] != found:
            raise ended(self._resource)

        def check() -> None:
            with told(self._resource):
                if self._lock(session)[1] != made:
                    raise ended(self._resource)

        checks[mark] = made, check

    def _seen(self, session: SqlSession) -> int | None:
        rows = session.run(self._sql(statements.SELECT), resource=self._resource)
        return int(rows[0][2]) if rows else None

    def _read(self, session: SqlSession, statement: str) -> tuple[FencingToken | None, int]:
        where = f"table {self._table}"
        rows = session.run(self._sql(statement), resource=self._resource)
        if not rows:
            raise missing(self._resource, where)
        epoch, sequence, stamp = rows[0]
        try:
            return None if epoch == sequence == -1 else FencingToken(epoch, sequence), stamp
        except (TypeError, ValueError):
            raise unreadable(self._resource, where, (epoch, sequence)) from None

    def _sql(self, statement: str) -> str:
        return statement.format(table=self._table)

    def _on(self, connection: Any) -> SqlSession:
        with told(self._resource):
            return open_session(connection, self._dialect, self._paramstyle)


def is_retryable(error: BaseException) -> bool:
    """Tell whether the error is a lost race, so that the whole transaction may be repeated.

    A lost race is a deadlock, a serialisation failure or a lock timeout: SQLSTATE 40001,
    40P01 and 55P03; the errors 1020, 1205 and 1213 of MariaDB and MySQL; BUSY of SQLite in all its
    forms; and ``SnapshotTooOld``.
    """
    return isinstance(error, SnapshotTooOld) or says(error) is Says.LOST_RACE
