"""The connections that people have: drivers, row factories, wrappers, frameworks."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fencing.conftest import Stores
from tests.contract.fencing.guards_under_test import IMPATIENT, Sql, guard_of, read
from tests.contract.fencing.interrupts import Moments, leaves_open, strikes
from tests.unit.bytecodes import nothing_collected
from zklock.errors import GuardUnusable, StaleToken, TransactionEnded
from zklock.fencing import SqlGuard
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
    """Makes each kind of connection to the servers of the other tests."""

    stores: Stores
    elsewhere: int = 0
    """Another port that connections are made to."""

    def store(self, kind: str) -> Sql:
        subject = self.stores[kind]
        assert isinstance(subject, Sql)
        return subject

    def fresh(self, kind: str) -> Sql:
        """Return a resource of the server that connections of this kind are made to."""
        return self.store(CONNECTIONS[kind][0]).fresh()

    def connect(self, kind: str) -> Any:
        return CONNECTIONS[kind][1](self)

    def connecting(self, kind: str) -> Callable[[], Any]:
        return lambda: self.connect(kind)

    def port(self, kind: str) -> int:
        if self.elsewhere:
            return self.elsewhere
        found = re.search(r"port=(\d+)|^(\d+)$", self.store(kind).where)
        assert found is not None
        return int(found[1] or found[2])

    @functools.cached_property
    def engine(self) -> Any:
        """Return an engine whose pool has no limit: a strike may use up a place."""
        import sqlalchemy

        return sqlalchemy.create_engine(self.store("mariadb-sqlalchemy").where, max_overflow=-1)


def sqlite(servers: Servers, row_factory: Any = None, **options: Any) -> Any:
    connection = sqlite3.connect(servers.store("sqlite").where, timeout=30, **options)
    connection.row_factory = row_factory
    return connection


def libpq(name: str, servers: Servers, **options: Any) -> Any:
    return driver(name).connect(
        host="127.0.0.1",
        port=servers.port("postgresql"),
        user="zklock",
        dbname="postgres",
        **options,
    )


psycopg, psycopg2 = functools.partial(libpq, "psycopg"), functools.partial(libpq, "psycopg2")


def pg8000(servers: Servers) -> Any:
    import pg8000.dbapi

    return pg8000.dbapi.connect(
        "zklock",
        host="127.0.0.1",
        port=servers.port("postgresql"),
        database="postgres",
        ssl_context=False,  # else it reads the system's authorities for each connection
    )


def of_mysql(name: str, servers: Servers, **options: Any) -> Any:
    return driver(name).connect(
        host="127.0.0.1",
        port=servers.port("mariadb"),
        user="root",
        database="zklock",
        ssl_disabled=True,  # else it reads the system's authorities for each connection
        **options,
    )


pymysql = functools.partial(of_mysql, "pymysql")
mysql_connector = functools.partial(of_mysql, "mysql.connector", collation="utf8mb4_general_ci")


@contextlib.contextmanager
def alchemy(
    url: str, connect: Callable[[Any], Any] = lambda engine: engine.connect(), **options: Any
) -> Iterator[Any]:
    import sqlalchemy

    engine = sqlalchemy.create_engine(url, **options)
    try:
        with contextlib.closing(connect(engine)) as connection:
            yield connection
    finally:
        engine.dispose()


def engine_of(kind: str, *connect: Any, **options: Any) -> tuple[str, Callable[[Servers], Any]]:
    return kind, lambda to: alchemy(to.store(kind).where, *connect, **options)


def alchemy_psycopg2(servers: Servers) -> Any:
    driver("psycopg2")
    return alchemy(f"postgresql+psycopg2://zklock@127.0.0.1:{servers.port('postgresql')}/postgres")


def orm_session(engine: Any) -> Any:
    import sqlalchemy.orm

    class Session(sqlalchemy.orm.Session):
        pass

    Session.__module__ = "application.models"
    return Session(engine)


def scoped_session(engine: Any) -> Any:
    import sqlalchemy.orm

    return sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine))


def django(kind: str, servers: Servers, autocommit: bool = False) -> Any:
    import django.conf
    import django.db

    if not django.conf.settings.configured:
        django.conf.settings.configure()
        django.setup()
    place: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3"}
    place["NAME"] = servers.store("sqlite").where
    if kind == "postgresql":
        place = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "zklock"}
        place |= {"HOST": "127.0.0.1", "PORT": servers.port(kind)}
    connection = django.db.utils.ConnectionHandler({"default": place})["default"]
    connection.set_autocommit(autocommit)
    return connection


def dicts(cursor: Any, row: Any) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def cursors(name: str) -> Any:
    from pymysql import cursors

    return getattr(cursors, name)


class Connection(sqlite3.Connection):
    """An application's own."""


