"""What a fail-over of the resource does to the mark, and to writes that were acknowledged.

The table of docs/fencing.md tells these outcomes.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any, TypeVar

import pytest

from tests.contract.fencing import databases
from zklock.errors import GuardUnusable, NoAnswer, OutcomeUnknown, StaleToken
from zklock.fencing import RedisGuard, SqlGuard
from zklock.testing.waiting import wait_for
from zklock.token import FencingToken

pytestmark = pytest.mark.thorough("servers that fail over")

T = TypeVar("T")

A, B = FencingToken(7, 33), FencingToken(7, 34)
ENOUGH = 30


def patiently(condition: Callable[[], T]) -> T:
    return wait_for(condition, databases.PATIENCE)


def installed(make: Callable[[], T]) -> T:
    try:
        return make()
    except databases.Unavailable as error:
        pytest.skip(str(error))


class Pair:
    """A PostgreSQL primary and its hot standby: the mark has seen A."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.primary = stack.enter_context(databases.PostgreSql())
        guard = self.guard(self.primary)
        guard.create_table()
        guard.create()
        guard.claim(A)
        self.ask(self.primary, "CREATE TABLE data (n INTEGER)")
        self.standby = stack.enter_context(databases.PostgreSqlStandby(self.primary))

    def guard(self, server: databases.PostgreSql, **settings: str) -> SqlGuard:
        import psycopg

        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        return SqlGuard(lambda: psycopg.connect(server.dsn, options=options), "report")

    def ask(self, server: databases.PostgreSql, statement: str) -> list[Any]:
        import psycopg

        with psycopg.connect(server.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def written(self, server: databases.PostgreSql) -> set[int]:
        return {n for (n,) in self.ask(server, "SELECT n FROM data")}

    def wait_for_standby(self) -> None:
        """From now on, a commit waits for the standby."""
        self.ask(self.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.ask(self.primary, "SELECT pg_reload_conf()")
        state = "SELECT sync_state FROM pg_stat_replication"
        patiently(lambda: self.ask(self.primary, state) == [("sync",)])

    def one_that_waits(self) -> int:
        """Return the process whose commit waits for the standby, once there is one."""
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        ((pid,),) = patiently(lambda: self.ask(self.primary, waiting))
        return int(pid)

    def fail_over(self) -> None:
        """Promote the standby, as it is: what it has not got is lost with the primary."""
        self.primary.kill()
        self.standby.start()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        yield installed(lambda: Pair(stack))


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as executor:
        yield executor


def insert(n: int) -> Callable[[Any], None]:
    def change(connection: Any) -> None:
        connection.execute("INSERT INTO data VALUES (%s)", [n])

    return change


def write_until_it_fails(write: Callable[[int], None], enough: threading.Event) -> list[int]:
    """Write 1, 2, …; return what was acknowledged."""
    acknowledged: list[int] = []
    with contextlib.suppress(NoAnswer, OutcomeUnknown):
        for n in count(1):
            write(n)
            acknowledged.append(n)
            if n == ENOUGH:
                enough.set()
    return acknowledged


@pytest.mark.parametrize("setting", ["asynchronous", "local", "off"])
def test_a_standby_that_nobody_waits_for_loses_what_was_acknowledged(
    pair: Pair, setting: str
) -> None:
    settings = {}
    if setting != "asynchronous":
        pair.wait_for_standby()
        settings["synchronous_commit"] = setting
    pair.standby.stop()
    pair.guard(pair.primary, **settings).run(B, insert(1))
    pair.fail_over()
    guard = pair.guard(pair.standby)
    assert (guard.highest(), pair.written(pair.standby)) == (A, set())
    guard.run(A, insert(2))  # the earlier holder passes, until the present one comes again
    guard.claim(B)
    with pytest.raises(StaleToken):
        guard.claim(A)


@pytest.mark.parametrize("setting", ["on", "remote_apply"])
def test_a_synchronous_standby_keeps_what_was_acknowledged(
    pair: Pair, beside: ThreadPoolExecutor, setting: str
) -> None:
    pair.wait_for_standby()
    guard, enough = pair.guard(pair.primary, synchronous_commit=setting), threading.Event()

    def write(n: int) -> None:
        guard.run(FencingToken(8, n), insert(n))

    writes = beside.submit(write_until_it_fails, write, enough)
    assert enough.wait(databases.PATIENCE)
    pair.primary.kill()
    acknowledged = writes.result()
    pair.standby.promote()
    mark = pair.guard(pair.standby).highest()
    assert mark is not None
    assert mark >= FencingToken(8, acknowledged[-1])
    assert set(acknowledged) <= pair.written(pair.standby)
    assert len(pair.written(pair.standby)) == mark.sequence  # data and mark are of one moment


@pytest.mark.parametrize("setting", ["on", "remote_apply"])
def test_a_commit_that_waits_for_the_standby_is_in_doubt_when_the_primary_dies(
    pair: Pair, beside: ThreadPoolExecutor, setting: str
) -> None:
    pair.wait_for_standby()
    pair.standby.stop()
    guard = pair.guard(pair.primary, synchronous_commit=setting)
    write = beside.submit(guard.run, B, insert(1))
    pair.one_that_waits()
    assert not write.done()
    pair.fail_over()
    with pytest.raises(OutcomeUnknown):
        write.result()
    assert pair.guard(pair.standby).highest() == A


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_wait_for_the_standby_that_is_ended_leaves_the_commit_on_the_primary_alone(
    pair: Pair, beside: ThreadPoolExecutor, how: str
) -> None:
    pair.wait_for_standby()
    pair.standby.stop()
    write: Future[None] = beside.submit(pair.guard(pair.primary).run, B, insert(1))
    pair.ask(pair.primary, f"SELECT {how}({pair.one_that_waits()})")
    if how == "pg_cancel_backend":
        write.result()  # PostgreSQL acknowledges it, with a warning
    else:
        with pytest.raises(OutcomeUnknown):
            write.result()
    assert pair.guard(pair.primary).highest() == B
    pair.fail_over()
    assert (pair.guard(pair.standby).highest(), pair.written(pair.standby)) == (A, set())


def test_a_standby_refuses_changes_and_shows_its_mark(pair: Pair) -> None:
    guard = pair.guard(pair.standby)
    assert guard.highest() == A
    changes: list[Callable[[], object]] = [
        guard.create,
        lambda: guard.claim(B),
        lambda: guard.run(A, insert(1)),
    ]
    for change in changes:
        with pytest.raises(GuardUnusable, match="read-only"):
            change()


class Copied:
    """A Redis primary and its replica: the mark has seen A, there too."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.primary = stack.enter_context(databases.Redis())
        self.replica = stack.enter_context(databases.Redis())
        self.client, self.copy = (
            stack.enter_context(contextlib.closing(self._client(server)))
            for server in (self.primary, self.replica)
        )
        self.follow()
        self.guard = RedisGuard(self.client, "report")
        self.guard.create()
        self.guard.claim(A)
        self.key = self.guard.key("data")
        assert self.client.wait(1, 0) == 1

    def _client(self, server: databases.Server) -> Any:
        """Return a client whose WAIT is about its own last write."""
        import redis

        return redis.Redis(port=server.port, single_connection_client=True)

    def follow(self) -> None:
        self.client.config_set("repl-diskless-sync-delay", 0)
        self.copy.execute_command("REPLICAOF", "127.0.0.1", self.primary.port)
        self.in_step()

    def in_step(self) -> None:
        patiently(lambda: self.copy.info("replication")["master_link_status"] == "up")


@pytest.fixture
def copied() -> Iterator[Copied]:
    with contextlib.ExitStack() as stack:
        yield installed(lambda: Copied(stack))


def test_a_replica_that_was_behind_loses_what_was_acknowledged(copied: Copied) -> None:
    copied.replica.stop()
    copied.guard.set(copied.key, 1, B)
    copied.primary.kill()
    copied.replica.start()  # as a primary
    guard = RedisGuard(copied.copy, "report")
    assert (guard.highest(), copied.copy.get(copied.key)) == (A, None)
    guard.set(copied.key, 2, A)
    guard.claim(B)
    with pytest.raises(StaleToken):
        guard.claim(A)


def test_what_a_wait_has_confirmed_is_on_the_replica(
    copied: Copied, beside: ThreadPoolExecutor
) -> None:
    enough = threading.Event()
    append = "return redis.call('RPUSH', KEYS[1], ARGV[1])"

    def write(n: int) -> None:
        copied.guard.run(append, [copied.key], [n], FencingToken(8, n))
        if copied.client.wait(1, 1000) < 1:
            raise OutcomeUnknown("no replica has it", resource="report")

    writes = beside.submit(write_until_it_fails, write, enough)
    assert enough.wait(databases.PATIENCE)
    copied.primary.kill()
    acknowledged = writes.result()
    copied.copy.execute_command("REPLICAOF", "NO", "ONE")
    mark = RedisGuard(copied.copy, "report").highest()
    kept = [int(n) for n in copied.copy.lrange(copied.key, 0, -1)]
    assert mark is not None
    assert kept == list(range(1, mark.sequence + 1))
    assert acknowledged == kept[: len(acknowledged)]


def test_a_guard_goes_on_where_sentinel_has_promoted(copied: Copied) -> None:
    import redis.sentinel

    make: Any = redis.sentinel.Sentinel
    with (
        databases.Sentinel(copied.primary) as server,
        contextlib.closing(make([("127.0.0.1", server.port)])) as sentinel,
        contextlib.closing(sentinel.master_for("store")) as client,
    ):
        patiently(lambda: sentinel.discover_slaves("store"))
        guard = RedisGuard(client, "report")
        guard.claim(B)
        patiently(lambda: RedisGuard(copied.copy, "report").highest() == B)
        copied.primary.kill()

        def reached() -> bool:
            with contextlib.suppress(OutcomeUnknown):
                guard.set(copied.key, 1, B)
                return True
            return False

        patiently(reached)
        with pytest.raises(StaleToken):
            guard.set(copied.key, 2, A)
        assert copied.copy.get(copied.key) == b"1"


def test_a_primary_that_has_lost_its_replicas_can_be_told_to_refuse(copied: Copied) -> None:
    copied.client.config_set("min-replicas-to-write", 1)
    copied.replica.stop()
    patiently(lambda: copied.client.info("replication")["connected_slaves"] == 0)
    changes: list[Callable[[], object]] = [
        lambda: copied.guard.claim(B),
        lambda: copied.guard.set(copied.key, 1, A),
        RedisGuard(copied.client, "other").create,
    ]
    for change in changes:
        with pytest.raises(GuardUnusable, match="NOREPLICAS"):
            change()
    assert (copied.guard.highest(), copied.client.get(copied.key)) == (A, None)


def test_a_primary_that_comes_back_empty_empties_its_replica(copied: Copied) -> None:
    copied.primary.kill()
    shutil.rmtree(copied.primary.folder / "appendonlydir")
    copied.primary.start()
    patiently(lambda: copied.copy.exists(copied.guard.key("zklock-fence")) == 0)
    copied.in_step()
    with pytest.raises(GuardUnusable, match="no mark"):
        copied.guard.claim(B)
