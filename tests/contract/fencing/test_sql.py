"""What holds for SqlGuard on servers beyond the conformance suite."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.fencing.awaited import fresh, on
from tests.contract.fencing.conftest import Stores
from tests.contract.fencing.guards_under_test import Sql, guard_of, read, write
from tests.modes import repeated
from zklock.errors import StaleToken
from zklock.fencing import SqlGuard
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)

SERVERS = ("postgresql", "mariadb")
ON_SERVERS = (*SERVERS, "postgresql-sqlalchemy", "mariadb-sqlalchemy")
ALL = ("sqlite", "sqlite-sqlalchemy", *ON_SERVERS)


LEVELS = pytest.mark.thorough(
    "increments of racing processes at other isolation levels: those at each server's own run"
)


@pytest.fixture(params=ALL)
def store(request: pytest.FixtureRequest, stores: Stores) -> Sql:
    return fresh(stores, request.param, Sql)


@on("sqlite", "postgresql", "mariadb")
def test_a_transaction_begun_by_hand_is_accepted(store: Sql) -> None:
    with contextlib.closing(store.connect()) as connection:
        if store.driver == "sqlite3":
            connection.isolation_level = None
        elif store.driver == "psycopg":
            connection.autocommit = True
        else:
            connection.autocommit(True)
        connection.cursor().execute("BEGIN")
        guard_of(store).advance(connection, A)
        connection.cursor().execute("COMMIT")
    assert guard_of(store).highest() == A


def test_a_rollback_takes_the_mark_back(store: Sql) -> None:
    guard = guard_of(store)
    guard.claim(A)
    with contextlib.closing(store.connect()) as connection:
        guard.advance(connection, B)
        connection.rollback()
    assert guard.highest() == A


def test_the_ddl_is_what_the_server_takes_and_it_refuses_what_is_no_token(store: Sql) -> None:
    guard = SqlGuard(store.connect, "report", table="other_fence")
    guard.create_table()
    guard.create_table()
    guard.create()
    guard.claim(FencingToken(2**63 - 1, 2**31 - 1))
    for epoch, sequence in ((-1, 5), (5, -1), (5, 2**31)):
        with pytest.raises(Exception, match=r"(?i)constraint"):
            store.execute(f"UPDATE other_fence SET epoch = {epoch}, sequence = {sequence}")
    assert guard.highest() == FencingToken(2**63 - 1, 2**31 - 1)
    store.execute("DROP TABLE other_fence")


@on("sqlite", "postgresql", "postgresql-repeatable-read", "mariadb")
def test_table_and_marks_may_be_made_by_many_at_once(store: Sql) -> None:
    threads = 8

    def make(table: str, start: threading.Barrier) -> None:
        guard = SqlGuard(store.connect, "report", table=table)
        start.wait(30)
        guard.create_table()
        guard.create()
        guard.claim(A, attempts=100)

    with ThreadPoolExecutor(threads) as pool:
        for number in range(repeated(4, 2)):
            start = threading.Barrier(threads)
            table = f"made_at_once_{number}"
            for done in [pool.submit(make, table, start) for _ in range(threads)]:
                done.result(60)
            assert SqlGuard(store.connect, "report", table=table).highest() == A
            store.execute(f"DROP TABLE {table}")


def test_names_are_compared_exactly(store: Sql) -> None:
    names = [f"{store.resource} {name}" for name in ("é", "e", "E", "É", "ß", "ss")]
    for sequence, name in enumerate(names):
        guard = SqlGuard(store.connect, name)
        guard.create()
        guard.claim(FencingToken(1, sequence))
    for sequence, name in enumerate(names):
        assert SqlGuard(store.connect, name).highest() == FencingToken(1, sequence)


@on(*ON_SERVERS)
def test_a_higher_token_waits_for_the_transaction_under_way(store: Sql) -> None:
    guard = guard_of(store)
    with contextlib.closing(store.connect()) as connection, ThreadPoolExecutor() as pool:
        guard.advance(connection, A)
        write(store, connection, b"a")
        claiming = pool.submit(guard.claim, B)
        with pytest.raises(TimeoutError):
            claiming.result(0.3)
        connection.commit()
        claiming.result(30)
    assert guard.highest() == B
    assert read(store) == b"a"


def _increments(store: Sql, token: FencingToken, times: int) -> None:
    for _ in range(times):

        def change(connection: Any) -> None:
            number = int(read(store, connection) or b"0") + 1
            write(store, connection, str(number).encode())

        guard_of(store).run(token, change, attempts=1000)


@on(
    "sqlite",
    "postgresql",
    pytest.param("postgresql-repeatable-read", marks=LEVELS),
    pytest.param("postgresql-serializable", marks=LEVELS),
    "mariadb",
    pytest.param("mariadb-read-committed", marks=LEVELS),
    pytest.param("mariadb-serializable", marks=LEVELS),
)
def test_read_modify_write_of_racing_processes_loses_nothing(store: Sql) -> None:
    """Two processes of the same holder: what is read after ``advance`` may be built upon."""
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=_increments, args=(store, A, 25)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert read(store) == b"50"


@on("postgresql-sqlalchemy")
async def test_an_asynchronous_connection_of_sqlalchemy(store: Sql) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    guard, engine = guard_of(store), create_async_engine(store.where)
    async with engine.begin() as connection:
        await connection.run_sync(guard.advance, B)
    with pytest.raises(StaleToken):
        async with engine.begin() as connection:
            await connection.run_sync(guard.advance, A)
    await engine.dispose()
    assert guard.highest() == B
