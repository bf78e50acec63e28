"""What a guard raises of its own work is an error of zklock, with the store's error behind it."""

from __future__ import annotations

import contextlib
import gc
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.contract.fencing.awaited import fresh
from tests.contract.fencing.conftest import Stores
from tests.contract.fencing.guards_under_test import AsyncSql, RedisStore, Sql, guard_of
from tests.contract.fencing.lossy import LosesTheCommit
from tests.contract.fencing.test_sql_drivers import CONNECTIONS, Servers, psycopg
from zklock.errors import GuardUnusable, NoAnswer, OutcomeUnknown, ZkLockError
from zklock.fencing import RedisGuard, SqlGuard, aio, is_retryable
from zklock.testing.ports import free_ports
from zklock.token import FencingToken

# pg8000 and MySQL's connector leave the socket of a connection that fails to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

A, B = FencingToken(7, 33), FencingToken(7, 34)

DRIVERS = [
    "psycopg",
    "psycopg2",
    "pg8000",
    "sqlalchemy_psycopg2",
    "pymysql",
    "mysql_connector",
    "sqlalchemy_mysql_connector",
    "postgresql-asyncpg",
]


@pytest.fixture(autouse=True)
def nothing_is_left_to_other_tests() -> Iterator[None]:
    yield
    gc.collect()


@contextlib.contextmanager
def guarded(stores: Stores, kind: str, elsewhere: int = 0) -> Iterator[tuple[Sql, SqlGuard]]:
    """Yield a resource, and its guard; its connections go to another port, if one is given."""
    if kind in CONNECTIONS:
        servers = Servers(stores, elsewhere)
        store = servers.fresh(kind)
        yield store, SqlGuard(servers.connecting(kind), store.resource)
        return
    awaited = fresh(stores, kind, AsyncSql)
    url = re.sub(r":\d+/", f":{elsewhere}/", awaited.url) if elsewhere else awaited.url
    with replace(awaited, url=url).used() as (guard, _):
        yield awaited, guard


def caused(error: ZkLockError) -> BaseException:
    """Return the cause, which is no error of zklock."""
    cause = error.__cause__
    assert cause is not None
    assert not isinstance(cause, ZkLockError)
    return cause


@pytest.mark.slow("real servers, and connections that are struck or lost")
@pytest.mark.parametrize("kind", DRIVERS)
def test_a_database_that_is_not_there(kind: str, stores: Stores) -> None:
    (nothing,) = free_ports()
    with guarded(stores, kind, nothing) as (_, guard):
        for call in (lambda: guard.claim(A), guard.highest, guard.create, guard.create_table):
            with pytest.raises(NoAnswer, match="is unreachable") as caught:
                call()
            caused(caught.value)


@pytest.mark.slow("real servers, and connections that are struck or lost")
@pytest.mark.parametrize("kind", DRIVERS)
def test_a_connection_that_is_lost_during_the_commit(kind: str, stores: Stores) -> None:
    server = CONNECTIONS[kind][0] if kind in CONNECTIONS else "postgresql"
    calls: list[Any] = []
    with (
        contextlib.closing(LosesTheCommit(Servers(stores).port(server))) as proxy,
        guarded(stores, kind, proxy.port) as (store, guard),
        pytest.raises(OutcomeUnknown, match="it may have happened") as caught,
    ):
        guard.run(B, calls.append)
    caused(caught.value)
    assert not is_retryable(caught.value)
    assert len(calls) == 1
    found = guard_of(store).highest()
    assert found == B or kind == "pg8000"  # it has the server parse each statement first


@pytest.mark.parametrize("kind", DRIVERS)
def test_a_connection_that_is_lost_before_the_commit(kind: str, stores: Stores) -> None:
    """A late write after a pause: the database has ended the connection meanwhile."""
    with guarded(stores, kind) as (store, guard):
        ends = "KILL CONNECTION_ID()"
        if store.dialect == "postgresql":
            ends = "SELECT pg_terminate_backend(pg_backend_pid())"

        def change(connection: Any) -> None:
            execute = getattr(connection, "exec_driver_sql", None) or connection.cursor().execute
            with contextlib.suppress(Exception):
                execute(ends)

        with pytest.raises(ZkLockError) as caught:
            guard.run(B, change)
    assert isinstance(caught.value, NoAnswer) or "has ended or failed" in str(caught.value)
    caused(caught.value)
    assert guard_of(store).highest() is None


