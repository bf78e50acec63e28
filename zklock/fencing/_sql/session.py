"""The few operations that a guard needs of a connection, for every kind of connection."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import secrets
import sys
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from zklock.fencing._sql.errors import DIALECTS, Says, clear, doubtful, driver_of, says
from zklock.fencing._sql.statements import BEGIN, DDL, FAIL, Dialect

Result = TypeVar("Result")

# A server-side cursor, which the connection's own options may ask for, takes no UPDATE.
_AT_ONCE = {"stream_results": False, "yield_per": None}

_PARAMETER = re.compile(r":([a-z]+)")
_STYLES = {"qmark": "?", "format": "%s", "named": r":\1", "pyformat": r"%(\1)s"}


class SqlSession:
    """A connection of DB-API 2.0 as the guard uses it, or a proxy that a pool has handed out."""

    def __init__(
        self, connection: Any, target: Any, dialect: Dialect | None, paramstyle: str | None
    ) -> None:
        if dialect is None:
            raise ValueError(
                f"cannot tell the dialect of {type(connection).__module__}."
                f"{type(connection).__name__}: pass dialect= (one of {', '.join(DDL)})"
            )
        self.connection = connection
        self.dialect: Dialect = dialect
        self._target = target
        self._style = paramstyle or _known_style(target)
        self._begun = False
        self.discarded = False
        """Whether the connection was closed, because nobody knows what it would answer."""

    def end(self, error: BaseException) -> None:
        """Roll back after an error; after one that struck inside the driver, discard."""
        if self.discarded or doubtful(error):
            self.discard(error)
        else:
            self.rollback()

    def discard(self, error: BaseException) -> None:
        """Close the connection without another statement; the database rolls back."""
        self.discarded = True
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
        cursor = self._cursor()
        try:
            if parameters:
                cursor.execute(*render(statement, parameters, self._style))
            else:
                cursor.execute(statement)
            if cursor.description is None:
                return []
            names = [column[0] for column in cursor.description]
            return [
                tuple(row[name] for name in names) if isinstance(row, Mapping) else tuple(row)
                for row in cursor.fetchall()
            ]
        finally:
            cursor.close()

    def refuse(self, error: Exception) -> None:
        """Make sure, if possible, that the open transaction can only be rolled back."""
        with contextlib.suppress(Exception):
            for statement in FAIL[self.dialect]:
                self.run(statement)

    @property
    def _raw(self) -> Any:
        """The driver's own connection."""
        return self._target

    def _cursor(self) -> Any:
        make = _CURSORS.get(driver_of(self._target))
        return self._target.cursor() if make is None else make(self._target)

    def begin(self) -> None:
        """Begin a transaction on a connection that would commit every statement by itself."""
        self.run(BEGIN[self.dialect])
        self._begun = True

    @property
    def over(self) -> bool:
        """Whether the transaction is known to be over without asking the database."""
        return False

    def flush(self) -> None:
        """Send what is kept back until the commit."""

    def commit(self) -> None:
        if self._begun:
            # The commit() of some drivers does nothing in autocommit mode.
            self.run("COMMIT")
            self._begun = False
        self.connection.commit()

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one."""
        if self._begun:
            self._begun = False
            with contextlib.suppress(Exception):
                self.run("ROLLBACK")
        self.connection.rollback()

    def in_transaction(self) -> bool:
        """Tell whether a transaction is open; otherwise each statement is committed by itself.

        Ask after a first statement: with most drivers that statement opens the transaction. With
        those for MySQL the question opens it.
        """
        raw = self._raw
        inside = getattr(raw, "in_transaction", None)
        if self.dialect == "sqlite":
            return inside if isinstance(inside, bool) else self._sqlite_in_transaction()
        status = getattr(getattr(raw, "info", None), "transaction_status", None)
        if driver_of(raw) in {"psycopg", "psycopg2"} and status is not None:
            return bool(status != 0)
        # The autocommit setting does not tell: a transaction may be begun by hand. The flags that
        # drivers keep do not tell either: they come from some earlier answer.
        try:
            self.release(self.savepoint())
        except Exception as error:
            if says(error) is Says.NO_SAVEPOINT:
                return False
            raise
        return True

    def savepoint(self) -> str:
        """Set a savepoint that nobody else knows; return its name."""
        name = f"zklock_{secrets.token_hex(8)}"
        self.run(f"SAVEPOINT {name}")
        return name

    def release(self, savepoint: str) -> None:
        """Forget a savepoint; the database raises an error if its transaction is over."""
        self.run(f"RELEASE SAVEPOINT {savepoint}")

    def _sqlite_in_transaction(self) -> bool:
        try:
            self.run("BEGIN")
        except Exception as error:
            if says(error) is Says.BEGUN:
                return True
            raise
        self.run("ROLLBACK")
        return False


def _sqlite_cursor(target: Any) -> Any:
    cursor = sys.modules["sqlite3"].Cursor(target)
    cursor.row_factory = None
    return cursor


# Cursors whose rows are tuples, and come at once, whatever the connection's default is.
_CURSORS: dict[str, Callable[[Any], Any]] = {
    "sqlite3": _sqlite_cursor,
    "psycopg": lambda target: sys.modules["psycopg"].Cursor(
        target, row_factory=sys.modules["psycopg.rows"].tuple_row
    ),
    "psycopg2": lambda target: target.cursor(
        cursor_factory=sys.modules["psycopg2.extensions"].cursor
    ),
    "pymysql": lambda target: target.cursor(sys.modules["pymysql.cursors"].Cursor),
    "MySQLdb": lambda target: target.cursor(sys.modules["MySQLdb.cursors"].Cursor),
    "mysql": lambda target: target.cursor(buffered=True, dictionary=False),
}


class DjangoSession(SqlSession):
    """Django's ``connection``."""

    def refuse(self, error: Exception) -> None:
        if self.connection.in_atomic_block:
            self.connection.set_rollback(True)
        else:
            super().refuse(error)

    @property
    def _raw(self) -> Any:
        return self.connection.connection

    def _cursor(self) -> Any:
        return self.connection.cursor()


