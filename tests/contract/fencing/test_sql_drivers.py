"""The connections that people have: drivers, row factories, wrappers, frameworks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fencing.conftest import Stores
from tests.contract.fencing.guards_under_test import Sql
from tests.contract.fencing.interrupts import Moments, leaves_open, strikes
from tests.unit.bytecodes import nothing_collected
from zklock.errors import GuardUnusable, StaleToken, TransactionEnded
from zklock.fencing import SqlGuard, is_retryable
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)


def driver(name: str) -> Any:
    """Return a module of a driver; skip where it is missing, as on a Python without its wheels."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"no {name}: install the extra test ({error})")


@dataclass
class Servers:
    """How each kind of connection is made, to the servers of the other tests."""

    stores: Stores

    def store(self, kind: str) -> Sql:
        subject = self.stores[kind]
        assert isinstance(subject, Sql)
        return subject

    def sqlite(self) -> Any:
        return sqlite3.connect(self.store("sqlite").where, timeout=30)

    def sqlite_rows(self) -> Any:
        connection = self.sqlite()
        connection.row_factory = sqlite3.Row
        return connection

    def sqlite_dicts(self) -> Any:
        connection = self.sqlite()
        connection.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }
        return connection

    def sqlite_scalars(self) -> Any:
        connection = self.sqlite()
        connection.row_factory = lambda _, row: row[0]
        return connection

    def sqlite_subclass(self) -> Any:
        class Connection(sqlite3.Connection):
            pass

        return sqlite3.connect(self.store("sqlite").where, timeout=30, factory=Connection)

    def psycopg(self, **options: Any) -> Any:
        return driver("psycopg").connect(self.store("postgresql").where, **options)

    def psycopg_dicts(self) -> Any:
        return self.psycopg(row_factory=driver("psycopg.rows").dict_row)

    def psycopg_scalars(self) -> Any:
        return self.psycopg(row_factory=driver("psycopg.rows").scalar_row)

    def psycopg_raw_cursor(self) -> Any:
        return self.psycopg(cursor_factory=driver("psycopg").RawCursor)

    def psycopg2(self, **options: Any) -> Any:
        return driver("psycopg2").connect(self.store("postgresql").where, **options)

    def psycopg2_dicts(self) -> Any:
        return self.psycopg2(cursor_factory=driver("psycopg2.extras").RealDictCursor)

    def pg8000(self) -> Any:
        import pg8000.dbapi

        return pg8000.dbapi.connect(
            "zklock",
            host="127.0.0.1",
            port=self.port("postgresql"),
            database="postgres",
            ssl_context=False,  # else it reads the system's authorities for each connection
        )

    def pymysql(self, **options: Any) -> Any:
        import pymysql

        return pymysql.connect(
            host="127.0.0.1",
            port=self.port("mariadb"),
            user="root",
            database="zklock",
            ssl_disabled=True,  # else it reads the system's authorities for each connection
            **options,
        )

    def pymysql_dicts(self) -> Any:
        from pymysql.cursors import DictCursor

        return self.pymysql(cursorclass=DictCursor)

    def pymysql_streaming(self) -> Any:
        from pymysql.cursors import SSDictCursor

        return self.pymysql(cursorclass=SSDictCursor)

    def mysql_connector(self, **options: Any) -> Any:
        import mysql.connector

        return mysql.connector.connect(
            host="127.0.0.1",
            port=self.port("mariadb"),
            user="root",
            database="zklock",
            collation="utf8mb4_general_ci",
            **options,
        )

    def sqlalchemy_mysql_connector(self) -> Any:
        import sqlalchemy

        url = (
            f"mysql+mysqlconnector://root@127.0.0.1:{self.port('mariadb')}/zklock"
            "?collation=utf8mb4_general_ci"
        )
        engine = sqlalchemy.create_engine(url)
        return self.disposed(engine, engine.connect)

    def sqlalchemy_psycopg2(self) -> Any:
        import sqlalchemy

        driver("psycopg2")

        url = f"postgresql+psycopg2://zklock@127.0.0.1:{self.port('postgresql')}/postgres"
        engine = sqlalchemy.create_engine(url)
        return self.disposed(engine, engine.connect)

    @functools.cached_property
    def engine(self) -> Any:
        """Return an engine whose pool has no limit: a strike may use up a place."""
        import sqlalchemy

        return sqlalchemy.create_engine(self.store("mariadb-sqlalchemy").where, max_overflow=-1)

    def pool(self) -> Any:
        return self.engine.connect()

    def sqlalchemy_streaming(self) -> Any:
        import sqlalchemy

        engine = sqlalchemy.create_engine(
            self.store("postgresql-sqlalchemy").where, execution_options={"yield_per": 10}
        )
        return self.disposed(engine, engine.connect)

    def sqlalchemy_raw(self) -> Any:
        import sqlalchemy

        engine = sqlalchemy.create_engine(self.store("postgresql-sqlalchemy").where)
        return self.disposed(engine, engine.raw_connection)

    def sqlalchemy_session_subclass(self) -> Any:
        import sqlalchemy.orm

        class Session(sqlalchemy.orm.Session):
            pass

        Session.__module__ = "application.models"
        engine = sqlalchemy.create_engine(self.store("sqlite-sqlalchemy").where)
        return self.disposed(engine, lambda: Session(engine))

    def sqlalchemy_scoped_session(self) -> Any:
        import sqlalchemy.orm

        engine = sqlalchemy.create_engine(self.store("sqlite-sqlalchemy").where)
        maker = sqlalchemy.orm.sessionmaker(engine)
        return self.disposed(engine, lambda: sqlalchemy.orm.scoped_session(maker))

    def django_sqlite(self) -> Any:
        return self.django("sqlite3", self.store("sqlite").where)

    def django_postgresql(self) -> Any:
        return self.django("postgresql", "postgres", "postgresql", USER="zklock")

    def django(self, engine: str, name: str, kind: str = "", **settings: Any) -> Any:
        import django.conf
        import django.db

        if not django.conf.settings.configured:
            django.conf.settings.configure()
            django.setup()
        database = {"ENGINE": f"django.db.backends.{engine}", "NAME": name, **settings}
        if kind:
            database |= {"HOST": "127.0.0.1", "PORT": self.port(kind)}
        connection = django.db.utils.ConnectionHandler({"default": database})["default"]
        connection.set_autocommit(False)
        return connection

    def port(self, kind: str) -> int:
        found = re.search(r"port=(\d+)|^(\d+)$", self.store(kind).where)
        assert found is not None
        return int(found[1] or found[2])

    @contextlib.contextmanager
    def disposed(self, engine: Any, connect: Callable[[], Any]) -> Iterator[Any]:
        try:
            with contextlib.closing(connect()) as connection:
                yield connection
        finally:
            engine.dispose()


