"""What the errors of databases mean, with any driver or framework."""

from __future__ import annotations

from typing import TypeAlias

from zklock.errors import ZkLockError
from zklock.fencing._sql.recognise import DIALECTS, driver_of
from zklock.fencing._sql.statements import Dialect

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
