"""A guard for rows of a SQL database: SQLite, PostgreSQL, MariaDB and MySQL.

The mark is a row of the table that ``SqlGuard.ddl`` describes, locked and compared inside the
transaction that changes the data.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypeVar, cast

from zklock.fencing.guard import Fenced, admit, missing, resource_name, token_of, unreadable
from zklock.token import FencingToken

Dialect: TypeAlias = Literal["sqlite", "postgresql", "mysql"]
Result = TypeVar("Result")

TABLE = "zklock_fence"

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)
_PARAMETER = re.compile(r":([a-z]+)")

_DIALECTS: dict[str, Dialect] = {
    "sqlite3": "sqlite",
    "pysqlite2": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pg8000": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
    # names of SQLAlchemy's dialects
    "sqlite": "sqlite",
    "postgresql": "postgresql",
}

# -1, -1 stands for no token seen.
_CHECK = """\
CHECK (epoch = -1 AND sequence = -1
           OR epoch >= 0 AND sequence >= 0 AND sequence < 2147483648)"""

_DDL: dict[Dialect, str] = {
    "sqlite": f"""\
CREATE TABLE IF NOT EXISTS {{table}} (
    resource TEXT NOT NULL PRIMARY KEY,
    epoch INTEGER NOT NULL CHECK (typeof(epoch) = 'integer'),
    sequence INTEGER NOT NULL CHECK (typeof(sequence) = 'integer'),
    {_CHECK}
)""",
    "postgresql": f"""\
CREATE TABLE IF NOT EXISTS {{table}} (
    resource VARCHAR(255) COLLATE "C" NOT NULL PRIMARY KEY,
    epoch BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    {_CHECK}
)""",
    "mysql": f"""\