KINDS = {
    "sqlite_rows": "sqlite",
    "sqlite_dicts": "sqlite",
    "sqlite_scalars": "sqlite",
    "sqlite_subclass": "sqlite",
    "psycopg_dicts": "postgresql",
    "psycopg_scalars": "postgresql",
    "psycopg_raw_cursor": "postgresql",
    "psycopg2": "postgresql",
    "psycopg2_dicts": "postgresql",
    "pg8000": "postgresql",
    "pymysql_dicts": "mariadb",
    "pymysql_streaming": "mariadb",
    "mysql_connector": "mariadb",
    "sqlalchemy_mysql_connector": "mariadb",
    "sqlalchemy_psycopg2": "postgresql",
    "sqlalchemy_streaming": "postgresql",
    "sqlalchemy_raw": "postgresql",
    "sqlalchemy_session_subclass": "sqlite-sqlalchemy",
    "sqlalchemy_scoped_session": "sqlite-sqlalchemy",
    "django_sqlite": "sqlite",
    "django_postgresql": "postgresql",
}


@pytest.mark.parametrize("kind", KINDS)
def test_is_guarded_as_any_other(kind: str, stores: Stores) -> None:
    servers = Servers(stores)
    store = servers.store(KINDS[kind]).fresh()
    connect: Callable[[], Any] = getattr(servers, kind)
    guard = SqlGuard(connect, store.resource)
    guard.create_table()
    guard.create()
    assert guard.highest() is None
    guard.claim(B)
    assert guard.run(B, lambda _: "done") == "done"
    with pytest.raises(StaleToken):
        guard.claim(A)
    assert guard.highest() == SqlGuard(store.connect, store.resource).highest() == B
    with pytest.raises(GuardUnusable, match=r"has no table missing_fence.*create_table\(\)"):
        SqlGuard(connect, store.resource, table="missing_fence").claim(B)
    lost = f"{store.resource} never made"
    with pytest.raises(GuardUnusable, match="call create"):
        SqlGuard(connect, lost).claim(B)


