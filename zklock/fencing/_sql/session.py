"""The few operations that a guard needs of a connection, for every kind of connection."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from zklock.fencing._sql.errors import (
    DIALECTS,
    clear,
    doubtful,
    driver_of,
    of_a_library,
    says,
)
from zklock.fencing._sql.statements import DDL, FAIL, Dialect

Result = TypeVar("Result")

# A server-side cursor, which the connection's own options may ask for, takes no UPDATE.
_AT_ONCE = {"stream_results": False, "yield_per": None}

_PARAMETER = re.compile(r":([a-z]+)")
_STYLES = {
    "qmark": "?",
    "format": "%s",
    "numeric": ":{number}",
    "named": ":{name}",
    "pyformat": "%({name})s",
}


class SqlSession:
    """A connection of DB-API 2.0 as the guard uses it, or a proxy that a pool has handed out."""

    def __init__(
        self, connection: Any, target: Any, dialect: Dialect | None, style: str = "format"
    ) -> None:
        if dialect is None:
            raise ValueError(
                f"cannot tell the dialect of {type(connection).__module__}."
                f"{type(connection).__name__}: pass dialect= (one of {', '.join(DDL)})"
            )
        self.connection = connection
        self.dialect: Dialect = dialect
        self._target = target
        self._style = style
        self._begun = False

    def end(self, error: BaseException) -> None:
        """Roll back after an error; if that fails, or if it struck inside the driver, discard."""
        try:
            if not doubtful(error):
                return self.rollback()
        except Exception:
            pass
        return self.discard(error)

    def discard(self, error: BaseException) -> None:
        """Close the connection without another statement; the database rolls back."""
        if self.dialect == "sqlite":
            # A closed connection keeps its locks until its last cursor is gone. The frames that
            # the error has passed refer to cursors, and those of SQLAlchemy to the error, too.
            clear(error)
            with contextlib.suppress(Exception):
                self.rollback()
        with contextlib.suppress(Exception):
            self._discard()

    def _discard(self) -> None:
        # A proxy's close() gives the connection back to its pool. That of MySQL Connector sends a
        # statement then.
        names = ("invalidate", "shutdown", "close")
        getattr(self.connection, next(name for name in names if hasattr(self.connection, name)))()

    def run(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        """Execute a statement; return its rows."""
        cursor = self._target.cursor()
        if parameters:
            cursor.execute(*render(statement, parameters, self._style))
        else:
            cursor.execute(statement)
        rows = []
        if cursor.description is not None:
            names = [column[0] for column in cursor.description]
            rows = [
                tuple(row[name] for name in names) if isinstance(row, Mapping) else tuple(row)
                for row in cursor.fetchall()
            ]
        cursor.close()
        return rows

    def refuse(self, error: BaseException, refusal: Exception) -> None:
        """Make sure, if possible, that after ``error`` there can only be a rollback."""
        if doubtful(error):
            self.discard(error)
        with contextlib.suppress(Exception):
            self._refuse(refusal)

    def _refuse(self, refusal: Exception) -> None:
        if self.in_transaction():
            for statement in FAIL[self.dialect]:
                self.run(statement)

    @property
    def _raw(self) -> Any:
        """The driver's own connection."""
        return self._target

    def begin(self) -> None:
        """Begin a transaction on a connection that would commit every statement by itself."""
        self.run("BEGIN IMMEDIATE" if self.dialect == "sqlite" else "BEGIN")
        self._begun = True

    def commit(self) -> None:
        self._end("COMMIT")
        self.connection.commit()

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one."""
        with contextlib.suppress(Exception):
            self._end("ROLLBACK")
        self.connection.rollback()

    def _end(self, statement: str) -> None:
        """End what ``begin`` has begun: some drivers' own methods do nothing in autocommit mode."""
        if self._begun:
            self._begun = False
            self.run(statement)

    def in_transaction(self) -> bool:
        """Tell whether a transaction is open; otherwise each statement is committed by itself.

        Ask after a first statement: with most drivers that statement opens the transaction.
        """
        raw = self._raw
        # The autocommit setting does not tell: a transaction may be begun by hand. The flags of
        # most drivers do not tell either: they come from some earlier answer.
        status = getattr(getattr(raw, "info", None), "transaction_status", None)  # of psycopg
        if status is not None:
            return bool(status != 0)
        sqlite = self.dialect == "sqlite"
        if sqlite and isinstance(inside := getattr(raw, "in_transaction", None), bool):
            return inside
        try:
            if sqlite:
                self.run("BEGIN")
                self.run("ROLLBACK")
            else:
                self.release(self.savepoint())
        except Exception as error:
            if not of_a_library(error) or says(error) is not None:
                raise
            return sqlite  # which begins no second transaction; others keep no savepoint outside
        return not sqlite

    def savepoint(self) -> str:
        """Set a savepoint that nobody else knows; return its name."""
        name = f"zklock_{secrets.token_hex(8)}"
        self.run(f"SAVEPOINT {name}")
        return name

    def release(self, savepoint: str) -> None:
        """Forget a savepoint; the database raises an error if its transaction is over."""
        self.run(f"RELEASE SAVEPOINT {savepoint}")


class DjangoSession(SqlSession):
    """Django's ``connection``."""

    def _refuse(self, refusal: Exception) -> None:
        if self.connection.in_atomic_block:
            self.connection.set_rollback(True)
        else:
            super()._refuse(refusal)

    @property
    def _raw(self) -> Any:
        return self.connection.connection


