"""A change and the check before it are one transaction, or nothing of it is committed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.contract.fencing.awaited import fresh, on
from tests.contract.fencing.conftest import Stores
from tests.contract.fencing.guards_under_test import IMPATIENT, Sql, guard_of, read, write
from zklock.errors import LockLost, SnapshotTooOld, StaleToken, TransactionEnded
from zklock.fencing import SqlGuard
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)


class Over:
    """A grant of ``B`` that this process knows to be lost."""

    token = B
    held = False


REFUSED = [(A, StaleToken), (Over(), LockLost)]
"""What ``advance`` refuses after ``B``, and how."""


KINDS = ("sqlite", "postgresql", "mariadb")
ALCHEMY = tuple(f"{kind}-sqlalchemy" for kind in KINDS)
AWAITED = ("sqlite-aiosqlite", "postgresql-asyncpg")
SESSIONS = tuple(f"{kind} {of}" for kind in ALCHEMY for of in ("session", "scoped"))

Ending = Callable[[Sql, Any], None]


@dataclass(frozen=True)
class OfSessions(Sql):
    """The guard's connections are SQLAlchemy's sessions; the test's own are as in ``Sql``."""

    scoped: bool = False

    @contextlib.contextmanager
    def used(self) -> Iterator[tuple[SqlGuard, Callable[[], Any]]]:
        from sqlalchemy.orm import scoped_session, sessionmaker

        with contextlib.closing(self.connect()) as connection:
            make = sessionmaker(connection.engine)
        connect = (lambda: scoped_session(make)) if self.scoped else make
        yield SqlGuard(connect, self.resource), connect


def store_of(stores: Stores, kind: str) -> Sql:
    kind, _, of = kind.partition(" ")
    made = fresh(stores, kind, Sql)
    return OfSessions(**vars(made), scoped=of == "scoped") if of else made


def commit(store: Sql, connection: Any) -> None:
    connection.commit()


def rollback(store: Sql, connection: Any) -> None:
    connection.rollback()


def failing(store: Sql, connection: Any) -> None:
    with contextlib.suppress(Exception):
        store.execute("SELECT 1 / 0", connection)


def or_rollback(store: Sql, connection: Any) -> None:
    with contextlib.suppress(Exception):
        store.execute(
            "INSERT OR ROLLBACK INTO data (resource) VALUES (:r)", connection, r=store.resource
        )


def script(store: Sql, connection: Any) -> None:
    connection.executescript("CREATE TABLE IF NOT EXISTS made_by_a_script (a INTEGER)")


def definition(store: Sql, connection: Any) -> None:
    store.execute("CREATE TABLE IF NOT EXISTS made_by_a_change (a INTEGER)", connection)


def deadlock(store: Sql, connection: Any) -> None:
    """Meet another transaction, which has more to lose, in the opposite order."""
    other = store.fresh()
    write(store, connection, b"mine")
    locked, ended = threading.Event(), threading.Event()

    def opponent() -> None:
        with contextlib.closing(store.connect()) as opposing:
            for number in range(20):
                store.execute(
                    "INSERT INTO data (resource) VALUES (:r)",
                    opposing,
                    r=f"{other.resource} {number}",
                )
            write(other, opposing, b"other")
            locked.set()
            write(store, opposing, b"opponent")
            opposing.rollback()
            ended.set()

    with ThreadPoolExecutor() as pool:
        done = pool.submit(opponent)
        assert locked.wait(30)
        with pytest.raises(Exception, match="Deadlock"):
            write(other, connection, b"mine")
        done.result(30)


ENDINGS: list[tuple[str, Ending]] = [
    *((kind, ending) for kind in (*KINDS, *AWAITED, *SESSIONS) for ending in (commit, rollback)),
    ("postgresql", failing),
    ("sqlite", or_rollback),
    ("sqlite", script),
    ("mariadb", definition),
    ("mariadb", deadlock),
    ("sqlite-sqlalchemy", or_rollback),
    ("mariadb-sqlalchemy", definition),
    ("mariadb-sqlalchemy", deadlock),
    ("sqlite-sqlalchemy session", or_rollback),
    ("mariadb-sqlalchemy session", definition),
    ("mariadb-sqlalchemy session", deadlock),
]


@pytest.fixture
def store(request: pytest.FixtureRequest, stores: Stores) -> Sql:
    return store_of(stores, request.param)


@pytest.fixture(params=ENDINGS, ids=lambda case: f"{case[0]}-{case[1].__name__}")
def case(request: pytest.FixtureRequest, stores: Stores) -> tuple[Sql, Ending]:
    kind, ending = request.param
    return store_of(stores, kind), ending


