"""Which driver something is of, what its errors mean, and what zklock raises for them."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from zklock.errors import SnapshotTooOld, TransactionEnded, ZkLockError
from zklock.fencing._sql.statements import Dialect
from zklock.fencing.guard import in_doubt, refusing, unasked

Result = TypeVar("Result")

_Code: TypeAlias = tuple[Dialect, object]

DIALECTS: dict[str, Dialect] = {
    "sqlite3": "sqlite",
    "pysqlite2": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pg8000": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "asyncmy": "mysql",
    # names of SQLAlchemy's dialects and of Django's vendors
    "sqlite": "sqlite",
    "postgresql": "postgresql",
}

LIBRARIES = {*DIALECTS, "_mysql_connector", "aiosqlite", "asyncpg", "django", "sqlalchemy"}


def package(module: str) -> str:
    return module.partition(".")[0]


def of_a_library(thing: object) -> bool:
    """Whether the class, or one of its base classes, is from a driver or a wrapper of drivers."""
    return any(package(cls.__module__) in LIBRARIES for cls in type(thing).__mro__)


def driver_of(thing: object) -> str:
    """Return the top package of the class, or of its base class from a known driver."""
    packages = [package(cls.__module__) for cls in type(thing).__mro__]
    known = (name for name in packages if name in DIALECTS or name == "sqlalchemy")
    return next(known, packages[0])


class Says(Enum):
    """What an error means for a guard, with any driver or framework."""

    LOST_RACE = "the transaction or statement was ended in favour of another one"
    TABLE_MADE = "another transaction has just made the same table"
    NO_TABLE = "the table, or a column of it, does not exist"
    NO_SAVEPOINT = "the savepoint does not exist; one reason is that no transaction is open"
    FAILED = "an earlier error has failed the transaction"
    BEGUN = "a transaction is open already"
    NOTHING = "the connection or the server has failed, or the server has given up"


_TABLE: tuple[tuple[Says, Dialect, Collection[object]], ...] = (
    # serialization_failure, deadlock_detected, lock_not_available: lock_timeout
    (Says.LOST_RACE, "postgresql", {"40001", "40P01", "55P03"}),
    # ER_CHECKREAD, ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK
    (Says.LOST_RACE, "mysql", {1020, 1205, 1213}),
    # SQLITE_BUSY, SQLITE_LOCKED: by another connection with the same cache
    (Says.LOST_RACE, "sqlite", {5, 6}),
    # duplicate_table, duplicate_object (the type of the table's rows), unique_violation (in the
    # catalog): CREATE TABLE IF NOT EXISTS of PostgreSQL looks first and creates later.
    (Says.TABLE_MADE, "postgresql", {"42P07", "42710", "23505"}),
    (Says.TABLE_MADE, "mysql", {1050}),  # ER_TABLE_EXISTS_ERROR
    # undefined_table, undefined_column, invalid_schema_name
    (Says.NO_TABLE, "postgresql", {"42P01", "42703", "3F000"}),
    (Says.NO_TABLE, "mysql", {1146, 1054}),  # ER_NO_SUCH_TABLE, ER_BAD_FIELD_ERROR
    # no_active_sql_transaction, invalid_savepoint_specification
    (Says.NO_SAVEPOINT, "postgresql", {"25P01", "3B001"}),
    (Says.NO_SAVEPOINT, "mysql", {1305}),  # ER_SP_DOES_NOT_EXIST
    (Says.FAILED, "postgresql", {"25P02"}),  # in_failed_sql_transaction
    # idle_in_transaction_session_timeout, transaction_timeout
    (Says.NOTHING, "postgresql", {"25P03", "25P04"}),
    # ER_CON_COUNT_ERROR, ER_SERVER_SHUTDOWN, ER_QUERY_INTERRUPTED, ER_CONNECTION_KILLED,
    # ER_STATEMENT_TIMEOUT, ER_QUERY_TIMEOUT, ER_CLIENT_INTERACTION_TIMEOUT
    (Says.NOTHING, "mysql", {1040, 1053, 1317, 1927, 1969, 3024, 4031}),
    # ER_UNKNOWN_COM_ERROR, ER_ERROR_DURING_COMMIT: of a node of Galera without a quorum; a commit
    # may have happened on the others.
    (Says.NOTHING, "mysql", {1047, 1180}),
    # SQLITE_INTERRUPT, SQLITE_IOERR, SQLITE_FULL, SQLITE_CANTOPEN
    (Says.NOTHING, "sqlite", {9, 10, 13, 14}),
)
_CODES = {(dialect, code): meaning for meaning, dialect, codes in _TABLE for code in codes}
# connection_exception, insufficient_resources, operator_intervention
_NOTHING_CLASSES = {"08", "53", "57"}
_CLIENT_ERRORS = range(2000, 3000)  # of MySQL's protocol

_TEXTS = {  # of SQLITE_ERROR
    "no such table": Says.NO_TABLE,
    "no such column": Says.NO_TABLE,
    "unknown database": Says.NO_TABLE,
    "no such savepoint": Says.NO_SAVEPOINT,
    "cannot start a transaction within a transaction": Says.BEGUN,
}

_FAILED = {"PendingRollbackError", "TransactionManagementError"}  # of SQLAlchemy, of Django
_UNCODED = {"OSError", "OperationalError", "InterfaceError", "TimeoutError"}


def says(error: BaseException) -> Says | None:
    """Return what an error means; ``None``: something else."""
    original = _original(error)
    names = {cls.__name__ for each in (error, original) for cls in type(each).__mro__}
    code = _code(original)
    if code in _CODES:
        return _CODES[code]
    if code == ("sqlite", 1):
        text = str(original)
        return next((meaning for part, meaning in _TEXTS.items() if part in text), None)
    if names & _FAILED:
        return Says.FAILED
    if code is None or not code[1] or code[1] == -1:
        return Says.NOTHING if names & _UNCODED else None
    dialect, known = code
    if dialect == "postgresql":
        return Says.NOTHING if str(known)[:2] in _NOTHING_CLASSES else None
    return Says.NOTHING if dialect == "mysql" and known in _CLIENT_ERRORS else None


def _original(error: BaseException) -> BaseException:
    """Return the driver's error that zklock, SQLAlchemy, Django or the driver has wrapped."""
    if isinstance(error, ZkLockError) and error.__cause__ is not None:
        return _original(error.__cause__)
    cause = error.__cause__
    if isinstance(found := getattr(error, "orig", None), BaseException):
        return _original(found)
    if cause is not None and (
        type(error).__module__ == "django.db.utils"
        # MySQL Connector, for what has failed while it made the statement
        or driver_of(error) == driver_of(cause) == "mysql"
    ):
        return _original(cause)
    return error


