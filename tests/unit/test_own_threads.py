"""The threads of a pool's own: how many there are, and what is left of a call that is refused."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import pytest

from tests.fakes import no_thread
from zklock._pool.own_threads import OwnThreads

SOON = 60.0


class Long:
    """A call that takes until it is told to end."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.end = threading.Event()

    def __call__(self, outcome: object = None) -> object:
        self.began.set()
        assert self.end.wait(SOON)
        return outcome


def test_after_refusals_each_call_has_a_thread_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor of Python 3.11 has one idle thread here, and believes that it has four."""
    threads, first, calls = OwnThreads(9, "mine"), Long(), list[str]()
    future = threads.submit(first)
    assert first.began.wait(SOON)
    for _ in range(3):
        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="new thread"):
            patched.setattr(threading.Thread, "start", no_thread)
            threads.submit(calls.append, "refused")
    first.end.set()
    future.result(SOON)
    later = [Long() for _ in range(4)]
    for long in later:
        threads.submit(long)
    for long in later:
        assert long.began.wait(SOON)
    for long in later:
        long.end.set()
    threads.shutdown()
    assert calls == []


def test_no_more_run_at_a_time_and_the_others_wait_for_their_turn() -> None:
    threads, longs, calls = OwnThreads(2, "mine"), [Long(), Long()], list[str]()
    for long in longs:
        threads.submit(long)
        assert long.began.wait(SOON)
    waiting = [threads.submit(calls.append, text) for text in "abc"]
    assert waiting[1].cancel()
    ends = threading.Thread(target=threads.shutdown)
    ends.start()
    assert calls == []
    longs[0].end.set()
    assert waiting[2].result(SOON) is None
    assert calls == ["a", "c"]
    assert ends.is_alive()
    longs[1].end.set()
    ends.join(SOON)
    assert not [each for each in threading.enumerate() if each.name.startswith("mine_")]


def test_an_error_is_the_outcome_and_the_next_call_runs() -> None:
    threads, long = OwnThreads(1, "mine"), Long()
    futures: list[Future[Any]] = [
        threads.submit(long),
        threads.submit(divmod, 1, 0),
        threads.submit(raising, SystemExit()),
        threads.submit(divmod, 7, 2),
    ]
    long.end.set()
    assert isinstance(futures[1].exception(SOON), ZeroDivisionError)
    assert isinstance(futures[2].exception(SOON), SystemExit)
    assert futures[3].result(SOON) == (3, 1)
    threads.shutdown()


def raising(error: BaseException) -> None:
    raise error


def test_an_error_and_its_future_are_no_circle() -> None:
    threads, error = OwnThreads(1, "mine"), KeyError()
    gc.disable()
    try:
        future = threads.submit(raising, error)
        threads.shutdown()
        assert future.exception(0) is error
        kept = weakref.ref(future)
        del error, future
        assert kept() is None
    finally:
        gc.enable()


def test_threads_that_have_ended_are_forgotten() -> None:
    threads = OwnThreads(9, "mine")
    for _ in range(100):
        threads.submit(str).result(SOON)
    assert len(threads._threads) < 25
    threads.shutdown()


def test_python_waits_for_them_though_a_daemon_submits() -> None:
    threads, futures = OwnThreads(1, "mine"), list[Future[threading.Thread]]()
    daemon = threading.Thread(
        target=lambda: futures.append(threads.submit(threading.current_thread)), daemon=True
    )
    daemon.start()
    daemon.join()
    assert not futures[0].result(SOON).daemon
    threads.shutdown()
