"""What holds for the SqlGuard of asyncio beyond the conformance suite."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.fencing.awaited import fresh
from tests.contract.fencing.conftest import Stores
from tests.contract.fencing.guards_under_test import AsyncSql, guard_of, read, write
from tests.contract.fencing.interrupts import THOUSANDS, leaves_open
from tests.contract.support import SOON
from zklock.errors import GuardUnusable, StaleToken, TransactionEnded
from zklock.fencing import SqlGuard as ThreadedGuard
from zklock.fencing.aio import SqlGuard, is_retryable
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)

KINDS = ("sqlite-aiosqlite", "postgresql-asyncpg")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, stores: Stores) -> AsyncSql:
    return fresh(stores, request.param, AsyncSql)


@contextlib.asynccontextmanager
async def guarded(store: AsyncSql, **options: Any) -> AsyncIterator[tuple[Any, SqlGuard]]:
    engine = store.engine()
    if options:
        engine = engine.execution_options(**options)
    try:
        yield engine, SqlGuard(engine.connect, store.resource)
    finally:
        await engine.dispose()


async def put(store: AsyncSql, connection: Any, value: bytes) -> None:
    import sqlalchemy

    await connection.execute(
        sqlalchemy.text("UPDATE data SET value = :v WHERE resource = :r"),
        {"v": value, "r": store.resource},
    )


async def say(connection: Any, statement: str) -> None:
    import sqlalchemy

    await connection.execute(sqlalchemy.text(statement))


async def test_a_session_is_taken_too(store: AsyncSql) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

    async with guarded(store) as (engine, _):
        sessions = async_sessionmaker(engine)
        guard = SqlGuard(sessions, store.resource)

        async def change(session: AsyncSession) -> str:
            assert isinstance(session, AsyncSession)
            await put(store, session, b"by a session")
            await asyncio.sleep(0)
            return "what change returned"

        assert await guard.run(A, change) == "what change returned"
        async with sessions() as session:
            async with await guard.advance(session, B):
                await put(store, session, b"in a block")
            await session.commit()
        async with sessions() as session:
            with pytest.raises(TransactionEnded):
                async with await guard.advance(session, B):
                    await session.commit()
                    await put(store, session, b"unfenced")
            with pytest.raises(TransactionEnded):
                await session.commit()
        async with sessions() as session:
            with pytest.raises(StaleToken):
                await guard.advance(session, A)
            await put(store, session, b"stale")
            with pytest.raises(StaleToken):
                await session.commit()
    assert read(store) == b"in a block"


async def test_a_cancelled_run_rolls_back_and_leaves_nothing_locked(store: AsyncSql) -> None:
    written = asyncio.Event()

    async def change(connection: Any) -> None:
        await put(store, connection, b"cancelled")
        written.set()
        await asyncio.Event().wait()

    async with guarded(store) as (engine, guard):
        task = asyncio.create_task(guard.run(A, change))
        await written.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.pool.checkedout() == 0
        assert await guard.highest() is None
        await guard.claim(B)
    assert read(store) == b""


@pytest.mark.slow("real servers, and connections that are struck or lost")
@leaves_open
@pytest.mark.parametrize("number", [30, THOUSANDS])
def test_runs_that_are_cancelled_anywhere_leave_nothing_locked(
    store: AsyncSql, number: int
) -> None:
    """SQLite keeps the locks of a closed connection until its last cursor is gone."""

    async def played_turn(guard: SqlGuard, turn: int, kept: list[BaseException]) -> None:
        task = asyncio.create_task(guard.run(B, lambda c: put(store, c, b"cancelled")))
        for _ in range(turn % 50):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError as error:
            kept.append(error)
        value = f"{turn}".encode()
        guard_of(store).run(B, lambda c: write(store, c, value))
        assert read(store) == value
        await guard.run(B, lambda c: put(store, c, b"again"))
        with pytest.raises(StaleToken):
            await guard.claim(A)

    async def play() -> None:
        engine = store.engine()
        guard = SqlGuard(engine.connect, store.resource)
        kept: list[BaseException] = []
        try:
            for turn in range(number):
                async with asyncio.timeout(SOON):
                    await played_turn(guard, turn, kept)
        finally:
            await engine.dispose()

    asyncio.run(play())  # each of many turns is limited


async def test_a_cancelled_advance_is_not_committed_without(stores: Stores) -> None:
    """It waits for the mark, is cancelled, and the caller goes on as if it had passed."""
    store = fresh(stores, "postgresql-asyncpg", AsyncSql)
    async with (
        guarded(store) as (engine, guard),
        engine.connect() as first,
        engine.connect() as second,
    ):
        await guard.advance(first, B)
        waiting = asyncio.create_task(guard.advance(second, A))
        while not store.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await first.commit()
        with pytest.raises(Exception):  # noqa: B017, PT011 - SQLAlchemy's, or ours
            await put(store, second, b"unfenced")
            await second.commit()
    assert read(store) == b""


async def test_a_lost_race_is_repeated(stores: Stores) -> None:
    store = fresh(stores, "postgresql-asyncpg", AsyncSql)
    calls: list[int] = []
    async with guarded(store, isolation_level="SERIALIZABLE") as (_, guard):

        async def change(connection: Any) -> None:
            calls.append(len(calls) + 1)
            await put(store, connection, b"%d" % calls[-1])
            if calls[-1] < 3:
                await say(connection, "DO $$BEGIN RAISE SQLSTATE '40001'; END$$")

        await guard.run(A, change)
        with pytest.raises(Exception, match="40001") as caught:
            calls.clear()
            await guard.run(A, change, attempts=2)
        assert is_retryable(caught.value)
        with pytest.raises(ValueError, match="at least 1"):
            await guard.run(A, change, attempts=0)
    assert read(store) == b"3"


async def test_autocommit(stores: Stores) -> None:
    store = fresh(stores, "postgresql-asyncpg", AsyncSql)
    async with guarded(store, isolation_level="AUTOCOMMIT") as (engine, guard):

        async def change(connection: Any) -> None:
            await put(store, connection, b"fenced")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await guard.run(A, change)
        assert read(store) == b""
        async with engine.connect() as connection:
            with pytest.raises(ValueError, match="autocommit"):
                await guard.advance(connection, A)


async def test_what_was_not_made_is_refused(store: AsyncSql) -> None:
    async with guarded(store) as (engine, _):
        nowhere = SqlGuard(engine.connect, "r", table="no_such")
        for call in (lambda: nowhere.claim(A), nowhere.highest):
            with pytest.raises(GuardUnusable, match=r"fix what it reports: .*no_such"):
                await call()
        guard = SqlGuard(engine.connect, f"{store.resource} made later")
        for end in ("rollback", "commit"):
            with pytest.raises(GuardUnusable, match="no mark"):
                await guard.claim(A)
            async with engine.connect() as connection:
                await guard.create(connection)
                await getattr(connection, end)()
        assert await guard.highest() is None


async def test_what_is_not_sqlalchemys_is_refused(stores: Stores) -> None:
    import asyncpg

    store = fresh(stores, "postgresql-asyncpg", AsyncSql)
    where = store.url.replace("+asyncpg", "")
    connection = await asyncpg.connect(where)
    try:
        with pytest.raises(TypeError, match=r"not asyncpg.*create_async_engine"):
            await SqlGuard(lambda: connection, "r").claim(A)
        with pytest.raises(TypeError, match=r"not asyncpg.*create_async_engine"):
            await SqlGuard(lambda: connection, "r").advance(connection, A)
        with pytest.raises(TypeError, match="create_async_engine"):
            await SqlGuard(lambda: asyncpg.connect(where), "r").claim(A)
        with (
            contextlib.closing(sqlite3.connect(":memory:")) as plain,
            pytest.raises(TypeError, match=r"zklock\.fencing\.SqlGuard"),
        ):
            await SqlGuard(lambda: plain, "r").claim(A)
        with pytest.raises(TypeError, match=r"use zklock\.fencing\.aio\.SqlGuard"):
            ThreadedGuard(lambda: connection, "r").claim(A)
    finally:
        await connection.close()
    async with guarded(store) as (_, guard):
        with pytest.raises(TypeError, match="change must be a coroutine function"):
            await guard.run(A, lambda connection: 7)  # type: ignore[arg-type, return-value]
        with pytest.raises(TypeError, match="a guard takes a FencingToken"):
            await guard.claim(34)  # type: ignore[arg-type]


async def test_tasks_of_two_holders(stores: Stores) -> None:
    """Many tasks on one guard: every change of the later holder happens once, in some order."""
    import sqlalchemy

    store = fresh(stores, "postgresql-asyncpg", AsyncSql)
    async with guarded(store) as (_, guard):

        async def add(connection: Any) -> None:
            await connection.execute(
                sqlalchemy.text(
                    "UPDATE data SET value = coalesce(value, ''::bytea) || 'x'::bytea "
                    "WHERE resource = :r"
                ),
                {"r": store.resource},
            )

        await guard.claim(A)
        refused = asyncio.gather(*(guard.run(A, add) for _ in range(10)), return_exceptions=True)
        await guard.claim(B)
        before = len(read(store))
        await asyncio.gather(*(guard.run(B, add, attempts=50) for _ in range(20)))
        outcomes = await refused
        assert all(each is None or isinstance(each, StaleToken) for each in outcomes)
        assert sum(each is None for each in outcomes) == before
    assert len(read(store)) >= 20