def _code(error: BaseException) -> _Code | None:
    if (number := getattr(error, "sqlite_errorcode", None)) is not None:
        return "sqlite", number & 0xFF
    first = next(iter(error.args), None)
    if DIALECTS.get(driver_of(error)) == "mysql":
        return "mysql", getattr(error, "errno", None) or first
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if sqlstate is None and isinstance(first, dict):  # pg8000
        sqlstate = first.get("C")
    return None if sqlstate is None else ("postgresql", sqlstate)


@contextlib.contextmanager
def told(resource: str, *, commit: bool = False) -> Iterator[None]:
    """Raise an error of zklock for an error of the driver, with that as its cause.

    ``commit``: the block commits. What the database then says of the user's data passes. So does
    what is no error of a driver.
    """
    try:
        yield
    except Exception as error:
        if (known := _known(resource, error, commit)) is None:
            raise
        raise known from error


def ended(resource: str) -> TransactionEnded:
    """Return the error for a transaction that is not the one of ``advance`` any more."""
    return TransactionEnded(
        f"{resource}: the transaction of advance() has ended or failed: later statements were "
        "rolled back, or committed without the check; look for an ignored error, a commit or "
        "rollback, or DDL",
        resource=resource,
    )


def _known(resource: str, error: Exception, commit: bool) -> ZkLockError | None:
    outside = isinstance(error, OSError) and not (commit and isinstance(error, TimeoutError))
    if isinstance(error, ZkLockError) or not (of_a_library(error) or outside):
        return None
    meaning = says(error)
    if meaning is Says.LOST_RACE:
        return SnapshotTooOld(
            f"{resource}: the database ended this transaction in favour of another one, or the "
            "mark stayed locked: roll back, and repeat the whole transaction with advance first",
            resource=resource,
        )
    if meaning in {Says.FAILED, Says.NO_SAVEPOINT}:
        return ended(resource)
    if meaning is Says.NOTHING:
        return in_doubt(resource) if commit else unasked(resource)
    return None if commit else refusing(resource, error)


# A time limit or a cancellation can strike inside a driver. The reply to its last statement is then
# half read, and the next statement waits for ever, or takes it for its own. Such a connection can
# only be closed.

# What these call is the driver; one written in C has no frames of its own.
_OURS = "zklock.fencing._sql.session"


def doubtful(error: BaseException) -> bool:
    """Whether a connection must not be used after this error.

    It may be used after an answer of the database, and after an error of the user's own code.
    """
    if says(error) is Says.LOST_RACE:
        return False
    return any(
        not isinstance(found, ZkLockError)
        and package(type(found).__module__) not in LIBRARIES
        and any(name == _OURS or package(name) in LIBRARIES for name in _passed(found))
        for found in _chain(error)
    )


def clear(error: BaseException) -> None:
    """Forget the local variables of the functions that the error has left."""
    for found in _chain(error):
        traceback.clear_frames(found.__traceback__)


def of_the_user(change: Callable[[Any], Result], connection: Any) -> Result:
    """Call ``change``: what the traceback shows before this frame does not count."""
    return change(connection)


async def awaited_of_the_user(made: Awaitable[Result]) -> Result:
    """Await what ``change`` has made: see ``of_the_user``."""
    return await made


_BOUNDS = {of_the_user.__code__, awaited_of_the_user.__code__}


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += [found.__cause__, found.__context__]


def _passed(error: BaseException) -> list[str]:
    """Return the modules that the error has passed, up to the user's own function."""
    names: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in _BOUNDS:
            names.clear()
        else:
            names.append(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
    return names