STRUCK = {
    "sqlite": "sqlite",
    "psycopg2": "postgresql",
    "pg8000": "postgresql",
    "pymysql": "mariadb",
    "mysql_connector": "mariadb",
    "pool": "mariadb-sqlalchemy",
}


@leaves_open
@pytest.mark.parametrize(
    "number", [20, pytest.param(1000, marks=pytest.mark.thorough("a thousand strikes"))]
)
@pytest.mark.slow("real servers, and connections that are struck or lost")
@pytest.mark.parametrize("kind", STRUCK)
def test_after_a_strike_anywhere_nothing_hangs_and_nothing_is_locked(
    kind: str, stores: Stores, number: int
) -> None:
    """A reply that is half read was waited for by the rollback, or taken by the next write."""
    servers = Servers(stores)
    store = servers.store(STRUCK[kind]).fresh()
    guard = SqlGuard(getattr(servers, kind), store.resource)

    def write(value: str) -> str:
        where = f"WHERE resource = '{store.resource}'"

        def change(connection: Any) -> Any:
            _executed(connection, f"UPDATE data SET value = '{value}' {where}")
            return _executed(connection, f"SELECT value FROM data {where}").fetchone()[0]

        written = guard.run(B, change)
        return written if isinstance(written, str) else bytes(written).decode()

    def struck(turn: int) -> None:
        # A library may say what struck in an error of its own.
        with contextlib.suppress(Exception):
            write("struck")

    for turn, _ in strikes(struck, number, seed=29):
        for value in (f"{turn} a", f"{turn} b"):
            assert write(value) == value
        with pytest.raises(StaleToken):
            guard.claim(A)
        assert guard.highest() == B
    if kind == "pool":
        servers.engine.dispose()


@pytest.mark.slow("real servers, and connections that are struck or lost")
@leaves_open
@pytest.mark.parametrize("kind", ["pg8000", "pymysql", "mysql_connector"])
def test_a_strike_at_the_end_of_a_block_hangs_nothing(kind: str, stores: Stores) -> None:
    """What makes the transaction fail was sent while a reply was half read."""
    servers = Servers(stores)
    connect: Callable[[], Any] = getattr(servers, kind)
    guard = SqlGuard(connect, servers.store(STRUCK[kind]).fresh().resource)
    moments = Moments()

    def block(at: int = -1) -> None:
        with contextlib.suppress(Exception), contextlib.closing(connect()) as connection:
            fence = guard.advance(connection, B)
            fence.__enter__()
            moments.run(lambda: fence.__exit__(None, None, None), at)

    block()
    for at in range(1, moments.count + 1):
        block(at)
        guard.claim(B)


def _executed(connection: Any, statement: str) -> Any:
    if hasattr(connection, "exec_driver_sql"):
        return connection.exec_driver_sql(statement)
    cursor = connection.cursor()
    cursor.execute(statement)
    return cursor


@pytest.mark.parametrize("kind", ["sqlite", "psycopg2", "mysql_connector"])
def test_an_error_of_the_users_own_leaves_the_connection_usable(kind: str, stores: Stores) -> None:
    servers = Servers(stores)
    store = servers.store(STRUCK[kind]).fresh()
    with contextlib.closing(getattr(servers, kind)()) as connection:
        guard = SqlGuard(lambda: contextlib.nullcontext(connection), store.resource)

        def change(_: Any) -> None:
            raise KeyError

        with pytest.raises(KeyError):
            guard.run(B, change)
        guard.claim(B)
        with pytest.raises(KeyError), guard.advance(connection, B):
            raise KeyError
        connection.commit()
        assert guard.highest() == B