CREATE TABLE IF NOT EXISTS {{table}} (
    resource VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    epoch BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    {_CHECK}
) ENGINE=InnoDB""",
}

_INSERT: dict[Dialect, str] = {
    "sqlite": "INSERT INTO {table} (resource, epoch, sequence) VALUES (:resource, -1, -1) "
    "ON CONFLICT (resource) DO NOTHING",
    "postgresql": "INSERT INTO {table} (resource, epoch, sequence) VALUES (:resource, -1, -1) "
    "ON CONFLICT (resource) DO NOTHING",
    "mysql": "INSERT IGNORE INTO {table} (resource, epoch, sequence) VALUES (:resource, -1, -1)",
}

_SELECT = "SELECT epoch, sequence FROM {table} WHERE resource = :resource"

_UPDATE = "UPDATE {table} SET epoch = :epoch, sequence = :sequence WHERE resource = :resource"

# SQLite has no row locks: any write takes its one write lock, to the end of the transaction.
_SQLITE_LOCK = "UPDATE {table} SET resource = resource WHERE resource = :resource"


class SqlGuard:
    """Fences what a transaction changes in a SQL database.

    ``connect()`` returns a new DB-API 2.0 connection or SQLAlchemy ``Connection``, or a context
    manager that yields one; ``create``, ``claim``, ``highest`` and ``run`` use and close it.
    ``table`` is the table of the marks, made with ``create_table`` or by a migration with the
    text of ``ddl``. ``dialect`` (``sqlite``, ``postgresql``, ``mysql``; the last for MariaDB too)
    and ``paramstyle`` (PEP 249) are recognised for the common drivers and must be given for
    others.

    Not guaranteed: reads before ``advance`` in the same transaction are not fenced, so read what
    the change depends on after it; MyISAM and other tables without transactions are not
    protected; nor is what a failover of an asynchronous replica takes back, mark and data alike.
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
        self._table = _table_name(table)
        self._dialect = dialect
        self._paramstyle = paramstyle

    @staticmethod
    def ddl(dialect: Dialect, *, table: str = TABLE) -> str:
        """Return the statement that makes the table of the marks, for a migration."""
        if dialect not in _DDL:
            raise ValueError(f"no dialect {dialect!r}: one of {', '.join(_DDL)}")
        return _DDL[dialect].format(table=_table_name(table))

    @property
    def resource(self) -> str:
        """The name of the resource: the key of its row."""
        return self._resource

    def create_table(self) -> None:
        """Make the table of the marks, once for each database; keep one that exists."""
        with self._session() as session:
            session.run(self.ddl(session.dialect, table=self._table))
            session.commit()

    def create(self, connection: Any = None) -> None:
        """Make the mark, once; keep one that exists.

        With ``connection`` it becomes part of the transaction under way there, such as the one
        that makes the resource itself.
        """
        if connection is not None:
            session = self._on(connection)
            session.run(self._sql(_INSERT[session.dialect]), resource=self._resource)
            return
        with self._session() as session:
            session.run(self._sql(_INSERT[session.dialect]), resource=self._resource)
            session.commit()

    def advance(self, connection: Any, token: Fenced) -> None:
        """Advance the mark inside the transaction under way on ``connection``.

        Call it first in the transaction, then read and write, and commit: the row of the mark
        stays locked until then, so that a higher token waits and a lower one is refused.
        ``connection`` is a DB-API connection or a SQLAlchemy ``Connection`` or ``Session``.

        Raises ``StaleToken`` or ``GuardUnusable``: roll back. Raises ``ValueError`` where the
        driver tells that it commits every statement by itself, as nothing would be atomic.
        Errors of the database pass through; ``is_retryable`` tells a lost race from the rest.
        """
        given = token_of(token)
        session = self._on(connection)
        mark = self._lock(session)
        if session.commits_by_itself():
            raise ValueError(
                f"{self._resource}: the connection is in autocommit mode: begin a transaction, so "
                "that the check and the change are one step"
            )
        if admit(self._resource, given, mark):
            session.run(
                self._sql(_UPDATE),
                resource=self._resource,
                epoch=given.epoch,
                sequence=given.sequence,
            )

    def claim(self, token: Fenced, *, attempts: int = 10) -> None:
        """Advance the mark in a transaction of its own; see ``Guard.claim`` and ``run``."""
        self.run(token, lambda _: None, attempts=attempts)

    def run(self, token: Fenced, change: Callable[[Any], Result], *, attempts: int = 10) -> Result:
        """Return ``change(connection)``, run after ``advance`` in one transaction, committed.

        If the database ends the transaction for a deadlock, a serialisation failure or a lock
        timeout, all of it is tried again, after a short random pause, up to ``attempts`` times.
        ``change`` must therefore do nothing but use the connection, and not commit. An error of
        the commit itself may leave it unknown whether the transaction happened; sending it again
        is the caller's choice.
        """
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {attempts}")
        given = token_of(token)
        for attempt in range(1, attempts + 1):
            with self._session() as session:
                try:
                    self.advance(session.connection, given)
                    result = change(session.connection)
                    session.commit()
                except BaseException as error:
                    session.rollback()
                    if attempt == attempts or not is_retryable(error):
                        raise
                else:
                    return result
            time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
        raise AssertionError("unreachable")

    def highest(self) -> FencingToken | None:
        """Return the committed mark; ``None`` while no token has been seen."""
        with self._session() as session:
            try:
                return self._read(session, _SELECT)
            finally:
                session.rollback()

    def _lock(self, session: _Session) -> FencingToken | None:
        if session.dialect == "sqlite":
            session.run(self._sql(_SQLITE_LOCK), resource=self._resource)
            return self._read(session, _SELECT)
        return self._read(session, _SELECT + " FOR UPDATE")

    def _read(self, session: _Session, statement: str) -> FencingToken | None:
        row = session.one(self._sql(statement), resource=self._resource)
        if row is None:
            raise missing(self._resource, f"table {self._table}")
        epoch, sequence = row
        if (epoch, sequence) == (-1, -1):
            return None
        try:
            return FencingToken(epoch, sequence)
        except (TypeError, ValueError):
            where = f"table {self._table}"
            raise unreadable(self._resource, where, (epoch, sequence)) from None

    def _sql(self, statement: str) -> str:
        return statement.format(table=self._table)

    def _on(self, connection: Any) -> _Session:
        return _Session(connection, self._dialect, self._paramstyle)

    @contextlib.contextmanager
    def _session(self) -> Iterator[_Session]:
        connection = self._connect()
        if hasattr(connection, "cursor") or hasattr(connection, "execute"):
            connection = contextlib.closing(connection)
        with connection as opened:
            yield self._on(opened)


def is_retryable(error: BaseException) -> bool:
    """Tell whether the database refused for a lost race: the whole transaction may be repeated.

    Deadlock, serialisation failure, lock timeout: SQLSTATE 40001 and 40P01, of MariaDB and MySQL
    the errors 1020, 1205 and 1213, of SQLite BUSY in all its forms.
    """
    error = getattr(error, "orig", None) or error
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if sqlstate in {"40001", "40P01"}:
        return True
    if (code := getattr(error, "sqlite_errorcode", None)) is not None:
        return bool(code & 0xFF == 5)
    if _DIALECTS.get(_driver(error)) != "mysql":
        return False
    number = getattr(error, "errno", None) or next(iter(error.args), None)
    return number in {1020, 1205, 1213}


