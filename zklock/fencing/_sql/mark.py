"""What both guards for SQL databases do, written once: those for threads and for asyncio."""

from __future__ import annotations

import contextlib
import random
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar, cast

from zklock.errors import GuardUnusable, SnapshotTooOld, ZkLockError
from zklock.fencing._sql import codes, statements
from zklock.fencing._sql.doubt import doubtful
from zklock.fencing._sql.fence import SqlFence
from zklock.fencing._sql.session import AlchemySession, Session, open_session
from zklock.fencing._sql.statements import TABLE, Dialect
from zklock.fencing._sql.told import ended, told
from zklock.fencing.guard import Fenced, admit, missing, resource_name, token_of, unreadable
from zklock.token import FencingToken

Result = TypeVar("Result")

Work: TypeAlias = Callable[[Session, Any], Result]
"""Called with the session, and with the connection as the user knows it; it never awaits."""

ATTEMPTS = 10


class Tried(Generic[Result]):
    """How an attempt has ended.

    It carries an error past the end of a coroutine, which would turn a ``StopIteration`` of the
    user's function into a ``RuntimeError``. ``done``: the work was done all the same, and must not
    be done again.
    """

    def __init__(
        self,
        value: Result | None = None,
        error: BaseException | None = None,
        *,
        done: bool = False,
    ) -> None:
        self._value = value
        self.error = error
        self.done = done

    def result(self) -> Result:
        """Return the value, or raise the error."""
        if self.error is None:
            return cast("Result", self._value)
        error, self.error = self.error, None
        raise error