# Where the server is, and what makes the connection.
CONNECTIONS: dict[str, tuple[str, Callable[[Servers], Any]]] = {
    "sqlite": ("sqlite", sqlite),
    "sqlite_rows": ("sqlite", lambda to: sqlite(to, sqlite3.Row)),
    "sqlite_dicts": ("sqlite", lambda to: sqlite(to, dicts)),
    "sqlite_subclass": ("sqlite", lambda to: sqlite(to, factory=Connection)),
    "psycopg": ("postgresql", psycopg),
    "psycopg_dicts": (
        "postgresql",
        lambda to: psycopg(to, row_factory=driver("psycopg.rows").dict_row),
    ),
    "psycopg2": ("postgresql", psycopg2),
    "psycopg2_dicts": (
        "postgresql",
        lambda to: psycopg2(to, cursor_factory=driver("psycopg2.extras").RealDictCursor),
    ),
    "pg8000": ("postgresql", pg8000),
    "pymysql": ("mariadb", pymysql),
    "pymysql_dicts": ("mariadb", lambda to: pymysql(to, cursorclass=cursors("DictCursor"))),
    "pymysql_streaming": ("mariadb", lambda to: pymysql(to, cursorclass=cursors("SSDictCursor"))),
    "mysql_connector": ("mariadb", mysql_connector),
    "sqlalchemy_mysql_connector": (
        "mariadb",
        lambda to: alchemy(
            f"mysql+mysqlconnector://root@127.0.0.1:{to.port('mariadb')}/zklock"
            "?collation=utf8mb4_general_ci"
        ),
    ),
    "sqlalchemy_psycopg2": ("postgresql", alchemy_psycopg2),
    "sqlalchemy_streaming": engine_of("postgresql-sqlalchemy", execution_options={"yield_per": 10}),
    "sqlalchemy_raw": engine_of("postgresql-sqlalchemy", lambda engine: engine.raw_connection()),
    "sqlalchemy_session_subclass": engine_of("sqlite-sqlalchemy", orm_session),
    "sqlalchemy_scoped_session": engine_of("sqlite-sqlalchemy", scoped_session),
    "pool": ("mariadb-sqlalchemy", lambda to: to.engine.connect()),
    "django_sqlite": ("sqlite", lambda to: django("sqlite", to)),
    "django_postgresql": ("postgresql", lambda to: django("postgresql", to)),
}
# What the other tests have, and what is struck.
ELSEWHERE = {"sqlite", "psycopg", "pymysql", "pool"}


@pytest.mark.parametrize("kind", [each for each in CONNECTIONS if each not in ELSEWHERE])
def test_is_guarded_as_any_other(kind: str, stores: Stores) -> None:
    servers = Servers(stores)
    store, connect = servers.fresh(kind), servers.connecting(kind)
    guard = SqlGuard(connect, store.resource)
    guard.create_table()
    guard.create()
    assert guard.highest() is None
    guard.claim(B)
    assert guard.run(B, lambda _: "done") == "done"
    with pytest.raises(StaleToken):
        guard.claim(A)
    assert guard.highest() == guard_of(store).highest() == B
    with pytest.raises(GuardUnusable, match=r"fix what it reports: .*missing_fence"):
        SqlGuard(connect, store.resource, table="missing_fence").claim(B)
    lost = f"{store.resource} never made"
    with pytest.raises(GuardUnusable, match="call create"):
        SqlGuard(connect, lost).claim(B)