def test_a_database_that_refuses(stores: Stores) -> None:
    servers = Servers(stores)
    store = servers.store("postgresql").fresh()

    def connect() -> Any:
        return psycopg(servers, options="-c default_transaction_read_only=on")

    guard = SqlGuard(connect, store.resource)
    with pytest.raises(GuardUnusable, match=r"fix what it reports: .* read-only") as caught:
        guard.claim(A)
    caused(caught.value)
    with contextlib.closing(connect()) as connection, pytest.raises(GuardUnusable):
        guard.advance(connection, A)
    lite = servers.store("sqlite")
    guard = SqlGuard(lambda: sqlite3.connect(f"file:{lite.where}?mode=ro", uri=True), "report")
    with pytest.raises(GuardUnusable, match=r"fix what it reports: .*readonly"):
        guard.claim(A)


def test_what_the_database_says_of_the_users_data_passes(stores: Stores) -> None:
    """A deferred constraint is checked by the commit."""
    from psycopg import errors

    store = Servers(stores).store("postgresql").fresh()
    guard = SqlGuard(store.connect, store.resource)

    def change(connection: Any) -> None:
        connection.execute("CREATE TABLE once (a INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("INSERT INTO once VALUES (1), (1)")

    with pytest.raises(errors.UniqueViolation):
        guard.run(B, change)
    with pytest.raises(errors.UndefinedTable):
        guard.run(B, lambda connection: connection.execute("SELECT * FROM once"))
    assert guard.highest() is None


# Redis


@pytest.fixture
def limited(stores: Stores) -> Iterator[RedisStore]:
    """A store with a user of Redis who may do nothing."""
    store = stores["redis"]
    assert isinstance(store, RedisStore)
    with contextlib.closing(store.client()) as client:
        client.acl_setuser("nobody", enabled=True, nopass=True, categories=["+@connection"])
        yield store.fresh()
        client.acl_deluser("nobody")


def test_redis(limited: RedisStore) -> None:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    (nothing,) = free_ports()
    once = Retry(NoBackoff(), 0)
    with contextlib.closing(redis.Redis(port=nothing, retry=once)) as client:
        guard = RedisGuard(client, "report")
        with pytest.raises(NoAnswer, match="is unreachable") as caught:
            guard.highest()
        assert isinstance(caused(caught.value), redis.ConnectionError)
        writes: list[Callable[[], object]] = [
            guard.create, lambda: guard.claim(A), lambda: guard.set(guard.key("a"), 1, A),
        ]  # fmt: skip
        for call in writes:
            with pytest.raises(OutcomeUnknown, match="may have happened") as unknown:
                call()
            assert isinstance(caused(unknown.value), redis.ConnectionError)
    for user, password in (("nobody", "x"), ("stranger", "wrong")):
        options: Any = {"username": user, "password": password}
        with contextlib.closing(redis.Redis(port=limited.port, retry=once, **options)) as client:
            guard = RedisGuard(client, limited.resource)
            with pytest.raises(GuardUnusable, match="fix what it reports") as refused:
                guard.claim(A)
            caused(refused.value)
            with pytest.raises(GuardUnusable):
                guard.highest()


async def test_redis_of_asyncio() -> None:
    import redis.asyncio
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    (nothing,) = free_ports()
    async with redis.asyncio.Redis(port=nothing, retry=Retry(NoBackoff(), 0)) as client:
        guard = aio.RedisGuard(client, "report")
        with pytest.raises(NoAnswer):
            await guard.highest()
        with pytest.raises(OutcomeUnknown) as caught:
            await guard.claim(A)
        assert isinstance(caused(caught.value), redis.ConnectionError)