def stale_change(store: Sql, ending: Ending) -> Callable[[Any], None]:
    def change(connection: Any) -> None:
        write(store, connection, b"first")
        ending(store, connection)
        if ending is not failing:
            guard_of(store).claim(B)
        with contextlib.suppress(Exception):
            write(store, connection, b"stale")

    return change


@pytest.mark.hazard("H46")
def test_run_commits_nothing_after_its_transaction_has_ended(case: tuple[Sql, Ending]) -> None:
    store, ending = case
    with (
        store.used() as (guard, _),
        pytest.raises(TransactionEnded, match="look for an ignored error") as caught,
    ):
        guard.run(A, stale_change(store, ending))
    assert caught.value.resource == store.resource
    assert read(store) in (b"", b"first")
    assert guard_of(store).highest() == (None if ending is failing else B)


@pytest.mark.hazard("H46")
def test_a_block_in_which_the_transaction_ends(case: tuple[Sql, Ending]) -> None:
    store, ending = case
    with store.used() as (guard, connect), contextlib.closing(connect()) as connection:
        with pytest.raises(TransactionEnded), guard.advance(connection, A):
            stale_change(store, ending)(connection)
        if isinstance(store, OfSessions):
            # It goes on with another connection, which knows nothing of the check.
            with pytest.raises(TransactionEnded):
                connection.commit()
        with contextlib.suppress(Exception):
            connection.commit()
    assert read(store) in (b"", b"first")


@pytest.mark.hazard("H46")
def test_a_session_does_not_commit_a_change_whose_transaction_has_ended(stores: Stores) -> None:
    for kind, ending in ENDINGS[-3:]:
        store = store_of(stores, kind)
        with store.used() as (guard, connect), contextlib.closing(connect()) as session:
            guard.advance(session, A)
            stale_change(store, ending)(session)
            with pytest.raises(TransactionEnded):
                session.commit()
            with contextlib.suppress(Exception):
                session.commit()
        assert read(store) in (b"", b"first")
        assert guard_of(store).highest() == B


@pytest.mark.hazard("H46")
@on(*KINDS, *ALCHEMY, *AWAITED, *SESSIONS)
def test_blocks_may_be_nested(store: Sql) -> None:
    with store.used() as (guard, connect), contextlib.closing(connect()) as connection:
        with guard.advance(connection, A):
            with guard.advance(connection, A):
                write(store, connection, b"inner")
            guard.advance(connection, A)
            write(store, connection, b"outer")
        connection.commit()
    assert read(store) == b"outer"
    assert guard_of(store).highest() == A


@pytest.mark.hazard("H47")
@on(*KINDS, *ALCHEMY, *AWAITED, *SESSIONS)
def test_a_savepoint_that_takes_the_check_back(store: Sql) -> None:
    with store.used() as (guard, connect), contextlib.closing(connect()) as connection:
        write(store, connection, b"before")
        store.execute("SAVEPOINT early", connection)
        with pytest.raises(TransactionEnded), guard.advance(connection, A):
            store.execute("ROLLBACK TO SAVEPOINT early", connection)
            write(store, connection, b"unfenced")
        with contextlib.suppress(Exception):
            connection.commit()
    assert read(store) == b""
    assert guard_of(store).highest() is None


# What a framework commits for its users.


@pytest.mark.hazard("H47")
@on(*SESSIONS)
def test_a_session_does_not_commit_after_a_savepoint_took_the_check_back(store: Sql) -> None:
    with store.used() as (guard, connect), contextlib.closing(connect()) as session:
        write(store, session, b"before")
        with contextlib.suppress(ZeroDivisionError), session.begin_nested():
            guard.advance(session, A)
            raise ZeroDivisionError
        write(store, session, b"unfenced")
        with pytest.raises(TransactionEnded):
            session.commit()
        session.rollback()
        assert read(store) == b""
        with session.begin_nested():
            guard.advance(session, A)
            write(store, session, b"fenced")
        session.commit()
    assert read(store) == b"fenced"


@pytest.mark.hazard("H47")
@on(*KINDS, *ALCHEMY, *AWAITED, *SESSIONS)
@pytest.mark.parametrize(("given", "error"), REFUSED, ids=["stale", "over"])
def test_what_was_refused_is_not_committed(store: Sql, given: Any, error: type[Exception]) -> None:
    """SQLAlchemy's commit says so; a driver's commits nothing."""
    driver = type(store) is Sql and store.driver != "sqlalchemy"
    guard_of(store).claim(B)
    with store.used() as (guard, connect), contextlib.closing(connect()) as connection:
        for _ in range(2):
            write(store, connection, b"before")
            with pytest.raises(error):
                guard.advance(connection, given)
            if driver:
                if store.dialect != "sqlite":  # it has no transaction that only a rollback can end
                    with pytest.raises(Exception, match="transaction"):
                        write(store, connection, b"stale")
                connection.commit()
            else:
                write(store, connection, b"stale")
                with pytest.raises(error):
                    connection.commit()
                for again in (lambda: write(store, connection, b"stale"), connection.commit):
                    with contextlib.suppress(Exception):
                        again()
            connection.rollback()
            assert read(store) == b""
        for value in (b"one", b"two"):
            guard.advance(connection, B)
            write(store, connection, value)
            connection.commit()
    assert read(store) == b"two"