@leaves_open
@pytest.mark.parametrize(
    "number", [20, pytest.param(1000, marks=pytest.mark.thorough("a thousand strikes"))]
)
@pytest.mark.slow("real servers, and connections that are struck or lost")
@pytest.mark.parametrize(
    "kind", ["sqlite", "psycopg2", "pg8000", "pymysql", "mysql_connector", "pool"]
)
def test_after_a_strike_anywhere_nothing_hangs_and_nothing_is_locked(
    kind: str, stores: Stores, number: int
) -> None:
    """A reply that is half read was waited for by the rollback, or taken by the next write."""
    servers = Servers(stores)
    store = servers.fresh(kind)
    guard = SqlGuard(servers.connecting(kind), store.resource)

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
    connect = servers.connecting(kind)
    guard = SqlGuard(connect, servers.fresh(kind).resource)
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
    store = servers.fresh(kind)
    with contextlib.closing(servers.connect(kind)) as connection:
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
    guard = guard_of(store)

    def change(connection: Any) -> None:
        unread = _executed(connection, "SELECT resource FROM data")
        raise KeyError(str(unread))

    with nothing_collected():
        with contextlib.suppress(KeyError):
            guard.run(B, change)
        other = SqlGuard(lambda: sqlite3.connect(store.where, timeout=0), store.resource)
        other.claim(B, attempts=1)


@pytest.mark.parametrize(
    "kind", ["psycopg", "sqlalchemy_streaming", "psycopg2", "pg8000", "pymysql", "pool",
             "mysql_connector", "sqlalchemy_mysql_connector"],
)  # fmt: skip
def test_a_deadlock_is_tried_again(kind: str, stores: Stores) -> None:
    """Two transactions that lock two marks in opposite order: one is ended, and repeated."""
    servers = Servers(stores)
    one, other = (
        SqlGuard(servers.connecting(kind), servers.fresh(kind).resource) for _ in range(2)
    )
    meeting, tries = threading.Barrier(2), list[str]()

    def work(first: SqlGuard, second: SqlGuard) -> None:
        def change(connection: Any) -> None:
            tries.append(first.resource)
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(2)
            second.advance(connection, B)

        first.run(B, change)

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(work, one, other), pool.submit(work, other, one)]:
            done.result(60)
    assert len(tries) > 2
    assert one.highest() == other.highest() == B
    if kind == "pool":
        servers.engine.dispose()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_lock_timeout_is_tried_again(kind: str, stores: Stores) -> None:
    store = Servers(stores).store(kind).fresh()
    attempts = 0
    with contextlib.closing(store.connect()) as other:
        guard_of(store).advance(other, A)

        def connect() -> Any:
            nonlocal attempts
            attempts += 1
            if attempts == 2:
                other.commit()
            connection = store.connect()
            store.execute(IMPATIENT[store.dialect], connection)
            connection.commit()
            return connection

        SqlGuard(connect, store.resource).claim(B)
    assert attempts == 2


def test_psycopgs_pipeline_is_refused(stores: Stores) -> None:
    """In it the rows of the mark come later: they looked like a mark that is missing."""
    servers = Servers(stores)
    store = servers.store("postgresql").fresh()
    guard = guard_of(store)
    with contextlib.closing(psycopg(servers)) as connection:
        with connection.pipeline(), pytest.raises(ValueError, match="pipeline mode"):
            guard.advance(connection, B)
        with guard.advance(connection, B), connection.pipeline():
            connection.execute("SELECT 1")
        connection.commit()
    assert guard.highest() == B


# Autocommit


def _autocommitting(connection: Any) -> Any:
    connection.autocommit = True
    return connection


def _alchemy_autocommit(kind: str) -> tuple[str, Callable[[Servers], Any]]:
    def connect(servers: Servers) -> Any:
        connection = servers.store(kind).connect()
        return connection.execution_options(isolation_level="AUTOCOMMIT")

    return kind, connect


