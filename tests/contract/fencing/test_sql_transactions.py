"""A change and the check before it are one transaction, or nothing of it is committed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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

Ending = Callable[[Sql, Any], None]


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
    *((kind, ending) for kind in (*KINDS, *AWAITED) for ending in (commit, rollback)),
    ("postgresql", failing),
    ("sqlite", or_rollback),
    ("sqlite", script),
    ("mariadb", definition),
    ("mariadb", deadlock),
    ("sqlite-sqlalchemy", or_rollback),
    ("mariadb-sqlalchemy", definition),
    ("mariadb-sqlalchemy", deadlock),
]


@pytest.fixture
def store(request: pytest.FixtureRequest, stores: Stores) -> Sql:
    return fresh(stores, request.param, Sql)


@pytest.fixture(params=ENDINGS, ids=lambda case: f"{case[0]}-{case[1].__name__}")
def case(request: pytest.FixtureRequest, stores: Stores) -> tuple[Sql, Ending]:
    kind, ending = request.param
    return fresh(stores, kind, Sql), ending


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
        with contextlib.suppress(Exception):
            connection.commit()
    assert read(store) in (b"", b"first")


@pytest.mark.hazard("H46")
@on(*KINDS, *ALCHEMY, *AWAITED)
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
@on(*KINDS, *ALCHEMY, *AWAITED)
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


@contextlib.contextmanager
def session_on(store: Sql, scoped: bool = False) -> Iterator[Any]:
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

    with contextlib.closing(store.connect()) as connection:
        engine = connection.engine
    if scoped:
        proxy = scoped_session(sessionmaker(engine))
        try:
            yield proxy
        finally:
            proxy.remove()
        return
    with Session(engine) as session:
        yield session


@pytest.mark.hazard("H46")
@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("sqlite-sqlalchemy", or_rollback),
        ("mariadb-sqlalchemy", definition),
        ("mariadb-sqlalchemy", deadlock),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_session_does_not_commit_a_change_whose_transaction_has_ended(
    kind: str, ending: Ending, stores: Stores
) -> None:
    store = fresh(stores, kind, Sql)
    with session_on(store) as session:
        guard_of(store).advance(session, A)
        stale_change(store, ending)(session)
        with pytest.raises(TransactionEnded):
            session.commit()
        with contextlib.suppress(Exception):
            session.commit()
    assert read(store) in (b"", b"first")
    assert guard_of(store).highest() == B


@pytest.mark.hazard("H46")
@pytest.mark.parametrize("scoped", [False, True], ids=["session", "scoped"])
@pytest.mark.parametrize("ending", [commit, rollback], ids=["commit", "rollback"])
@on(*ALCHEMY)
def test_a_block_in_which_a_session_ends_its_transaction(
    store: Sql, ending: Ending, scoped: bool
) -> None:
    """The session goes on with another connection, which knows nothing of the check."""
    with session_on(store, scoped) as session:
        with pytest.raises(TransactionEnded), guard_of(store).advance(session, A):
            stale_change(store, ending)(session)
        with pytest.raises(TransactionEnded):
            session.commit()
        with contextlib.suppress(Exception):
            session.commit()
    assert read(store) == (b"first" if ending is commit else b"")
    with pytest.raises(TransactionEnded):
        SqlGuard(lambda: session_on(store, scoped), store.resource).run(
            B, lambda session: ending(store, session)
        )


@pytest.mark.hazard("H47")
@on(*ALCHEMY)
def test_a_session_does_not_commit_after_a_savepoint_took_the_check_back(store: Sql) -> None:
    guard = guard_of(store)
    with session_on(store) as session:
        write(store, session, b"before")
        with contextlib.suppress(ZeroDivisionError), session.begin_nested():
            guard.advance(session, A)
            raise ZeroDivisionError
        write(store, session, b"unfenced")
        with pytest.raises(TransactionEnded):
            session.commit()
    assert read(store) == b""
    with session_on(store) as session:
        with session.begin_nested():
            guard.advance(session, A)
            write(store, session, b"fenced")
        session.commit()
    assert read(store) == b"fenced"


@pytest.mark.hazard("H47")
@pytest.mark.parametrize("scoped", [False, True], ids=["session", "scoped"])
@on(*ALCHEMY)
@pytest.mark.parametrize(("given", "error"), REFUSED, ids=["stale", "over"])
def test_a_session_does_not_commit_what_was_refused(
    store: Sql, scoped: bool, given: Any, error: type[Exception]
) -> None:
    guard = guard_of(store)
    guard.claim(B)
    with session_on(store, scoped) as session:
        write(store, session, b"before")
        with pytest.raises(error):
            guard.advance(session, given)
        write(store, session, b"stale")
        with pytest.raises(error):
            session.commit()
        with contextlib.suppress(Exception):
            write(store, session, b"stale")
        with contextlib.suppress(Exception):
            session.commit()
        session.rollback()
        assert read(store) == b""
        guard.advance(session, B)
        write(store, session, b"b")
        session.commit()
    assert read(store) == b"b"


@pytest.mark.hazard("H47")
@on(*ALCHEMY, *AWAITED)
@pytest.mark.parametrize(("given", "error"), REFUSED, ids=["stale", "over"])
def test_a_connection_may_go_on_after_a_rollback(
    store: Sql, given: Any, error: type[Exception]
) -> None:
    guard_of(store).claim(B)
    with store.used() as (guard, connect), contextlib.closing(connect()) as connection:
        for _ in range(2):
            write(store, connection, b"before")
            with pytest.raises(error):
                guard.advance(connection, given)
            write(store, connection, b"stale")
            with pytest.raises(error):
                connection.commit()
            connection.rollback()
        assert read(store) == b""
        with pytest.raises(error):
            guard.advance(connection, given)
        connection.rollback()
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
@on(*KINDS)
@pytest.mark.parametrize(("given", "error"), REFUSED, ids=["stale", "over"])
def test_a_driver_does_not_commit_what_was_refused(
    store: Sql, given: Any, error: type[Exception]
) -> None:
    guard = guard_of(store)
    guard.claim(B)
    with contextlib.closing(store.connect()) as connection:
        write(store, connection, b"before")
        with pytest.raises(error):
            guard.advance(connection, given)
        if store.dialect != "sqlite":  # which has no transaction that only a rollback can end
            with pytest.raises(Exception, match="transaction"):
                write(store, connection, b"stale")
        connection.commit()
        assert read(store) == b""
        guard.advance(connection, B)
        write(store, connection, b"b")
        connection.commit()
    assert read(store) == b"b"


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
