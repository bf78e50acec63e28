"""What errors of databases and drivers mean, and what zklock raises for them."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias, TypeVar

from zklock.errors import SnapshotTooOld, TransactionEnded, ZkLockError
from zklock.fencing._sql.recognise import DIALECTS, LIBRARIES, driver_of, of_a_library, package
from zklock.fencing._sql.statements import Dialect
from zklock.fencing.guard import in_doubt, refusing, unasked

Result = TypeVar("Result")

_Code: TypeAlias = tuple[Dialect, object]

_LOST_RACE: set[_Code] = {
    ("postgresql", "40001"),  # serialization_failure
    ("postgresql", "40P01"),  # deadlock_detected
    ("postgresql", "55P03"),  # lock_not_available: lock_timeout
    ("mysql", 1020),  # ER_CHECKREAD
    ("mysql", 1205),  # ER_LOCK_WAIT_TIMEOUT
    ("mysql", 1213),  # ER_LOCK_DEADLOCK
    ("sqlite", 5),  # SQLITE_BUSY
}

# CREATE TABLE IF NOT EXISTS of PostgreSQL looks first and creates later.
_MADE_MEANWHILE: set[_Code] = {
    ("postgresql", "42P07"),  # duplicate_table
    ("postgresql", "42710"),  # duplicate_object: the type of the table's rows
    ("postgresql", "23505"),  # unique_violation, in the catalog
    ("mysql", 1050),  # ER_TABLE_EXISTS_ERROR
}

_NO_TABLE: set[_Code] = {
    ("postgresql", "42P01"),  # undefined_table
    ("postgresql", "42703"),  # undefined_column
    ("postgresql", "3F000"),  # invalid_schema_name
    ("mysql", 1146),  # ER_NO_SUCH_TABLE
    ("mysql", 1054),  # ER_BAD_FIELD_ERROR
}

_NO_SAVEPOINT: set[_Code] = {
    ("postgresql", "25P01"),  # no_active_sql_transaction
    ("postgresql", "3B001"),  # invalid_savepoint_specification
    ("mysql", 1305),  # ER_SP_DOES_NOT_EXIST
}

_FAILED_TRANSACTION: _Code = ("postgresql", "25P02")  # in_failed_sql_transaction
_FAILED = {"PendingRollbackError", "TransactionManagementError"}  # of SQLAlchemy, of Django

# The connection or the server has failed, or the server has given up: not what was asked.
_UNANSWERED: set[_Code] = {
    ("postgresql", "25P03"),  # idle_in_transaction_session_timeout
    ("postgresql", "25P04"),  # transaction_timeout
    ("mysql", 1040),  # ER_CON_COUNT_ERROR
    ("mysql", 1053),  # ER_SERVER_SHUTDOWN
    ("mysql", 1317),  # ER_QUERY_INTERRUPTED
    ("mysql", 1927),  # ER_CONNECTION_KILLED
    ("mysql", 1969),  # ER_STATEMENT_TIMEOUT
    ("mysql", 3024),  # ER_QUERY_TIMEOUT
    ("mysql", 4031),  # ER_CLIENT_INTERACTION_TIMEOUT
    ("sqlite", 9),  # SQLITE_INTERRUPT
    ("sqlite", 10),  # SQLITE_IOERR
    ("sqlite", 13),  # SQLITE_FULL
    ("sqlite", 14),  # SQLITE_CANTOPEN
}
# connection_exception, insufficient_resources, operator_intervention
_UNANSWERED_CLASSES = {"08", "53", "57"}
_CLIENT_ERRORS = range(2000, 3000)  # of MySQL's protocol


def lost_race(error: BaseException) -> bool:
    """Whether the database ended the transaction or statement in favour of another one."""
    return _code(error) in _LOST_RACE


def made_meanwhile(error: BaseException) -> bool:
    """Whether another transaction has just made the same table."""
    return _code(error) in _MADE_MEANWHILE


def no_table(error: BaseException) -> bool:
    """Whether the table, or a column of it, does not exist."""
    return _code(error) in _NO_TABLE or _sqlite_says(
        error, "no such table", "no such column", "unknown database"
    )


def no_savepoint(error: BaseException) -> bool:
    """Whether the savepoint does not exist; one reason is that no transaction is open."""
    return _code(error) in _NO_SAVEPOINT or _sqlite_says(error, "no such savepoint")


def failed_transaction(error: BaseException) -> bool:
    """Whether an earlier error has failed the transaction."""
    return _code(error) == _FAILED_TRANSACTION or bool(_FAILED & _names(error))


def unanswered(error: BaseException) -> bool:
    """Whether the connection has failed, so that the database may have said nothing."""
    code = _code(error)
    if code is None or not code[1] or code[1] == -1:
        return isinstance(error, OSError) or bool(
            {"OperationalError", "InterfaceError", "TimeoutError"} & _names(error)
        )
    dialect, known = code
    return (
        code in _UNANSWERED
        or (dialect == "postgresql" and str(known)[:2] in _UNANSWERED_CLASSES)
        or (dialect == "mysql" and known in _CLIENT_ERRORS)
    )


def begun_already(error: BaseException) -> bool:
    """Whether SQLite refuses BEGIN because a transaction is open."""
    return _sqlite_says(error, "cannot start a transaction within a transaction")


def _original(error: BaseException) -> BaseException:
    """Return the driver's error that zklock, SQLAlchemy or Django has wrapped."""
    if isinstance(error, ZkLockError) and error.__cause__ is not None:
        return _original(error.__cause__)
    if isinstance(found := getattr(error, "orig", None), BaseException):
        return found
    if type(error).__module__ == "django.db.utils" and error.__cause__ is not None:
        return error.__cause__
    return error


def _names(error: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}


def _code(error: BaseException) -> _Code | None:
    error = _original(error)
    if (number := getattr(error, "sqlite_errorcode", None)) is not None:
        return "sqlite", number & 0xFF
    first = next(iter(error.args), None)
    if DIALECTS.get(driver_of(error)) == "mysql":
        return "mysql", getattr(error, "errno", None) or first
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if sqlstate is None and isinstance(first, dict):  # pg8000
        sqlstate = first.get("C")
    return None if sqlstate is None else ("postgresql", sqlstate)


def _sqlite_says(error: BaseException, *texts: str) -> bool:
    error = _original(error)
    return _code(error) == ("sqlite", 1) and any(text in str(error) for text in texts)


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
    if lost_race(error):
        return SnapshotTooOld(
            f"{resource}: the database ended this transaction in favour of another one, or the "
            "mark stayed locked: roll back, and repeat the whole transaction with advance first",
            resource=resource,
        )
    if failed_transaction(error) or no_savepoint(error):
        return ended(resource)
    if unanswered(error):
        return in_doubt(resource) if commit else unasked(resource)
    return None if commit else refusing(resource, error)


# A time limit or a cancellation can strike inside a driver. The reply to its last statement is then
# half read, and the next statement waits for ever, or takes it for its own. Such a connection can
# only be closed.

# What these call is the driver; one written in C has no frames of its own.
_OURS = {"zklock.fencing._sql.session", "zklock.fencing._sql.alchemy"}


def doubtful(error: BaseException) -> bool:
    """Whether a connection must not be used after this error.

    It may be used after an answer of the database, and after an error of the user's own code.
    """
    if lost_race(error):
        return False
    return any(
        not isinstance(found, ZkLockError)
        and package(type(found).__module__) not in LIBRARIES
        and any(name in _OURS or package(name) in LIBRARIES for name in _passed(found))
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