@pytest.mark.hazard("H47")
def test_a_session_does_not_prepare_what_was_refused(stores: Stores) -> None:
    import sqlalchemy
    from sqlalchemy.exc import IllegalStateChangeError
    from sqlalchemy.orm import Session

    version = tuple(map(int, sqlalchemy.__version__.split(".")[:2]))

    store = fresh(stores, "mariadb-sqlalchemy", Sql)
    guard = guard_of(store)
    with contextlib.closing(store.connect()) as connection:
        engine = connection.engine
    with Session(engine, twophase=True) as session:
        guard.advance(session, B)
        session.commit()
    with Session(engine, twophase=True) as session:
        with pytest.raises(StaleToken):
            guard.advance(session, A)
        with pytest.raises((StaleToken, IllegalStateChangeError)) as caught:
            session.commit()
        # A session of SQLAlchemy 2.0 may not roll back while it prepares, but tries to.
        refused = caught.value if version >= (2, 1) else caught.value.__context__
        assert isinstance(refused, StaleToken)
    guard.claim(B)


@pytest.mark.hazard("H47")
@pytest.mark.parametrize(
    ("kind", "prepares"),  # PostgreSQL prepares nothing by default
    [("mariadb-sqlalchemy", False), ("mariadb-sqlalchemy", True), ("postgresql-sqlalchemy", False)],
)
def test_a_two_phase_transaction_does_not_commit_what_was_refused(
    kind: str, prepares: bool, stores: Stores
) -> None:
    store = fresh(stores, kind, Sql)
    guard = guard_of(store)
    guard.claim(B)
    for token in (A, B):
        with contextlib.closing(store.connect()) as connection:
            transaction = connection.begin_twophase()
            if token is B:
                guard.advance(connection, B)
            else:
                with pytest.raises(StaleToken):
                    guard.advance(connection, A)
            with contextlib.suppress(Exception):
                write(store, connection, str(token).encode())
            with pytest.raises(StaleToken) if token is A else contextlib.nullcontext():
                if prepares:
                    transaction.prepare()
                transaction.commit()
        assert read(store) == (b"" if token is A else str(B).encode())
    guard.claim(B)


@pytest.mark.hazard("H47")
@on("mariadb", "mariadb-sqlalchemy", "postgresql")
def test_a_check_that_timed_out_is_not_committed_without(store: Sql) -> None:
    """The timeout undoes one statement on MariaDB, and leaves the transaction open."""
    guard = guard_of(store)
    with (
        contextlib.closing(store.connect()) as connection,
        contextlib.closing(store.connect()) as other,
    ):
        store.execute(IMPATIENT[store.dialect], connection)
        connection.commit()
        guard.advance(other, B)
        write(store, connection, b"before")
        with pytest.raises(SnapshotTooOld, match="the mark stayed locked"):
            guard.advance(connection, A)
        with contextlib.suppress(Exception):
            write(store, connection, b"unfenced")
        with contextlib.suppress(Exception):
            connection.commit()
        other.commit()
    assert read(store) == b""


@pytest.mark.hazard("H47")
def test_a_block_left_by_a_deadlock_is_not_committed_without(stores: Stores) -> None:
    store = fresh(stores, "mariadb", Sql)

    class Left(Exception):
        pass

    with contextlib.closing(store.connect()) as connection:
        with pytest.raises(Left), guard_of(store).advance(connection, A):
            deadlock(store, connection)
            raise Left
        with pytest.raises(Exception, match="READ ONLY"):
            write(store, connection, b"unfenced")
        connection.commit()
    assert read(store) == b""


@on(*KINDS)
def test_the_connection_is_usable_after_a_missing_mark(store: Sql) -> None:
    from zklock.errors import GuardUnusable

    with contextlib.closing(store.connect()) as connection:
        with pytest.raises(GuardUnusable):
            SqlGuard(store.connect, "never made").advance(connection, A)
        connection.rollback()
        guard_of(store).advance(connection, A)
        connection.commit()
    assert guard_of(store).highest() == A
