"""Which driver something is of, what its errors mean, and what zklock raises for them."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from enum import Enum

from zklock.errors import SnapshotTooOld, TransactionEnded, ZkLockError
from zklock.fencing._sql.statements import Dialect
from zklock.fencing.guard import in_doubt, refusing, unasked

DIALECTS: dict[str, Dialect] = {
    "sqlite3": "sqlite",
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
    FAILED = "an earlier error has failed the transaction"
    NOTHING = "the connection or the server has failed, or the server has given up"


# By SQLSTATE of PostgreSQL, number of MySQL and MariaDB, primary result code of SQLite.
_CODES: dict[object, Says] = {
    # serialization_failure, deadlock_detected, lock_not_available: lock_timeout
    **dict.fromkeys(("40001", "40P01", "55P03"), Says.LOST_RACE),
    # ER_CHECKREAD, ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK
    **dict.fromkeys((1020, 1205, 1213), Says.LOST_RACE),
    # SQLITE_BUSY, SQLITE_LOCKED: by another connection with the same cache
    **dict.fromkeys((5, 6), Says.LOST_RACE),
    "25P02": Says.FAILED,  # in_failed_sql_transaction
    # idle_in_transaction_session_timeout, transaction_timeout
    **dict.fromkeys(("25P03", "25P04"), Says.NOTHING),
    # ER_CON_COUNT_ERROR, ER_SERVER_SHUTDOWN, ER_QUERY_INTERRUPTED, ER_CONNECTION_KILLED,
    # ER_STATEMENT_TIMEOUT, ER_QUERY_TIMEOUT, ER_CLIENT_INTERACTION_TIMEOUT
    **dict.fromkeys((1040, 1053, 1317, 1927, 1969, 3024, 4031), Says.NOTHING),
    # ER_UNKNOWN_COM_ERROR, ER_ERROR_DURING_COMMIT: of a node of Galera without a quorum; a commit
    # may have happened on the others.
    **dict.fromkeys((1047, 1180), Says.NOTHING),
    **dict.fromkeys(range(2000, 3000), Says.NOTHING),  # the client's own, of MySQL's protocol
    # SQLITE_INTERRUPT, SQLITE_IOERR, SQLITE_FULL, SQLITE_CANTOPEN
    **dict.fromkeys((9, 10, 13, 14), Says.NOTHING),
}
# connection_exception, insufficient_resources, operator_intervention
_NOTHING_CLASSES = {"08", "53", "57"}
_FAILED = {"PendingRollbackError", "TransactionManagementError"}  # of SQLAlchemy, of Django
_UNCODED = {"OSError", "OperationalError", "InterfaceError", "TimeoutError"}


def says(error: BaseException) -> Says | None:
    """Return what an error means; ``None``: something else."""
    while (cause := error.__cause__) and of_a_library(cause) and _known(error):
        error = cause  # zklock, a framework or the driver has wrapped it
    code, names = _code(error), {cls.__name__ for cls in type(error).__mro__}
    if names & _FAILED:
        return Says.FAILED
    if code in {None, 0, -1}:
        return Says.NOTHING if names & _UNCODED else None
    given_up = isinstance(code, str) and code[:2] in _NOTHING_CLASSES
    return Says.NOTHING if given_up else _CODES.get(code)


def _code(error: BaseException) -> object:
    if (number := getattr(error, "sqlite_errorcode", None)) is not None:
        return number & 0xFF
    first = next(iter(error.args), None)
    if DIALECTS.get(driver_of(error)) == "mysql":
        return getattr(error, "errno", None) or first
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return first.get("C") if isinstance(first, dict) else sqlstate  # a dict: of pg8000


def _known(error: BaseException) -> bool:
    return isinstance(error, ZkLockError) or of_a_library(error)


@contextlib.contextmanager
def told(resource: str, *, commit: bool = False) -> Iterator[None]:
    """Raise an error of zklock for an error of the driver, with that as its cause.

    ``commit``: the block commits. What the database then says of the user's data passes. So does
    what is no error of a driver.
    """
    try:
        yield
    except ZkLockError:
        raise
    except Exception as error:
        outside = isinstance(error, OSError) and not (commit and isinstance(error, TimeoutError))
        if not (of_a_library(error) or outside):
            raise
        meaning = says(error)
        if meaning is Says.LOST_RACE:
            raise SnapshotTooOld(
                f"{resource}: the database ended this transaction in favour of another one, or "
                "the mark stayed locked: roll back, and repeat the whole transaction with advance "
                "first",
                resource=resource,
            ) from error
        if meaning is Says.FAILED:
            raise ended(resource) from error
        if meaning is Says.NOTHING:
            raise (in_doubt(resource) if commit else unasked(resource)) from error
        if commit:
            raise
        raise refusing(resource, error) from error


def ended(resource: str) -> TransactionEnded:
    """Return the error for a transaction that is not the one of ``advance`` any more."""
    return TransactionEnded(
        f"{resource}: the transaction of advance() has ended or failed: later statements were "
        "rolled back, or committed without the check; look for an ignored error, a commit or "
        "rollback, or DDL",
        resource=resource,
    )


def doubtful(error: BaseException) -> bool:
    """Whether the connection must not be used after this error, which struck inside a driver.

    A time limit or a cancellation can strike there. The reply to the last statement is then half
    read, and the next statement waits for ever, or takes it for its own. An answer of the database
    and an error of the user's own code leave the connection usable.
    """
    return any(_struck_inside(found) for found in _chain(error))


def _struck_inside(error: BaseException) -> bool:
    if isinstance(error, ZkLockError) or package(type(error).__module__) in LIBRARIES:
        return False
    inside = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        caller = package(frame.f_globals.get("__name__", ""))
        # Below a frame of zklock is the user's own code, or a driver.
        inside = caller != "zklock" and (inside or caller in LIBRARIES)
    return inside


def clear(error: BaseException) -> None:
    """Forget the local variables of the functions that the error has left."""
    for found in _chain(error):
        traceback.clear_frames(found.__traceback__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
