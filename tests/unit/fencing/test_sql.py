from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from zklock.errors import GuardUnusable, NoAnswer, OutcomeUnknown, SnapshotTooOld, StaleToken
from zklock.fencing import SqlGuard, is_retryable
from zklock.fencing._sql.errors import Says, says, told
from zklock.fencing._sql.session import render
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)


class Database:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.guard = SqlGuard(self.connect, "report")
        self.guard.create_table()
        self.guard.create()

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=0.1)

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(self.connect()) as connection:
            yield connection


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "db")


def test_without_create_everything_is_refused(database: Database) -> None:
    other = SqlGuard(database.connect, "other")
    with pytest.raises(GuardUnusable, match="other: no mark at table zklock_fence"):
        other.claim(A)
    with database.open() as connection:
        other.create(connection)
        connection.rollback()
        with pytest.raises(GuardUnusable):
            other.claim(A)
        other.create(connection)
        connection.commit()
    other.claim(A)
    other.create()
    assert other.highest() == A


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_an_early_read_is_not_built_upon(database: Database, mode: str) -> None:
    with database.open() as connection, database.open() as other:
        connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()
        connection.execute("BEGIN")
        assert connection.execute("SELECT stamp FROM zklock_fence").fetchone() == (0,)
        with contextlib.suppress(sqlite3.OperationalError):
            database.guard.advance(other, A)
            other.commit()
        other.rollback()
        written = database.guard.highest() == A
        assert written is (mode == "WAL")
        with pytest.raises(SnapshotTooOld) if written else contextlib.nullcontext():
            database.guard.advance(connection, A)


def test_run_tries_again(database: Database) -> None:
    tries = []

    def change(connection: sqlite3.Connection) -> str:
        tries.append(connection)
        if len(tries) < 3:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT
            raise error
        return "done"

    assert database.guard.run(A, change) == "done"
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(sqlite3.OperationalError):
        database.guard.run(A, change, attempts=2)
    with pytest.raises(ValueError, match="at least 1"):
        database.guard.run(A, change, attempts=0)


@pytest.mark.parametrize("shared", [False, True], ids=["database", "table in a shared cache"])
def test_what_is_locked_is_retryable(shared: bool, database: Database) -> None:
    def connect() -> sqlite3.Connection:
        if not shared:
            return database.connect()
        return sqlite3.connect("file:shared?mode=memory&cache=shared", uri=True)

    with contextlib.closing(connect()) as one, contextlib.closing(connect()) as other:
        guard = SqlGuard(connect, "report")
        guard.create_table()
        guard.create()
        guard.advance(one, A)
        with pytest.raises(SnapshotTooOld, match="the mark stayed locked") as caught:
            guard.advance(other, B)
    assert is_retryable(caught.value)
    assert caught.value.__cause__ is not None
    assert is_retryable(caught.value.__cause__)


def test_what_is_not_retryable() -> None:
    assert not is_retryable(ValueError())
    assert not is_retryable(ValueError(1213))
    assert not is_retryable(sqlite3.OperationalError("no such table"))


def test_errors_of_asyncmy_are_those_of_mysql() -> None:
    """It has classes of its own; SQLAlchemy passes them on."""
    made = type("OperationalError", (Exception,), {"__module__": "asyncmy.errors"})
    assert is_retryable(made(1205, "Lock wait timeout exceeded"))
    assert says(made(2013, "Lost connection to MySQL server during query")) is Says.NOTHING
    assert says(made(1305, "SAVEPOINT zklock does not exist")) is None


@pytest.mark.parametrize(
    ("name", "number", "text"),
    [
        ("InterfaceError", 2013, "2013: Lost connection to MySQL server during query"),
        ("OperationalError", -1, "MySQL Connection not available"),
    ],
)
def test_mysql_connector_loses_its_connection_while_it_makes_a_statement(
    name: str, number: int, text: str
) -> None:
    errors = pytest.importorskip("mysql.connector.errors")
    made = errors.ProgrammingError(f"Failed processing pyformat-parameters; {text}")
    made.__cause__ = getattr(errors, name)(text, errno=number)
    assert says(made) is Says.NOTHING
    with pytest.raises(NoAnswer), told("report"):
        raise made


@pytest.mark.parametrize("code", [1047, 1180])
def test_a_commit_that_a_node_without_a_quorum_refuses_is_in_doubt(code: int) -> None:
    """Galera: the other nodes may have committed it."""
    made = type("OperationalError", (Exception,), {"__module__": "pymysql.err"})
    refusal: Exception = made(code, "wsrep")
    with pytest.raises(OutcomeUnknown) as caught, told("report", commit=True):
        raise refusal
    assert caught.value.__cause__ is refusal
    with pytest.raises(NoAnswer), told("report"):
        raise refusal


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mysql"])
def test_ddl(dialect: Any) -> None:
    text = SqlGuard.ddl(dialect, table="locks.fences")
    assert text.startswith("CREATE TABLE IF NOT EXISTS locks.fences (")
    assert ("ENGINE=InnoDB" in text) is (dialect == "mysql")
    assert ('COLLATE "C"' in text) is (dialect == "postgresql")


