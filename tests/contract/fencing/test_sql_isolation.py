"""At every level of isolation: what is read after ``advance`` has all that was accepted before."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.contract.fencing.awaited import fresh
from tests.contract.fencing.conftest import Stores
from tests.contract.fencing.guards_under_test import IMPATIENT, Sql, guard_of, read, write
from zklock.errors import SnapshotTooOld
from zklock.fencing import SqlGuard, is_retryable
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)

pytestmark = pytest.mark.hazard("H45")

# The level, and how often a transaction is refused that has read too early.
REFUSED = {
    "postgresql": 0,
    "postgresql-sqlalchemy": 0,
    "postgresql-repeatable-read": 1,
    "postgresql-serializable": 1,
    "mariadb": 1,
    "mariadb-sqlalchemy": 1,
    "mariadb-read-committed": 0,
}


@pytest.mark.parametrize("token", [A, B], ids=["the same holder", "the next holder"])
@pytest.mark.parametrize("level", REFUSED)
def test_a_write_accepted_since_an_early_read_is_not_lost(
    level: str, token: FencingToken, stores: Stores
) -> None:
    store, result = (fresh(stores, level, Sql) for _ in range(2))
    guard = guard_of(store)
    guard.claim(A)
    refused: list[Exception] = []

    def attempt(connection: Any) -> bool:
        try:
            read(store, connection)
            if not refused:
                guard.run(A, lambda other: write(store, other, b"a"))
            guard.advance(connection, token)
            write(result, connection, read(store, connection) + b"b")
            connection.commit()
        except Exception as error:
            refused.append(error)
            connection.rollback()
            return False
        return True

    with contextlib.closing(store.connect()) as connection:
        while not attempt(connection):
            assert is_retryable(refused[-1]), refused[-1]
        assert read(result, connection) == b"ab"
    assert len(refused) == REFUSED[level]


@pytest.mark.parametrize("level", ["mariadb", "mariadb-sqlalchemy"])
def test_run_begins_anew_on_a_connection_that_has_read(level: str, stores: Stores) -> None:
    store = fresh(stores, level, Sql)
    with contextlib.closing(store.connect()) as connection:
        guard = SqlGuard(lambda: contextlib.nullcontext(connection), store.resource)
        assert read(store, connection) == b""
        guard_of(store).run(A, lambda other: write(store, other, b"a"))
        with pytest.raises(SnapshotTooOld, match="call advance before anything else") as caught:
            guard.run(A, lambda _: None, attempts=1)
        assert caught.value.resource == store.resource
        assert is_retryable(caught.value)
        assert read(store, connection) == b"a"
        guard_of(store).run(A, lambda other: write(store, other, b"b"))
        assert guard.run(B, lambda _: read(store, connection)) == b"b"


def test_a_mark_that_is_younger_than_the_snapshot(stores: Stores) -> None:
    store = fresh(stores, "mariadb", Sql)
    with contextlib.closing(store.connect()) as connection:
        read(store, connection)
        guard = SqlGuard(store.connect, f"{store.resource} late")
        guard.create()
        with pytest.raises(SnapshotTooOld):
            guard.advance(connection, A)
        connection.rollback()
        guard.advance(connection, A)


@pytest.mark.parametrize("level", ["mariadb-serializable"])
def test_a_serializable_reader_keeps_writers_out(level: str, stores: Stores) -> None:
    """There a plain read locks what it reads, so that nothing is accepted after it."""
    store = fresh(stores, level, Sql)
    guard = guard_of(store)

    def impatient() -> Any:
        connection = store.connect()
        store.execute(IMPATIENT[store.dialect], connection)
        return connection

    with contextlib.closing(store.connect()) as connection:
        read(store, connection)
        with pytest.raises(Exception, match="Lock wait timeout"):
            SqlGuard(impatient, store.resource).run(
                A, lambda other: write(store, other, b"a"), attempts=1
            )
        guard.advance(connection, B)
        write(store, connection, read(store, connection) + b"b")
        connection.commit()
        assert read(store, connection) == b"b"