AUTOCOMMIT: dict[str, tuple[str, Callable[[Servers], Any]]] = {
    "sqlite3": ("sqlite", lambda to: sqlite(to, isolation_level=None)),
    "psycopg": ("postgresql", lambda to: psycopg(to, autocommit=True)),
    "psycopg2": ("postgresql", lambda to: _autocommitting(psycopg2(to))),
    "pg8000": ("postgresql", lambda to: _autocommitting(pg8000(to))),
    "pymysql": ("mariadb", lambda to: pymysql(to, autocommit=True)),
    "mysql_connector": ("mariadb", lambda to: mysql_connector(to, autocommit=True)),
    "django sqlite": ("sqlite", lambda to: django("sqlite", to, autocommit=True)),
    "django postgresql": ("postgresql", lambda to: django("postgresql", to, autocommit=True)),
    "sqlalchemy sqlite": _alchemy_autocommit("sqlite-sqlalchemy"),
    "sqlalchemy postgresql": _alchemy_autocommit("postgresql-sqlalchemy"),
    "sqlalchemy mariadb": _alchemy_autocommit("mariadb-sqlalchemy"),
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
        guard_elsewhere = guard_of(store)
        assert guard_elsewhere.highest() == A
        guard_of(store).advance(connection, B)
        assert guard_elsewhere.highest() == A
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        guard.run(A, change)
    assert guard.highest() == A
    with contextlib.closing(connect(servers)) as connection:
        again = SqlGuard(lambda: contextlib.nullcontext(connection), store.resource)
        again.claim(B)
        assert guard_of(store).highest() == B
        with pytest.raises(StaleToken):
            again.claim(A)
        again.claim(B)


@pytest.mark.parametrize("kind", ["psycopg2", "psycopg in autocommit mode"])
def test_a_commit_sent_as_text_is_told_as_what_it_was(kind: str, stores: Stores) -> None:
    """The driver begins no other transaction: what comes next is committed, and not fenced."""
    servers = Servers(stores)
    store = servers.store("postgresql").fresh()
    connect = {
        "psycopg2": lambda: psycopg2(servers),
        "psycopg in autocommit mode": lambda: psycopg(servers, autocommit=True),
    }[kind]

    def change(connection: Any) -> None:
        _executed(connection, "COMMIT")
        where = f"WHERE resource = '{store.resource}'"
        _executed(connection, f"UPDATE data SET value = 'unfenced' {where}")

    with pytest.raises(TransactionEnded, match=r"committed without the check"):
        SqlGuard(connect, store.resource).run(B, change)
    assert read(store) == b"unfenced"


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
    assert guard_of(store).highest() == A


# asyncio


async def test_what_is_asynchronous_is_refused_at_the_call(stores: Stores) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    awaited = driver("psycopg").AsyncConnection
    store = Servers(stores).store("postgresql-sqlalchemy")
    guard = SqlGuard(store.connect, "report")
    refused = pytest.raises(TypeError, match=r"is asynchronous.*zklock\.fencing\.aio\.SqlGuard")
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
        async with await awaited.connect(dsn) as connection:
            with refused:
                guard.advance(connection, A)
        with refused:
            SqlGuard(lambda: awaited.connect(dsn), "report").highest()
    finally:
        await engine.dispose()


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
    guard = guard_of(store)
    guard.claim(B)

    with contextlib.closing(django(kind, servers, autocommit=True)) as connection:
        from django.db import connections, transaction

        connections["guarded"] = connection
        sql = f"UPDATE data SET value = %s WHERE resource = '{store.resource}'"
        with transaction.atomic(using="guarded"):
            connection.cursor().execute(sql, [b"before"])
            with pytest.raises(StaleToken):
                guard.advance(connection, A)
            with pytest.raises(transaction.TransactionManagementError):
                connection.cursor().execute(sql, [b"stale"])
        assert read(store) == b""
        with transaction.atomic(using="guarded"), guard.advance(connection, B):
            connection.cursor().execute(sql, [b"b"])
        assert read(store) == b"b"
        del connections["guarded"]