def test_bad_arguments(database: Database) -> None:
    wrong_options: Any = {"dialect": "oracle"}, {"paramstyle": "oracle"}
    for options in wrong_options:
        with pytest.raises(ValueError, match="'oracle'"):
            SqlGuard(list, "report", **options)
    with pytest.raises(ValueError, match="unknown dialect 'oracle': one of sqlite, "):
        SqlGuard.ddl("oracle")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="table must be name"):
        SqlGuard(database.connect, "report", table="a; DROP TABLE b")
    with pytest.raises(TypeError, match="table must be a str"):
        SqlGuard(database.connect, "report", table=5)  # type: ignore[arg-type]
    with database.open() as opened, pytest.raises(TypeError, match=r"pass engine\.connect"):
        SqlGuard(opened, "report")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a DB-API connection"):
        database.guard.advance(object(), A)
    with database.open() as connection, pytest.raises(TypeError, match="takes a FencingToken"):
        database.guard.advance(connection, 34)  # type: ignore[arg-type]


class Numbered(sqlite3.Cursor):
    """Takes the parameters ``:1``, ``:2``, … as a sequence; sqlite3 itself takes them as names."""

    def execute(self, statement: str, values: Any = ()) -> Self:
        return super().execute(statement, {str(n): value for n, value in enumerate(values, 1)})


def test_an_unknown_driver_must_be_described(database: Database) -> None:
    class Wrapped:
        def __init__(self, connection: sqlite3.Connection) -> None:
            self.cursor: Callable[[], sqlite3.Cursor] = connection.cursor
            self.commit = connection.commit
            self.rollback = connection.rollback
            self.close = connection.close

    with database.open() as connection:
        wrapped = Wrapped(connection)
        with pytest.raises(ValueError, match=r"cannot tell the dialect of .*Wrapped: pass"):
            database.guard.advance(wrapped, A)
        told = SqlGuard(database.connect, "report", dialect="sqlite")
        with pytest.raises(ValueError, match="pass paramstyle="):
            told.advance(wrapped, A)
        for style in ("qmark", "named", "numeric"):
            if style == "numeric":
                wrapped.cursor = functools.partial(connection.cursor, Numbered)
            told = SqlGuard(database.connect, "report", dialect="sqlite", paramstyle=style)
            told.advance(wrapped, A)
        wrapped.commit()
        connection.isolation_level = None
        with pytest.raises(ValueError, match="autocommit mode"):
            told.advance(wrapped, B)
    assert database.guard.highest() == A


def test_a_context_manager_may_yield_the_connection(database: Database) -> None:
    with database.open() as connection:
        SqlGuard(lambda: contextlib.nullcontext(connection), "report").claim(A)
        connection.execute("SELECT 1")


def test_parameter_styles() -> None:
    statement, values = "SET a = :aa WHERE b = :b", {"b": 2, "aa": 1}
    assert render(statement, values, "qmark") == ("SET a = ? WHERE b = ?", (1, 2))
    assert render(statement, values, "format") == ("SET a = %s WHERE b = %s", (1, 2))
    assert render(statement, values, "numeric") == ("SET a = :1 WHERE b = :2", (1, 2))
    assert render(statement, values, "pyformat") == ("SET a = %(aa)s WHERE b = %(b)s", values)
    assert render(statement, values, "named") == (statement, values)
    with pytest.raises(ValueError, match="not a parameter style of PEP 249: 'other'"):
        render(statement, values, "other")


def test_what_a_change_raises_comes_through_as_it_is(database: Database) -> None:
    """``next()`` of an empty cursor raises StopIteration, which a coroutine would change."""

    def change(connection: sqlite3.Connection) -> None:
        next(connection.execute("SELECT 1 WHERE 0"))

    with pytest.raises(StopIteration):
        database.guard.run(A, change)
    assert database.guard.highest() is None


def test_a_change_that_only_an_event_loop_can_run_is_refused(database: Database) -> None:
    async def change(*_: object) -> None:
        raise AssertionError("nothing runs it")

    calls: list[Callable[[object], Any]] = [change, lambda connection: change("", connection)]
    for call, what in zip(calls, ("is a coroutine function", "returned a coroutine"), strict=True):
        with pytest.raises(TypeError, match=f"change {what}"):
            database.guard.run(A, call)
    assert database.guard.highest() is None


def test_a_context_manager_that_swallows_errors_does_not_hide_a_refusal(
    database: Database,
) -> None:
    database.guard.claim(B)

    @contextlib.contextmanager
    def swallowing() -> Iterator[sqlite3.Connection]:
        with contextlib.suppress(Exception), database.open() as connection:
            yield connection

    with pytest.raises(StaleToken):
        SqlGuard(swallowing, "report").claim(A)


def test_what_is_committed_is_not_repeated_for_an_error_of_the_closing(database: Database) -> None:
    """The same error, before the commit, is a lost race."""
    calls: list[sqlite3.Connection] = []

    @contextlib.contextmanager
    def busy_at_the_end() -> Iterator[sqlite3.Connection]:
        with database.open() as connection:
            yield connection
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
        SqlGuard(busy_at_the_end, "report").run(A, calls.append)
    assert is_retryable(caught.value)
    assert len(calls) == 1
    assert database.guard.highest() == A
