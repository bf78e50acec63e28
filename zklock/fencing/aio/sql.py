"""The guard for rows of a SQL database, for asyncio: SQLAlchemy's connections and sessions.

SQLAlchemy runs the text of the guard for threads, and awaits what the driver awaits: see
``zklock.fencing._sql.mark``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from zklock.fencing import sql
from zklock.fencing._sql.errors import told
from zklock.fencing._sql.mark import ATTEMPTS, Result, SqlMark, Work, is_retryable, pauses
from zklock.fencing._sql.session import AlchemySession, SqlSession
from zklock.fencing._sql.statements import TABLE, Dialect
from zklock.fencing.guard import Fenced
from zklock.token import FencingToken


class SqlGuard(SqlMark):
    """Fences what a transaction changes in a SQL database, as ``zklock.fencing.SqlGuard`` does.

    ``connect()`` returns a new ``AsyncConnection`` or ``AsyncSession`` of SQLAlchemy, or an
    asynchronous context manager that yields one: ``engine.connect``, or an
    ``async_sessionmaker``. ``create_table``, ``create``, ``claim``, ``highest`` and ``run`` use
    it and close it. The marks are the same rows: guards of both kinds may fence one resource.
    The other arguments, and what is not guaranteed, are those of that class. Connections that a
    driver itself has made, such as asyncpg's, are a ``TypeError``: make an engine.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        resource: str,
        *,
        table: str = TABLE,
        dialect: Dialect | None = None,
    ) -> None:
        super().__init__(connect, resource, table=table, dialect=dialect)

    async def create_table(self) -> None:
        """Make the table of the marks, once for each database; keep one that exists.

        Several processes may call it at the same time.
        """
        await self._repeat(self._make_table)

    async def create(self, connection: Any = None) -> None:
        """Make the mark, once; keep one that exists.

        With ``connection``, it becomes part of the transaction that is open there, for example the
        one that makes the resource itself.
        """
        if connection is not None:
            await _alchemy(connection).run_sync(lambda inner: self._insert(self._on(inner)))
        else:
            await self._repeat(self._make_mark)

    async def advance(self, connection: Any, token: Fenced) -> SqlFence:
        """Advance the mark inside the open transaction of ``connection``.

        ``connection`` is an ``AsyncConnection`` or an ``AsyncSession``. Use the result in ``async
        with``, as ``async with await guard.advance(connection, grant):``, if the end of the block
        shall check that the transaction is still the same; the commit checks the mark in any case.
        Errors, and the rules after an error, are as in ``zklock.fencing.SqlGuard.advance``. After a
        cancellation the transaction can only be rolled back, too.
        """
        fence = await _alchemy(connection).run_sync(lambda inner: self._advance_on(inner, token))
        return SqlFence(connection, fence)

    async def claim(self, token: Fenced, *, attempts: int = ATTEMPTS) -> None:
        """Advance the mark in a transaction of its own; see ``Guard.claim`` and ``run``."""
        await self._repeat(self._fenced(token, lambda *_: None), attempts)

    async def run(
        self,
        token: Fenced,
        change: Callable[[Any], Awaitable[Result]],
        *,
        attempts: int = ATTEMPTS,
    ) -> Result:
        """Await ``change(connection)`` after ``advance`` in a transaction; commit.

        Returns the result of ``change``, which gets what ``connect`` made. ``change`` may be called
        up to ``attempts`` times. The errors are as in ``zklock.fencing.SqlGuard.run``. A
        cancellation rolls back, except when it comes during the commit: then the change has
        happened, or not.
        """

        async def awaited(connection: Any) -> Result:
            return await _awaitable(change(connection))

        def work(session: SqlSession, connection: Any) -> Result:
            assert isinstance(session, AlchemySession)
            return session.awaited(lambda: awaited(connection))

        return await self._repeat(self._fenced(token, work), attempts)

    async def highest(self) -> FencingToken | None:
        """Return the committed mark; ``None`` while no token has been seen."""
        return await self._attempt(self._read_mark, [])

    async def _repeat(self, work: Work[Result], attempts: int = ATTEMPTS) -> Result:
        left = pauses(attempts)
        while True:
            done: list[Result] = []
            try:
                return await self._attempt(work, done)
            except Exception as error:
                if done or not is_retryable(error) or (pause := next(left, None)) is None:
                    raise
            await asyncio.sleep(pause)

    async def _attempt(self, work: Work[Result], done: list[Result]) -> Result:
        failed: BaseException | None = None
        try:
            async with contextlib.AsyncExitStack() as stack:
                with told(self._resource):
                    opened = await stack.enter_async_context(_entered(self._connect()))
                try:
                    await _alchemy(opened).run_sync(
                        lambda inner: self._try(self._on(inner), opened, work, done)
                    )
                except BaseException as error:
                    failed = error
                    raise
            if failed is not None:  # the context manager has swallowed it
                raise failed
            return done[0]
        finally:
            del failed  # else a cycle would keep the connection for as long as the error


class SqlFence:
    """The result of ``SqlGuard.advance``: one transaction's hold on the mark.

    In ``async with``, the end of the block raises ``TransactionEnded`` in two cases: the
    transaction in which the block began is over, or it was rolled back to a point before the
    block. Commit after the block.
    """

    def __init__(self, connection: Any, fence: sql.SqlFence) -> None:
        self._connection = connection
        self._fence = fence

    async def __aenter__(self) -> SqlFence:
        await self._connection.run_sync(lambda _: self._fence.__enter__())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._connection.run_sync(lambda _: self._fence.__exit__(kind, error, trace))


def _awaitable(made: Awaitable[Result]) -> Awaitable[Result]:
    if not inspect.isawaitable(made):
        raise TypeError(
            f"change must be a coroutine function, but it returned {type(made).__name__}: call a "
            "function that does not await by connection.run_sync()"
        )
    return made


def _entered(connection: Any) -> Any:
    if hasattr(connection, "__aenter__"):
        return connection
    if inspect.iscoroutine(connection):
        connection.close()
    raise _unfit(connection)


def _alchemy(connection: Any) -> Any:
    if hasattr(connection, "run_sync"):
        return connection
    raise _unfit(connection)


def _unfit(connection: Any) -> TypeError:
    return TypeError(
        "zklock.fencing.aio.SqlGuard takes an AsyncConnection or AsyncSession of SQLAlchemy, not "
        f"{type(connection).__module__}.{type(connection).__name__}: make an engine by "
        "create_async_engine() for this driver, and pass engine.connect; for synchronous "
        "connections use zklock.fencing.SqlGuard"
    )
