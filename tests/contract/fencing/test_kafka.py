"""The consumer of docs/howto/fencing-kafka.md, over a log that the test keeps in memory."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fencing import howto
from zklock.errors import GuardUnusable, NoAnswer
from zklock.fencing import SqlGuard
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)


@dataclass(frozen=True)
class Grant:
    token: FencingToken


@dataclass(frozen=True)
class Record:
    partition: int
    offset: int
    headers: list[tuple[str, bytes]]
    value: str


PAGE: dict[str, Any] = {}
for block in howto.blocks("howto/fencing-kafka.md"):
    exec(block, PAGE)


def log_of(written: Sequence[tuple[FencingToken, str]], gap: int = 1) -> list[Record]:
    """Return the log of a partition, in the order in which the broker has appended."""
    return [
        Record(0, number * gap, PAGE["headers_of"](Grant(token)), value)
        for number, (token, value) in enumerate(written)
    ]


def in_time(written: Sequence[tuple[FencingToken, str]]) -> list[str]:
    """Return what every consumer is to accept."""
    highest, accepted = FencingToken(0, 0), []
    for token, value in written:
        if token >= highest:
            highest = token
            accepted.append(value)
    return accepted


class Consumer:
    """Its store is a database, in which nothing but committed transactions is left by a crash."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.guard = SqlGuard(self.connect, "report")
        if not path.exists():
            self.guard.create_table()
            self.guard.create()
            with contextlib.closing(self.connect()) as connection, connection:
                connection.execute("CREATE TABLE offsets (part INTEGER, next INTEGER)")
                connection.execute("INSERT INTO offsets VALUES (0, 0)")
                connection.execute("CREATE TABLE applied (value TEXT)")

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    @contextlib.contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(self.connect()) as connection:
            yield connection

    def position(self) -> int:
        with self.opened() as connection:
            return int(connection.execute("SELECT next FROM offsets").fetchone()[0])

    def applied(self) -> list[str]:
        with self.opened() as connection:
            return [row[0] for row in connection.execute("SELECT value FROM applied")]

    def apply(self, connection: sqlite3.Connection, record: Record) -> bool:
        accepted: bool = PAGE["apply"](self.guard, connection, record, change)
        return accepted

    def read(self, log: Sequence[Record], connection: sqlite3.Connection) -> None:
        """Read on from the stored offset to the end."""
        start = self.position()
        for record in log:
            if record.offset >= start:
                self.apply(connection, record)


def change(connection: sqlite3.Connection, record: Record) -> None:
    connection.execute("INSERT INTO applied VALUES (?)", (record.value,))


WRITTEN = [(A, "a"), (A, "b"), (B, "claim"), (A, "late"), (B, "c"), (A, "later"), (B, "d")]


@pytest.mark.parametrize("gap", [1, 3], ids=["no gaps", "gaps"])
def test_late_records_are_refused(tmp_path: Path, gap: int) -> None:
    consumer = Consumer(tmp_path / "database")
    log = log_of(WRITTEN, gap)
    with consumer.opened() as connection:
        outcomes = [consumer.apply(connection, record) for record in log]
    assert outcomes == [True, True, True, False, True, False, True]
    assert consumer.applied() == ["a", "b", "claim", "c", "d"] == in_time(WRITTEN)
    assert consumer.position() == log[-1].offset + 1
    assert consumer.guard.highest() == B


def test_every_consumer_comes_to_the_same_result(tmp_path: Path) -> None:
    chance = random.Random(0)
    tokens = [FencingToken(7, number) for number in range(4)]
    for number in range(20):
        written = [(chance.choice(tokens), str(value)) for value in range(12)]
        log = log_of(written)
        consumer = Consumer(tmp_path / f"database {number}")
        with consumer.opened() as connection:
            consumer.read(log[: chance.randrange(12)], connection)
            consumer.read(log, connection)
        assert consumer.applied() == in_time(written)


def test_a_consumer_that_crashes_at_any_step_applies_each_record_once(tmp_path: Path) -> None:
    """It is stopped before each ninth instruction of the database's machine."""
    log = log_of(WRITTEN)
    crashes = 0
    for steps in range(1, 100_000, 9):
        consumer = Consumer(tmp_path / f"database {steps}")
        left = steps

        def tick() -> bool:
            nonlocal left
            left -= 1
            return left == 0

        errors = sqlite3.OperationalError, NoAnswer  # of a write of ours, or of the guard
        with contextlib.suppress(*errors), consumer.opened() as connection:
            connection.set_progress_handler(tick, 1)
            consumer.read(log, connection)
        if left > 0:
            break
        crashes += 1
        with consumer.opened() as connection:
            consumer.read(log, connection)
        assert consumer.applied() == in_time(WRITTEN)
        assert consumer.position() == len(log)
    assert crashes > 20


def test_an_earlier_owner_of_the_partition_applies_nothing_twice(tmp_path: Path) -> None:
    consumer = Consumer(tmp_path / "database")
    log = log_of(WRITTEN)
    with consumer.opened() as earlier, consumer.opened() as present:
        consumer.apply(earlier, log[0])
        consumer.read(log, present)
        for record in log[1:]:
            with pytest.raises(PAGE["Moved"], match="is beyond offset"):
                consumer.apply(earlier, record)
            assert not earlier.in_transaction
    assert consumer.applied() == in_time(WRITTEN)


def test_a_record_without_a_token_changes_nothing(tmp_path: Path) -> None:
    consumer = Consumer(tmp_path / "database")
    with consumer.opened() as connection:
        with pytest.raises(KeyError):
            consumer.apply(connection, Record(0, 0, [], "a"))
        with pytest.raises(ValueError, match="token"):
            consumer.apply(connection, Record(0, 0, [("zklock-token", b"34")], "a"))
    assert (consumer.applied(), consumer.position()) == ([], 0)


def test_a_store_that_has_lost_its_mark_refuses(tmp_path: Path) -> None:
    consumer = Consumer(tmp_path / "database")
    with consumer.opened() as connection:
        connection.execute("DELETE FROM zklock_fence")
        connection.commit()
        with pytest.raises(GuardUnusable):
            consumer.read(log_of(WRITTEN), connection)
    assert (consumer.applied(), consumer.position()) == ([], 0)