def test_an_error_that_is_over_leaves_nothing_locked(stores: Stores) -> None:
    """SQLite keeps the locks of a closed connection until its last cursor is gone."""
    store = Servers(stores).store("sqlite").fresh()
    guard = SqlGuard(store.connect, store.resource)

    def change(connection: Any) -> None:
        unread = _executed(connection, "SELECT resource FROM data")
        raise KeyError(str(unread))

    with nothing_collected():
        with contextlib.suppress(KeyError):
            guard.run(B, change)
        other = SqlGuard(lambda: sqlite3.connect(store.where, timeout=0), store.resource)
        other.claim(B, attempts=1)


@pytest.mark.parametrize(
    "kind", ["psycopg2", "pg8000", "mysql_connector", "sqlalchemy_mysql_connector"]
)
def test_a_deadlock_is_recognised(kind: str, stores: Stores) -> None:
    """One of two transactions that lock two marks in opposite order is told to try again."""
    servers = Servers(stores)
    store = servers.store(KINDS[kind])
    connect: Callable[[], Any] = getattr(servers, kind)
    first, second = (SqlGuard(connect, store.fresh().resource) for _ in range(2))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:
        one, other = (
            stack.enter_context(
                made if hasattr(made, "gen") else contextlib.closing(made)  # `disposed`
            )
            for made in (connect(), connect())
        )
        first.advance(one, A)
        second.advance(other, A)
        waiting = pool.submit(_outcome, lambda: second.advance(one, A), one)
        errors = [_outcome(lambda: first.advance(other, A), other), waiting.result(30)]
    (error,) = [error for error in errors if error is not None]
    assert is_retryable(error)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_lock_timeout_is_tried_again(kind: str, stores: Stores) -> None:
    store = Servers(stores).store(kind).fresh()
    setting = {
        "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
        "postgresql": "SET SESSION lock_timeout = 100",
    }[store.dialect]
    attempts = 0
    with contextlib.closing(store.connect()) as other:
        SqlGuard(store.connect, store.resource).advance(other, A)

        def connect() -> Any:
            nonlocal attempts
            attempts += 1
            if attempts == 2:
                other.commit()
            connection = store.connect()
            store.execute(setting, connection)
            connection.commit()
            return connection

        SqlGuard(connect, store.resource).claim(B)
    assert attempts == 2


def test_psycopgs_pipeline_is_refused(stores: Stores) -> None:
    """In it the rows of the mark come later: they looked like a mark that is missing."""
    servers = Servers(stores)
    store = servers.store("postgresql").fresh()
    guard = SqlGuard(store.connect, store.resource)
    with contextlib.closing(servers.psycopg()) as connection:
        with connection.pipeline(), pytest.raises(ValueError, match="pipeline mode"):
            guard.advance(connection, B)
        with guard.advance(connection, B), connection.pipeline():
            connection.execute("SELECT 1")
        connection.commit()
    assert guard.highest() == B


def _outcome(action: Callable[[], object], connection: Any) -> Exception | None:
    try:
        action()
    except Exception as error:
        return error
    else:
        return None
    finally:
        connection.rollback()


# Autocommit


def _psycopg2_autocommit(servers: Servers) -> Any:
    connection = servers.psycopg2()
    connection.autocommit = True
    return connection


def _pg8000_autocommit(servers: Servers) -> Any:
    connection = servers.pg8000()
    connection.autocommit = True
    return connection


def _django_autocommit(servers: Servers, kind: str) -> Any:
    connection = getattr(servers, f"django_{kind}")()
    connection.set_autocommit(True)
    return connection


def _sqlite_autocommit(servers: Servers) -> Any:
    connection = servers.sqlite()
    connection.isolation_level = None
    return connection


def _alchemy_autocommit(servers: Servers, kind: str) -> Any:
    connection = servers.store(f"{kind}-sqlalchemy").connect()
    return connection.execution_options(isolation_level="AUTOCOMMIT")


