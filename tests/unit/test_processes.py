"""What a handler in another process is told, by shared memory and the clock."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

import zklock
from tests.fakes import no_thread
from zklock._ground.clock import clock
from zklock._locks.grant import Grant
from zklock._pool.processes import RemoteShard, RemoteStop, _Child
from zklock._pool.runners import CannotRun
from zklock.token import FencingToken


def shard(number: int = 7, lease: float = 60.0) -> RemoteShard:
    """Return a shard whose lease runs for so many seconds."""
    grant = cast(Grant, SimpleNamespace(token=FencingToken(1, 2), lock_path="/p/shards/7"))
    return RemoteShard(number, grant, RemoteStop(clock() + lease))


def test_told_to_stop_it_is_still_held() -> None:
    mine = shard()
    assert (mine.number, mine.token, mine.held) == (7, FencingToken(1, 2), True)
    assert not mine.should_stop.is_set()
    assert not mine.should_stop.wait(0.0)
    mine.should_stop._told.stops = True
    assert mine.should_stop.wait()
    assert mine.held
    mine.check()


def test_what_is_lost_is_not_held() -> None:
    mine, other = shard(), shard(8)
    mine.should_stop._told.lost = True
    assert mine.should_stop.is_set()
    assert not mine.held
    with pytest.raises(zklock.LockLost, match="token 0000000000000001-0000000002") as lost:
        mine.check()
    assert lost.value.path == "/p/shards/7"
    assert other.held


def test_lost_when_the_lease_is_over_and_nobody_says_so() -> None:
    mine = shard(lease=0.05)
    assert mine.should_stop.wait(20.0)
    assert not mine.held


def test_memory_that_is_used_for_another_turn_says_that_it_is_lost() -> None:
    mine, later = shard(), shard()
    told = mine.should_stop._told
    told.turn, told.lost = later.should_stop._turn, False
    assert not mine.held
    assert mine.should_stop.is_set()
    assert later.held


class WithoutThreads:
    """Stands in for a shard. In the process that it is sent to, no thread can be started."""

    _shard, _path, token = 3, "/pool", FencingToken(1, 1)

    def __init__(self) -> None:
        self.should_stop = RemoteStop(clock() + 60)

    def __reduce__(self) -> Any:
        return refuse_threads, ()


def refuse_threads() -> None:
    setattr(threading.Thread, "start", no_thread)  # noqa: B010 (a method, for mypy)


def test_a_process_that_cannot_start_its_thread_has_not_begun() -> None:
    """So the handler has not failed: it is called again, whatever ``on_error`` is."""
    stood_in = WithoutThreads()
    with pytest.raises(CannotRun, match="cannot be started: can't start"):
        _Child(pickle.dumps(print), cast(Any, stood_in)).run()
    assert stood_in.should_stop._told.lost