def _known_style(connection: Any) -> str:
    for cls in type(connection).__mro__:
        module = cls.__module__
        while module:
            style = getattr(sys.modules.get(module), "paramstyle", None)
            if isinstance(style, str):
                return style
            module = module.rpartition(".")[0]
    raise ValueError(
        f"cannot tell the parameter style of {type(connection).__module__}: pass "
        "paramstyle= (PEP 249)"
    )


Check: TypeAlias = Callable[[], None]

# A connection keeps its watch alive, as its listener. A strong reference here would keep both.
_watches: weakref.WeakKeyDictionary[Any, weakref.ref[CommitWatch]] = weakref.WeakKeyDictionary()


class CommitWatch:
    """The guards' checks of the open transaction of one ``Connection``.

    A ``Session`` commits through its ``Connection``. So the watch sees the commits of both, and
    those of any framework. A check that raises prevents the commit.
    """

    def __init__(self, connection: Any) -> None:
        from sqlalchemy import event  # noqa: PLC0415 - an extra

        self._marks: dict[object, tuple[int, Check]] = {}
        self._refused: Exception | None = None
        for name, listener in (
            ("commit", self._commit),
            ("prepare_twophase", self._commit),
            ("commit_twophase", self._commit_unprepared),
            ("rollback", self._forget),
            ("rollback_twophase", self._forget),
        ):
            event.listen(connection, name, listener)

    @staticmethod
    def of(connection: Any) -> CommitWatch:
        """Return the watch of a connection; the first call makes it."""
        found = known() if (known := _watches.get(connection)) is not None else None
        if found is None:
            found = CommitWatch(connection)
            _watches[connection] = weakref.ref(found)
        return found

    def stamp(self, mark: object) -> int | None:
        """Return the stamp that this transaction has left on a mark."""
        known = self._marks.get(mark)
        return None if known is None else known[0]

    def expect(self, mark: object, stamp: int, check: Check) -> None:
        """Call ``check`` before the commit."""
        self._marks[mark] = stamp, check

    def refuse(self, error: Exception) -> None:
        """Refuse every commit with this error until there is a rollback."""
        self._refused = error

    def _commit(self, connection: Any, *_: object) -> None:
        checks = [check for _, check in self._marks.values()]
        try:
            if self._refused is not None:
                raise self._refused
            for check in checks:
                check()
        except BaseException as error:
            # SQLAlchemy leaves the database's transaction open after a failed commit.
            with contextlib.suppress(Exception):
                if doubtful(error):
                    connection.invalidate()
                else:
                    connection.connection.rollback()
            raise
        finally:
            self._forget()

    def _commit_unprepared(self, connection: Any, *_: object) -> None:
        """Check, unless that was done before it was prepared.

        Some drivers cannot roll such a transaction back by ``rollback()``.
        """
        try:
            self._commit(connection)
        except BaseException:
            with contextlib.suppress(Exception):
                connection.invalidate()
            raise

    def _forget(self, *_: object) -> None:
        self._marks.clear()
        self._refused = None