AUTOCOMMIT: dict[str, tuple[str, Callable[[Servers], Any]]] = {
    "sqlite3": ("sqlite", _sqlite_autocommit),
    "psycopg": ("postgresql", lambda servers: servers.psycopg(autocommit=True)),
    "psycopg2": ("postgresql", _psycopg2_autocommit),
    "pg8000": ("postgresql", _pg8000_autocommit),
    "pymysql": ("mariadb", lambda servers: servers.pymysql(autocommit=True)),
    "mysql_connector": ("mariadb", lambda servers: servers.mysql_connector(autocommit=True)),
    "django sqlite": ("sqlite", lambda servers: _django_autocommit(servers, "sqlite")),
    "django postgresql": ("postgresql", lambda servers: _django_autocommit(servers, "postgresql")),
    "sqlalchemy sqlite": (
        "sqlite-sqlalchemy",
        lambda servers: _alchemy_autocommit(servers, "sqlite"),
    ),
    "sqlalchemy postgresql": (
        "postgresql-sqlalchemy",
        lambda servers: _alchemy_autocommit(servers, "postgresql"),
    ),
    "sqlalchemy mariadb": (
        "mariadb-sqlalchemy",
        lambda servers: _alchemy_autocommit(servers, "mariadb"),
    ),
}


@pytest.mark.parametrize("kind", AUTOCOMMIT)
def test_advance_refuses_autocommit_and_run_begins(kind: str, stores: Stores) -> None:
    servers = Servers(stores)
    where, connect = AUTOCOMMIT[kind]
    store = servers.store(where).fresh()
    guard = SqlGuard(lambda: connect(servers), store.resource)
    with (
        contextlib.closing(connect(servers)) as connection,
        pytest.raises(ValueError, match="autocommit mode: begin a transaction"),
    ):
        guard.advance(connection, A)
    assert guard.highest() is None
    guard.claim(A)

    def change(connection: Any) -> None:
        guard_elsewhere = SqlGuard(store.connect, store.resource)
        assert guard_elsewhere.highest() == A
        SqlGuard(store.connect, store.resource).advance(connection, B)
        assert guard_elsewhere.highest() == A
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        guard.run(A, change)
    assert guard.highest() == A
    with contextlib.closing(connect(servers)) as connection:
        again = SqlGuard(lambda: contextlib.nullcontext(connection), store.resource)
        again.claim(B)
        assert SqlGuard(store.connect, store.resource).highest() == B
        with pytest.raises(StaleToken):
            again.claim(A)
        again.claim(B)


@pytest.mark.parametrize("kind", ["psycopg2", "psycopg in autocommit mode"])
def test_a_commit_sent_as_text_is_told_as_what_it_was(kind: str, stores: Stores) -> None:
    """The driver begins no other transaction: what comes next is committed, and not fenced."""
    servers = Servers(stores)
    store = servers.store("postgresql").fresh()
    connect = {
        "psycopg2": servers.psycopg2,
        "psycopg in autocommit mode": lambda: servers.psycopg(autocommit=True),
    }[kind]

    def change(connection: Any) -> None:
        _executed(connection, "COMMIT")
        where = f"WHERE resource = '{store.resource}'"
        _executed(connection, f"UPDATE data SET value = 'unfenced' {where}")

    with pytest.raises(TransactionEnded, match=r"committed without the check"):
        SqlGuard(connect, store.resource).run(B, change)
    row = store.execute("SELECT value FROM data WHERE resource = :r", r=store.resource)
    assert bytes(row[0]) == b"unfenced"


@pytest.mark.parametrize("kind", [kind for kind in AUTOCOMMIT if "sqlalchemy" not in kind])
def test_a_connection_in_autocommit_mode_stays_as_it_was(kind: str, stores: Stores) -> None:
    """A mark that is missing leaves no transaction that the caller does not know of."""
    servers = Servers(stores)
    where, connect = AUTOCOMMIT[kind]
    store = servers.store(where).fresh()
    with contextlib.closing(connect(servers)) as connection:
        with pytest.raises((GuardUnusable, ValueError)):
            SqlGuard(store.connect, "never made").advance(connection, A)
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute("UPDATE data SET value = NULL WHERE 1 = 0")
        SqlGuard(lambda: contextlib.nullcontext(connection), store.resource).claim(A)
    assert SqlGuard(store.connect, store.resource).highest() == A


