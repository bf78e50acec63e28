"""What a handler in another process is told, by a shared file and the clock."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

import zklock
from zklock import shards
from zklock.clock import clock
from zklock.grant import Grant
from zklock.shards import _LOST, _RUNS, _STOPS, Board, InTasks, RemoteShard, RemoteStop, Shard
from zklock.token import FencingToken


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board()
    made.lease(clock() + 60)
    yield made
    made.close()


def shard(board: Board, number: int, turn: int) -> RemoteShard:
    """Return the shard as it arrives in the other process."""
    grant = cast(Grant, SimpleNamespace(token=FencingToken(1, 2), lock_path="/p/shards/7"))
    made = RemoteShard(number, grant, RemoteStop(board.path, number, turn))
    found: Any = pickle.loads(pickle.dumps(made))
    assert isinstance(found, RemoteShard)
    return found


def test_told_to_stop_it_is_still_held(board: Board) -> None:
    turn = board.begin(7)
    mine = shard(board, 7, turn)
    assert (mine.number, mine.token, mine.held) == (7, FencingToken(1, 2), True)
    assert not mine.should_stop.is_set()
    assert not mine.should_stop.wait(0.0)
    board.note(7, turn, _STOPS)
    assert mine.should_stop.wait()
    assert mine.held
    mine.check()


def test_lost(board: Board) -> None:
    turn = board.begin(7)
    mine, other = shard(board, 7, turn), shard(board, 8, board.begin(8))
    board.note(7, turn, _LOST)
    assert mine.should_stop.is_set()
    assert not mine.held
    with pytest.raises(zklock.LockLost, match="token 0000000000000001-0000000002") as lost:
        mine.check()
    assert lost.value.path == "/p/shards/7"
    assert other.held


def test_lost_when_the_lease_is_over_and_nobody_says_so(board: Board) -> None:
    mine = shard(board, 7, board.begin(7))
    board.lease(clock() + 0.05)
    assert mine.should_stop.wait(20.0)
    assert not mine.held


def test_an_earlier_turn_is_lost_for_good(board: Board) -> None:
    first = board.begin(7)
    mine = shard(board, 7, first)
    board.note(7, first, _STOPS)
    later = shard(board, 7, board.begin(7))
    assert later.held
    assert not later.should_stop.is_set()
    assert not mine.held
    assert mine.should_stop.is_set()


def test_a_board_that_is_gone() -> None:
    board = Board()
    board.lease(clock() + 60)
    mine = shard(board, 7, board.begin(7))
    assert mine.held
    late = shard(board, 7, board.begin(7))
    shards._view.cache_clear()
    board.close()
    assert [mine.held, late.held, late.should_stop.is_set()] == [False, False, True]


def test_the_last_shard(board: Board) -> None:
    turn = board.begin(65535)
    assert shard(board, 65535, turn).held
    board.note(65535, turn, _RUNS)
    assert shard(board, 65535, turn).held


def test_woken_by_another_thread(board: Board) -> None:
    turn = board.begin(7)
    mine = shard(board, 7, turn)
    timer = threading.Timer(0.05, lambda: board.note(7, turn, _STOPS))
    timer.start()
    assert mine.should_stop.wait(20.0)
    timer.join()


# Tasks.

SOON = 10.0


class Work:
    """A handler that notes what becomes of it, and ends when told or cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.ends: list[str] = []

    async def __call__(self, shard: Shard) -> None:
        self.began.set()
        try:
            await shard.should_stop.wait()
            await asyncio.sleep(0)
            self.ends.append("told")
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.ends.append(f"cancelled, told: {shard.should_stop.is_set()}")
            raise


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def tasks(work: Work) -> Iterator[InTasks]:
    made = InTasks(work, None)
    yield made
    made.close()


def held() -> Grant:
    return cast(Grant, SimpleNamespace(token=FencingToken(1, 2), lock_path="/p/shards/7"))


def test_a_task_that_is_told_ends_by_itself(work: Work, tasks: InTasks) -> None:
    task = tasks.submit(7, held())
    assert work.began.wait(SOON)
    task.tell()
    assert task.future.result(SOON) is None
    assert work.ends == ["told"]


def test_a_task_whose_shard_is_lost_is_cancelled_and_has_returned(
    work: Work, tasks: InTasks
) -> None:
    task = tasks.submit(7, held())
    assert work.began.wait(SOON)
    task.lose()
    assert task.future.result(SOON) is None
    assert work.ends == ["cancelled, told: True"]
    task.lose()  # of no effect any more


def test_a_task_whose_shard_is_lost_before_it_begins_does_not(work: Work) -> None:
    loop = asyncio.new_event_loop()
    task = InTasks(work, loop).submit(7, held())
    task.lose()
    loop.run_until_complete(asyncio.wrap_future(task.future, loop=loop))
    loop.close()
    assert not work.began.is_set()


def test_a_cancellation_by_others_is_an_error(work: Work, tasks: InTasks) -> None:
    task = tasks.submit(7, held())
    assert work.began.wait(SOON)

    def cancel_all() -> None:
        for each in asyncio.all_tasks(tasks._loop):
            each.cancel()

    tasks._loop.call_soon_threadsafe(cancel_all)
    assert isinstance(task.future.exception(SOON), asyncio.CancelledError)
    assert work.ends == ["cancelled, told: False"]


def test_a_closed_loop_is_said_so(work: Work) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        InTasks(work, loop).submit(7, held())