class CommitWatch:
    """The guards' checks of the open transaction of one ``Connection``.

    A ``Session`` commits through its ``Connection``. So the watch sees the commits of both, and
    those of any framework. A check that raises prevents the commit.
    """

    def __init__(self, connection: Any) -> None:
        from sqlalchemy import event  # noqa: PLC0415 - an extra

        self.checks: dict[object, tuple[int, Callable[[], None]]] = {}
        """For each mark, the stamp that this transaction has left on it, and its check."""
        self.refusal: Exception | None = None
        """What every commit raises until there is a rollback."""
        for name in ("commit", "prepare_twophase", "commit_twophase"):
            event.listen(connection, name, self._commit)
        for name in ("rollback", "rollback_twophase"):
            event.listen(connection, name, self._forget)

    @staticmethod
    def of(connection: Any) -> CommitWatch:
        """Return the watch of a connection; the first call makes it."""
        watch: CommitWatch | None = getattr(connection, "_zklock", None)
        if watch is None:
            watch = connection._zklock = CommitWatch(connection)
        return watch

    def _commit(self, connection: Any, *_: object) -> None:
        checks, refusal = list(self.checks.values()), self.refusal
        self._forget()  # what was prepared is not checked again
        try:
            if refusal is not None:
                raise refusal
            for _stamp, check in checks:
                check()
        except BaseException as error:
            # SQLAlchemy leaves the database's transaction open after a failed commit. Some drivers
            # cannot roll one of two phases back by rollback().
            with contextlib.suppress(Exception):
                try:
                    if doubtful(error):
                        connection.invalidate()
                    else:
                        connection.connection.rollback()
                except Exception:
                    connection.invalidate()
            raise

    def _forget(self, *_: object) -> None:
        self.checks.clear()
        self.refusal = None


class AlchemySession(SqlSession):
    """A ``Connection`` or a ``Session`` of SQLAlchemy."""

    def run(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        import sqlalchemy  # noqa: PLC0415 - an extra

        result = self._target.execute(
            sqlalchemy.text(statement), parameters, execution_options=_AT_ONCE
        )
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    def _refuse(self, refusal: Exception) -> None:
        # After a commit or rollback, a session goes on with another connection.
        of_session = hasattr(self.connection, "get_bind")
        now = self.connection.connection() if of_session else self.connection
        CommitWatch.of(now).refusal = refusal
        if not now.in_transaction():
            now.begin()  # else nobody would hear of the rollback

    def _discard(self) -> None:
        self._target.invalidate()

    def awaited(self, make: Callable[[], Awaitable[Result]]) -> Result:
        """Await something in the middle of what SQLAlchemy runs for asyncio; return its result."""
        adapted = self._target.connection.dbapi_connection
        result: Result = adapted.run_async(lambda _: make())
        return result

    @property
    def watch(self) -> CommitWatch:
        """The checks that must pass when the connection commits."""
        return CommitWatch.of(self._target)

    @property
    def _raw(self) -> Any:
        return self._target.connection.driver_connection


def refuse_asynchronous(connection: object) -> None:
    """Raise ``TypeError`` for a connection that must be awaited."""
    if inspect.iscoroutine(connection):
        connection.close()
    elif not inspect.iscoroutinefunction(getattr(type(connection), "close", None)):
        return
    raise TypeError(
        f"{type(connection).__module__}.{type(connection).__name__} is asynchronous and "
        "zklock.fencing.SqlGuard is not: with SQLAlchemy use zklock.fencing.aio.SqlGuard, with "
        "another driver make an engine of SQLAlchemy, or use its synchronous connection in a thread"
    )


def open_session(connection: Any, dialect: Dialect | None, paramstyle: str | None) -> SqlSession:
    """Return the connection as the guard uses it; ``TypeError`` if the guard cannot use it."""
    refuse_asynchronous(connection)
    if hasattr(connection, "in_atomic_block"):  # Django's
        return DjangoSession(connection, connection, dialect or DIALECTS.get(connection.vendor))
    # SQLAlchemy's raw_connection() is a proxy.
    target = getattr(connection, "dbapi_connection", None) or connection
    driver = driver_of(target)
    if driver == "sqlalchemy" and hasattr(connection, "get_bind"):
        target = connection.connection()
    if driver == "sqlalchemy" and hasattr(target, "exec_driver_sql"):
        return AlchemySession(connection, target, dialect or DIALECTS.get(target.dialect.name))
    if driver == "sqlalchemy" or not hasattr(target, "cursor"):
        raise TypeError(
            "expected a DB-API connection, a SQLAlchemy Connection or Session, or Django's "
            f"connection, not {type(connection).__module__}.{type(connection).__name__}"
        )
    if driver == "psycopg" and getattr(target.info, "pipeline_status", None):
        raise ValueError(
            "the connection is in pipeline mode, in which psycopg does not wait for answers: "
            "call the guard outside of pipeline()"
        )
    dialect = dialect or DIALECTS.get(driver)
    if paramstyle is None and driver in DIALECTS:
        paramstyle = "qmark" if driver in {"sqlite3", "mariadb"} else "format"
    if dialect and paramstyle is None:
        raise ValueError(
            f"cannot tell the parameter style of {type(connection).__module__}: pass "
            "paramstyle= (PEP 249)"
        )
    return SqlSession(connection, target, dialect, paramstyle or "")


def render(
    statement: str, parameters: Mapping[str, object], style: str
) -> tuple[str, Sequence[object] | Mapping[str, object]]:
    """Rewrite ``:name`` parameters in a style of PEP 249."""
    if style not in _STYLES:
        raise ValueError(f"not a parameter style of PEP 249: {style!r}")
    numbers = itertools.count(1)
    rewritten = _PARAMETER.sub(
        lambda found: _STYLES[style].format(number=next(numbers), name=found[1]), statement
    )
    if style in {"named", "pyformat"}:
        return rewritten, parameters
    return rewritten, tuple(parameters[name] for name in _PARAMETER.findall(statement))