# asyncio


def test_what_is_asynchronous_is_refused_at_the_call(stores: Stores, tmp_path: Path) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    psycopg = driver("psycopg")
    store = Servers(stores).store("postgresql-sqlalchemy")
    guard = SqlGuard(store.connect, "report")
    refused = pytest.raises(TypeError, match=r"is asynchronous.*zklock\.fencing\.aio\.SqlGuard")

    async def main() -> None:
        engine = create_async_engine(store.where)
        try:
            async with engine.connect() as connection, AsyncSession(engine) as session:
                for given in (connection, session):
                    with refused:
                        guard.advance(given, A)
                    with refused:
                        guard.create(given)
            with refused:
                SqlGuard(engine.connect, "report").claim(A)
            dsn = Servers(stores).store("postgresql").where
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                with refused:
                    guard.advance(connection, A)
            with refused:
                SqlGuard(lambda: psycopg.AsyncConnection.connect(dsn), "report").highest()
        finally:
            await engine.dispose()

    asyncio.run(main())


def test_what_is_no_connection_is_refused(stores: Stores) -> None:
    store = Servers(stores).store("sqlite-sqlalchemy")
    with contextlib.closing(store.connect()) as connection:
        engine = connection.engine
    with pytest.raises(TypeError, match=r"not sqlalchemy\.engine\.base\.Engine"):
        SqlGuard(store.connect, "report").advance(engine, A)


# A session commits its connections in no order: the other one may be committed before the refusal.
@pytest.mark.filterwarnings("ignore:transaction already deassociated")
def test_a_session_with_several_engines_is_fenced_on_the_connection_that_writes(
    tmp_path: Path,
) -> None:
    import sqlalchemy
    import sqlalchemy.orm

    registry = sqlalchemy.orm.registry()
    table = sqlalchemy.Table(
        "reports", registry.metadata, sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True)
    )

    class Report:
        pass

    registry.map_imperatively(Report, table)
    reads, writes = (sqlalchemy.create_engine(f"sqlite:///{tmp_path / name}") for name in "ab")
    registry.metadata.create_all(writes)
    guard = SqlGuard(writes.connect, "report")
    guard.create_table()
    guard.create()
    guard.claim(B)
    with sqlalchemy.orm.Session(reads, binds={Report: writes}) as session:
        session.connection()
        for token in (A, B):
            connection = session.connection(bind_arguments={"mapper": Report})
            session.add(Report())
            with contextlib.suppress(StaleToken):
                guard.advance(connection, token)
            with pytest.raises(StaleToken) if token is A else contextlib.nullcontext():
                session.commit()
            session.rollback()
        assert session.query(Report).count() == 1
    reads.dispose()
    writes.dispose()


# Django


@pytest.mark.hazard("H47")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_atomic_block_of_django_rolls_back_what_was_refused(kind: str, stores: Stores) -> None:
    servers = Servers(stores)
    store = servers.store(kind).fresh()
    guard = SqlGuard(store.connect, store.resource)
    guard.claim(B)

    def value() -> bytes | None:
        row = store.execute("SELECT value FROM data WHERE resource = :r", r=store.resource)
        return None if row[0] is None else bytes(row[0])

    with contextlib.closing(_django_autocommit(servers, kind)) as connection:
        from django.db import connections, transaction

        connections["guarded"] = connection
        sql = f"UPDATE data SET value = %s WHERE resource = '{store.resource}'"
        with transaction.atomic(using="guarded"):
            connection.cursor().execute(sql, [b"before"])
            with pytest.raises(StaleToken):
                guard.advance(connection, A)
            with pytest.raises(transaction.TransactionManagementError):
                connection.cursor().execute(sql, [b"stale"])
        assert value() is None
        with transaction.atomic(using="guarded"), guard.advance(connection, B):
            connection.cursor().execute(sql, [b"b"])
        assert value() == b"b"
        del connections["guarded"]
