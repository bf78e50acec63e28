"""Tells which driver a connection or an error comes from."""

from __future__ import annotations

import inspect

from zklock.fencing._sql.statements import Dialect

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