class _Session:
    """The few things that are done with a connection, whoever made it."""

    def __init__(self, connection: Any, dialect: Dialect | None, paramstyle: str | None) -> None:
        self.connection = connection
        self._target = connection
        self._alchemy = False
        if _driver(connection) == "sqlalchemy":
            if hasattr(connection, "get_bind"):
                self._target = connection.connection()
            self._alchemy = True
            found = _DIALECTS.get(self._target.dialect.name)
        else:
            if not hasattr(connection, "cursor"):
                raise TypeError(
                    "expected a DB-API connection or a SQLAlchemy Connection or Session, not "
                    f"{type(connection).__name__}"
                )
            found = _DIALECTS.get(_driver(connection))
        if (dialect or found) is None:
            raise ValueError(
                f"cannot tell the dialect of {type(connection).__module__}."
                f"{type(connection).__name__}: pass dialect= (one of {', '.join(_DDL)})"
            )
        self.dialect: Dialect = cast(Dialect, dialect or found)
        self._paramstyle = paramstyle

    def run(self, statement: str, **parameters: object) -> None:
        self._execute(statement, parameters).close()

    def one(self, statement: str, **parameters: object) -> tuple[Any, Any] | None:
        result = self._execute(statement, parameters)
        try:
            row = result.fetchone()
        finally:
            result.close()
        return None if row is None else (row[0], row[1])

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def commits_by_itself(self) -> bool:
        """Tell whether the last statement left no transaction open, where the driver knows."""
        driver = self._target.connection.driver_connection if self._alchemy else self._target
        if (inside := getattr(driver, "in_transaction", None)) is not None:
            return not inside
        if callable(status := getattr(driver, "get_transaction_status", None)):
            return bool(status() == 0)
        if (info := getattr(driver, "info", None)) is not None:
            return bool(getattr(info, "transaction_status", None) == 0)
        if (flags := getattr(driver, "server_status", None)) is not None:
            # In a transaction: 1; autocommit: 2. PyMySQL takes them from the last answer without
            # rows, so after BEGIN, but not after the first SELECT of an implicit transaction.
            return bool(flags & 3 == 2)
        return False

    def _execute(self, statement: str, parameters: dict[str, object]) -> Any:
        if self._alchemy:
            import sqlalchemy  # noqa: PLC0415 - an extra

            return self._target.execute(sqlalchemy.text(statement), parameters)
        cursor = self._target.cursor()
        text, values = _render(statement, parameters, self._style())
        try:
            cursor.execute(text, values)
        except BaseException:
            cursor.close()
            raise
        return cursor

    def _style(self) -> str:
        if self._paramstyle is not None:
            return self._paramstyle
        style = getattr(sys.modules.get(_driver(self._target)), "paramstyle", None)
        if style is None:
            raise ValueError(
                f"cannot tell the parameter style of {type(self._target).__module__}: pass "
                "paramstyle= (PEP 249)"
            )
        return str(style)


def _render(statement: str, parameters: Mapping[str, object], style: str) -> tuple[str, object]:
    """Write ``:name`` parameters in a style of PEP 249."""
    names = _PARAMETER.findall(statement)
    values = tuple(parameters[name] for name in names)
    if style == "qmark":
        return _PARAMETER.sub("?", statement), values
    if style == "format":
        return _PARAMETER.sub("%s", statement), values
    if style == "numeric":
        numbers = itertools.count(1)
        return _PARAMETER.sub(lambda _: f":{next(numbers)}", statement), values
    if style == "named":
        return statement, parameters
    if style == "pyformat":
        return _PARAMETER.sub(r"%(\1)s", statement), parameters
    raise ValueError(f"no parameter style of PEP 249: {style!r}")


def _driver(thing: object) -> str:
    return type(thing).__module__.partition(".")[0]


def _table_name(table: str) -> str:
    if not isinstance(table, str):
        raise TypeError(f"table must be a str, not {type(table).__name__}")
    if not _IDENTIFIER.fullmatch(table):
        raise ValueError(f"table must be name or schema.name of plain letters, not {table!r}")
    return table
