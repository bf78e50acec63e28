"""Shards that are taken from handlers that do not end, by a pool that was told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.contract.handlers import Handle, alive, noted
from tests.contract.lasting import LASTING
from tests.contract.support import SOON
from tests.contract.workers import Front, Join, joining, owns
from zklock.testing import wait_for

pytestmark = LASTING

PATIENCE = 0.2


@pytest.fixture
def join(front: Front, other: Any, zklock_path: str) -> Iterator[Join]:
    """Return ``join(identity, **options)``: a started worker; they share a client."""
    with joining(front, zklock_path, lambda: other, shards=1, settle=0.0) as join:
        yield join


class Deaf:
    """A handler that heeds nothing until it is let go, and then looks at its shard."""

    def __init__(self) -> None:
        self.shards: list[zklock.Shard] = []
        self.go = threading.Event()
        self.error: zklock.ZkLockError | None = None

    def __call__(self, shard: zklock.Shard) -> None:
        self.shards.append(shard)
        assert self.go.wait(2 * SOON)
        try:
            shard.check()
        except zklock.ZkLockError as error:
            self.error = error
            raise


def test_the_next_owner_has_a_greater_token_and_the_stuck_handler_is_refused(
    join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    deaf, told = Deaf(), list[Any]()
    one = join(
        "a",
        handler=deaf,
        stuck_after=PATIENCE,
        on_stuck=lambda shard, grant: told.append((shard, grant.token, grant.held)),
    )
    wait_for(lambda: deaf.shards, SOON)
    (shard,) = deaf.shards
    assert deaf.shards[0].held
    two = join("b")
    assert one.drain(SOON)  # it owns no shard, though its handler still runs
    owns(two, 0)
    assert two.owned()[0].token > shard.token
    assert not shard.held
    with pytest.raises(zklock.NotHeld):
        shard.check()
    wait_for(lambda: told == [(0, shard.token, False)], SOON)
    assert "the work on shard 0 did not stop within 0.2 s" in caplog.text
    with pytest.raises(zklock.PoolStuck, match=r"shards 0 did not stop.*: they were released"):
        one.stop(0.0)
    deaf.go.set()
    one.stop()
    assert isinstance(deaf.error, zklock.NotHeld)
    assert "raised" not in caplog.text, "that it was refused is no failure"
    assert len(told) == 1


def test_it_comes_back_beside_the_stuck_handler(join: Join) -> None:
    deaf = Deaf()
    pool = join("a", handler=deaf, stuck_after=PATIENCE)
    wait_for(lambda: len(deaf.shards) == 1, SOON)
    pool.set_shards(2)
    wait_for(lambda: len(deaf.shards) == 2, SOON)
    pool.set_shards(1)
    owns(pool, 0)
    stuck = next(shard for shard in deaf.shards if shard.number == 1)
    wait_for(lambda: not stuck.held, SOON)
    pool.set_shards(2)
    wait_for(lambda: len(deaf.shards) == 3, SOON)
    assert deaf.shards[2].number == 1
    assert deaf.shards[2].token > stuck.token
    assert deaf.shards[2].held
    assert not stuck.held
    deaf.go.set()


def test_without_the_policy_the_shard_stays(join: Join) -> None:
    deaf = Deaf()
    one = join("a", handler=deaf)
    wait_for(lambda: deaf.shards, SOON)
    two = join("b")
    assert not one.drain(2 * PATIENCE)
    assert deaf.shards[0].held
    assert not two.owned()
    deaf.go.set()
    owns(two, 0)


def test_a_handler_that_ends_in_time_is_not_stuck(
    join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    one = join(
        "a",
        handler=lambda shard: shard.should_stop.wait(),
        stuck_after=600.0,
        on_stuck=lambda shard, grant: told.append(shard),
    )
    owns(one, 0)
    assert one.drain(SOON)
    one.stop()
    assert not told
    assert "did not stop" not in caplog.text


def test_a_coroutine_function_is_cancelled(join: Join) -> None:
    began, ended = list[Any](), list[Any]()

    async def deaf(shard: Any) -> None:
        began.append(shard)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(shard.held)

    one = join("a", handler=deaf, stuck_after=PATIENCE)
    wait_for(lambda: began, SOON)
    one.stop()
    assert len(ended) == 1


def test_a_process_is_ended(join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zklock._pool.processes.TERM_AFTER", 0.1)
    monkeypatch.setattr("zklock._pool.processes.KILL_AFTER", 0.1)
    handler = Handle(str(tmp_path), {0: "insists"})
    one = join("a", handler=handler, executor="processes", stuck_after=PATIENCE)
    (process,) = wait_for(lambda: noted(tmp_path, "began").get(0), SOON)
    assert one.drain(SOON)
    one.stop()  # it waits for the process
    assert not alive(process)


def test_what_it_must_be(front: Front, other: Any, zklock_path: str) -> None:
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="stuck_after"):
            front.pool(other, zklock_path, stuck_after=wrong)
    with pytest.raises(TypeError, match="stuck_after"):
        front.pool(other, zklock_path, stuck_after="5")
    with pytest.raises(ValueError, match="on_stuck needs stuck_after"):
        front.pool(other, zklock_path, on_stuck=print)
