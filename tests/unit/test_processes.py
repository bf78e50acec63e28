"""What a handler in another process is told, by shared memory and the clock."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import zklock
from tests.fakes import no_thread
from zklock._ground.clock import clock
from zklock._locks.grant import Grant
from zklock._pool import processes
from zklock._pool.processes import (
    _LOST,
    _STOPS,
    RemoteShard,
    RemoteStop,
    SharedBoard,
    _Child,
)
from zklock._pool.runners import CannotRun
from zklock.token import FencingToken


@pytest.fixture
def board() -> Iterator[SharedBoard]:
    made = SharedBoard()
    made.lease(clock() + 60)
    yield made
    made.close()


def shard(board: SharedBoard, number: int, turn: int) -> RemoteShard:
    """Return the shard as it arrives in the other process."""
    grant = cast(Grant, SimpleNamespace(token=FencingToken(1, 2), lock_path="/p/shards/7"))
    made = RemoteShard(number, grant, RemoteStop(board.path, board.mark, number, turn))
    found: Any = pickle.loads(pickle.dumps(made))
    assert isinstance(found, RemoteShard)
    return found


@pytest.mark.parametrize("number", [7, 65535])
def test_told_to_stop_it_is_still_held(board: SharedBoard, number: int) -> None:
    turn = board.begin(number)
    mine = shard(board, number, turn)
    assert (mine.number, mine.token, mine.held) == (number, FencingToken(1, 2), True)
    assert not mine.should_stop.is_set()
    assert not mine.should_stop.wait(0.0)
    board.note(number, turn, _STOPS)
    assert mine.should_stop.wait()
    assert mine.held
    mine.check()


def test_what_is_lost_stays_lost(board: SharedBoard) -> None:
    turn = board.begin(7)
    mine, other = shard(board, 7, turn), shard(board, 8, board.begin(8))
    board.note(7, turn, _LOST)
    board.note(7, turn, _STOPS)
    assert mine.should_stop.is_set()
    assert not mine.held
    with pytest.raises(zklock.LockLost, match="token 0000000000000001-0000000002") as lost:
        mine.check()
    assert lost.value.path == "/p/shards/7"
    assert other.held


def test_lost_when_the_lease_is_over_and_nobody_says_so(board: SharedBoard) -> None:
    mine = shard(board, 7, board.begin(7))
    board.lease(clock() + 0.05)
    assert mine.should_stop.wait(20.0)
    assert not mine.held


def test_an_earlier_turn_is_lost_for_good(board: SharedBoard) -> None:
    first = board.begin(7)
    mine = shard(board, 7, first)
    board.note(7, first, _STOPS)
    later = shard(board, 7, board.begin(7))
    assert later.held
    assert not later.should_stop.is_set()
    assert not mine.held
    assert mine.should_stop.is_set()


def test_a_board_that_is_gone() -> None:
    board = SharedBoard()
    board.lease(clock() + 60)
    mine = shard(board, 7, board.begin(7))
    assert mine.held
    late = shard(board, 7, board.begin(7))
    processes._views.clear()
    board.close()
    assert [mine.held, late.held, late.should_stop.is_set()] == [False, False, True]


def test_nothing_of_a_board_is_in_the_file_system(board: SharedBoard) -> None:
    assert board.path.startswith(f"/proc/{os.getpid()}/fd/")


@pytest.mark.parametrize(
    "lacking",
    [
        pytest.param({"geteuid": -1}, id="another user's"),
        pytest.param({"getpid": 1}, id="another PID namespace's"),
        pytest.param({"getpid": 2**22 + 1}, id="another PID namespace's, and no such process"),
    ],
)
def test_a_board_without_a_proc_file_system_of_its_own(
    lacking: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, found in lacking.items():
        monkeypatch.setattr(os, name, lambda found=found: found)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    board = SharedBoard()
    assert [str(path) for path in tmp_path.iterdir()] == [board.path]
    board.lease(clock() + 60)
    mine = shard(board, 7, board.begin(7))
    before = mine.held
    board.close()
    assert [before, mine.held] == [True, False]
    assert list(tmp_path.iterdir()) == []


def test_another_board_in_the_same_place_is_not_taken_for_it(board: SharedBoard) -> None:
    turn = board.begin(7)
    grant = cast(Grant, SimpleNamespace(token=FencingToken(1, 2), lock_path="/p/shards/7"))
    other = RemoteShard(7, grant, RemoteStop(board.path, board.mark + 2, 7, turn))
    assert not other.held
    assert shard(board, 7, turn).held
    assert not other.held


class WithoutThreads:
    """Stands in for a shard. In the process that it is sent to, no thread can be started."""

    _shard, _path, token = 3, "/pool", FencingToken(1, 1)

    def __reduce__(self) -> Any:
        return refuse_threads, ()


def refuse_threads() -> None:
    setattr(threading.Thread, "start", no_thread)  # noqa: B010 (a method, for mypy)


def test_a_process_that_cannot_start_its_thread_has_not_begun(board: SharedBoard) -> None:
    """So the handler has not failed: it is called again, whatever ``on_error`` is."""
    noted: list[int] = []
    handler = pickle.dumps(print)
    child = _Child(handler, cast(Any, WithoutThreads()), noted.append)
    with pytest.raises(CannotRun, match="cannot be started: can't start"):
        child.run()
    assert noted[-1] == _LOST