class AlchemySession(SqlSession):
    """A ``Connection`` or a ``Session`` of SQLAlchemy."""

    def run(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        import sqlalchemy  # noqa: PLC0415 - an extra

        result = self._target.execute(
            sqlalchemy.text(statement), parameters, execution_options=_AT_ONCE
        )
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    def flush(self) -> None:
        if self.connection is not self._target:
            self.connection.flush()

    def refuse(self, error: Exception) -> None:
        self.watch.refuse(error)
        if not self._target.in_transaction():
            with contextlib.suppress(Exception):
                self._target.begin()  # else nobody would hear of the rollback
        if self.connection is self._target:
            return
        # After a commit or rollback, a session goes on with another connection.
        scoped = not hasattr(self.connection, "in_transaction")
        session = self.connection() if scoped else self.connection
        if session.in_transaction():
            with contextlib.suppress(Exception):
                CommitWatch.of(session.connection()).refuse(error)

    @property
    def over(self) -> bool:
        # A session gives its connection back when it commits or rolls back.
        return bool(self._target.closed)

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
    elif not (
        any(
            inspect.iscoroutinefunction(getattr(type(connection), name, None))
            for name in ("execute", "commit", "close")
        )
        or (hasattr(connection, "__aenter__") and not hasattr(connection, "__enter__"))
    ):
        return
    raise TypeError(
        f"{type(connection).__module__}.{type(connection).__name__} is asynchronous and "
        "zklock.fencing.SqlGuard is not: with SQLAlchemy use zklock.fencing.aio.SqlGuard, with "
        "another driver make an engine of SQLAlchemy, or use its synchronous connection in a thread"
    )


def open_session(connection: Any, dialect: Dialect | None, paramstyle: str | None) -> SqlSession:
    """Return the connection as the guard uses it; ``TypeError`` if the guard cannot use it."""
    refuse_asynchronous(connection)
    if hasattr(connection, "in_atomic_block"):
        # Django uses this style for every database.
        known = dialect or DIALECTS.get(connection.vendor)
        return DjangoSession(connection, connection, known, "format")
    if driver_of(connection) == "sqlalchemy" and (
        hasattr(connection, "get_bind") or hasattr(connection, "exec_driver_sql")
    ):
        target = connection.connection() if hasattr(connection, "get_bind") else connection
        known = dialect or DIALECTS.get(target.dialect.name)
        return AlchemySession(connection, target, known, "named")
    # SQLAlchemy's raw_connection() is a proxy.
    target = getattr(connection, "dbapi_connection", None) or connection
    refuse_asynchronous(target)
    driver = driver_of(target)
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
    return SqlSession(connection, target, dialect or DIALECTS.get(driver), paramstyle)


def render(
    statement: str, parameters: Mapping[str, object], style: str
) -> tuple[str, Sequence[object] | Mapping[str, object]]:
    """Rewrite ``:name`` parameters in a style of PEP 249."""
    if style == "numeric":
        numbers = itertools.count(1)
        rewritten = _PARAMETER.sub(lambda _: f":{next(numbers)}", statement)
    elif style in _STYLES:
        rewritten = _PARAMETER.sub(_STYLES[style], statement)
    else:
        raise ValueError(f"not a parameter style of PEP 249: {style!r}")
    if style in {"named", "pyformat"}:
        return rewritten, parameters
    return rewritten, tuple(parameters[name] for name in _PARAMETER.findall(statement))