class SqlMark(ABC):
    """The row of a resource, and what is done with it.

    What happens in a transaction is plain text, which SQLAlchemy can also run for asyncio. What
    comes around it is a script: it waits only through ``_attempt`` and ``_pause``.
    """

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
        self._dialect = dialect
        self._paramstyle = paramstyle

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

    @abstractmethod
    async def _attempt(self, work: Work[Result]) -> Tried[Result]:
        """Open a session, let ``self._try`` do the work in it, and close it."""

    @abstractmethod
    async def _pause(self, seconds: float) -> None:
        """Wait."""

    def _try(self, session: Session, connection: Any, work: Work[Result]) -> Tried[Result]:
        try:
            return Tried(work(session, connection), done=True)
        except BaseException as error:
            # Whatever prevents the rollback from being sent ends the transaction, too.
            with contextlib.suppress(Exception):
                session.end(error)
            return Tried(error=error)

    async def _repeat(
        self,
        work: Work[Result],
        attempts: int = ATTEMPTS,
        also: Callable[[BaseException], bool] = lambda _: False,
    ) -> Tried[Result]:
        for attempt in range(1, attempts):
            tried = await self._attempt(work)
            if tried.error is None or tried.done:
                return tried
            if not (is_retryable(tried.error) or also(tried.error)):
                return tried
            await self._pause(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
        return await self._attempt(work)

    async def _create_table(self) -> Tried[None]:
        def make(session: Session, _: Any) -> None:
            with self._told():
                session.run(self.ddl(session.dialect, table=self._table))
                session.commit()

        return await self._repeat(make, also=codes.made_meanwhile)

    async def _create(self) -> Tried[None]:
        def make(session: Session, _: Any) -> None:
            self._insert(session)
            with self._told(commit=True):
                session.commit()

        return await self._repeat(make)

    async def _run(
        self, token: Fenced, change: Work[Result], attempts: int = ATTEMPTS
    ) -> Tried[Result]:
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {attempts}")
        given = token_of(token)

        def work(session: Session, connection: Any) -> Result:
            with self._told():
                mark, stamp = self._lock(session)
                if not session.in_transaction():
                    session.begin()
                    mark, stamp = self._lock(session)
                self._advance(session, given, mark, stamp)
            with SqlFence(self._resource, session):
                result = change(session, connection)
            with self._told(commit=True):
                session.commit()
            return result

        return await self._repeat(work, attempts)

    async def _highest(self) -> Tried[FencingToken | None]:
        def read(session: Session, _: Any) -> FencingToken | None:
            with self._told():
                mark, _ = self._read(session, statements.SELECT)
                session.rollback()
            return mark

        return await self._attempt(read)

    def _advance_on(self, connection: Any, given: FencingToken) -> SqlFence:
        """Advance the mark inside the open transaction of ``connection``, which is synchronous."""
        session = self._on(connection)
        # MySQL's refusal begins a transaction: it must not do so on a connection without one.
        first = session.dialect == "mysql"
        try:
            with self._told():
                begun = first and session.in_transaction()
                if begun or not first:
                    mark, stamp = self._lock(session)
                    begun = begun or session.in_transaction()
                if begun:
                    self._expect(session, self._advance(session, given, mark, stamp), stamp)
        except BaseException as error:
            # After any error: a caller that ignores it and commits would not be fenced.
            if doubtful(error):
                session.discard(error)
            session.refuse(error if isinstance(error, ZkLockError) else ended(self._resource))
            raise
        if not begun:
            raise ValueError(
                f"{self._resource}: the connection is in autocommit mode: begin a transaction, so "
                "that the check and the change are one step"
            )
        return SqlFence(self._resource, session)

    def _insert(self, session: Session) -> None:
        with self._told(), self._table_is_there(session):
            session.run(self._sql(statements.INSERT[session.dialect]), resource=self._resource)

    def _lock(self, session: Session) -> tuple[FencingToken | None, int]:
        """Lock the mark until the transaction ends; return its newest state, with its stamp."""
        if session.dialect == "sqlite":
            with self._table_is_there(session):
                session.run(self._sql(statements.SQLITE_LOCK), resource=self._resource)
            return self._read(session, statements.SELECT)
        return self._read(session, statements.SELECT_LOCKED)

    def _advance(
        self, session: Session, token: FencingToken, mark: FencingToken | None, stamp: int
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

    def _expect(self, session: Session, made: int, found: int) -> None:
        """Make SQLAlchemy commit only if the mark is still as this transaction has left it."""
        if not isinstance(session, AlchemySession):
            return
        watch, mark = session.watch, (self._table, self._resource)
        if (before := watch.stamp(mark)) is not None and before != found:
            raise ended(self._resource)

        def check() -> None:
            with self._told():
                if self._lock(session)[1] != made:
                    raise ended(self._resource)

        watch.expect(mark, made, check)

    def _seen(self, session: Session) -> int | None:
        rows = session.rows(self._sql(statements.SELECT), resource=self._resource)
        return int(rows[0][2]) if rows else None

    def _read(self, session: Session, statement: str) -> tuple[FencingToken | None, int]:
        where = f"table {self._table}"
        with self._table_is_there(session):
            rows = session.rows(self._sql(statement), resource=self._resource)
        if not rows:
            raise missing(self._resource, where)
        epoch, sequence, stamp = rows[0]
        if (epoch, sequence) == (-1, -1):
            return None, stamp
        try:
            return FencingToken(epoch, sequence), stamp
        except (TypeError, ValueError):
            raise unreadable(self._resource, where, (epoch, sequence)) from None

    @contextlib.contextmanager
    def _table_is_there(self, session: Session) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not codes.no_table(error):
                raise
            raise GuardUnusable(
                f"{self._resource}: the database has no table {self._table} with the columns "
                "resource, epoch, sequence and stamp; every write is refused: call "
                "create_table() once for the database, or put the text of "
                f"SqlGuard.ddl({session.dialect!r}) into a migration",
                resource=self._resource,
            ) from error

    def _sql(self, statement: str) -> str:
        return statement.format(table=self._table)

    def _on(self, connection: Any) -> Session:
        with self._told():
            return open_session(connection, self._dialect, self._paramstyle)

    def _told(self, *, commit: bool = False) -> contextlib.AbstractContextManager[None]:
        return told(self._resource, commit=commit)


def is_retryable(error: BaseException) -> bool:
    """Tell whether the error is a lost race, so that the whole transaction may be repeated.

    A lost race is a deadlock, a serialisation failure or a lock timeout: SQLSTATE 40001,
    40P01 and 55P03; the errors 1020, 1205 and 1213 of MariaDB and MySQL; BUSY of SQLite in all its
    forms; and ``SnapshotTooOld``.
    """
    return isinstance(error, SnapshotTooOld) or codes.lost_race(error)
