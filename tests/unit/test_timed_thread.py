"""The thread that sessions and pools run on."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from tests.fakes import no_thread
from zklock._shell.timed_thread import TimedThread
from zklock.testing import wait_for

SOON = 60.0


def test_jobs_run_in_order_and_one_that_fails_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[int] = []
    done = threading.Event()
    worker = TimedThread("zklock-test", lambda: None)
    worker.later(lambda: 1 / 0)
    for number in range(100):
        worker.later(partial(ran.append, number))
    worker.later(done.set)
    assert done.wait(SOON)
    assert ran == list(range(100))
    assert "ZeroDivisionError" in caplog.text


def test_it_ends_when_nothing_is_due_and_starts_anew() -> None:
    turns = []

    def turn() -> float | None:
        turns.append(threading.current_thread())
        return None

    worker = TimedThread("zklock-test", turn)
    for count in (1, 2):
        worker.wake()
        wait_for(lambda count=count: len(turns) >= count, SOON)  # type: ignore[misc]
        thread = turns[-1]
        thread.join(SOON)
        assert not thread.is_alive()


def test_an_interrupt_of_who_starts_it_leaves_it_startable(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    worker = TimedThread("zklock-test", lambda: None)

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.later(lambda: None)
    worker.later(done.set)
    assert done.wait(SOON)


def test_threads_that_start_at_once_are_one() -> None:
    """A starter cannot know that another one has started it, until it says so."""
    turning, most = 0, 0
    go = threading.Event()

    def turn() -> None:
        nonlocal turning, most
        turning += 1
        most = max(most, turning)
        go.wait(SOON)
        turning -= 1

    worker = TimedThread("zklock-test", turn)
    threads = [threading.Thread(target=worker._run, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_for(lambda: sum(thread.is_alive() for thread in threads) == 1, SOON)
    go.set()
    for thread in threads:
        thread.join(SOON)
    assert not any(thread.is_alive() for thread in threads)
    assert most == 1


@pytest.mark.hazard("H27")
def test_a_job_waits_for_a_thread_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    done = threading.Event()
    worker = TimedThread("zklock-test", lambda: None)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        worker.later(lambda: ran.append(1))
        worker.later(lambda: ran.append(2))
        worker.wake()
        with pytest.raises(RuntimeError, match="new thread"):
            worker.ready()
    assert "no thread can be started" in caplog.text
    worker.later(done.set)
    assert done.wait(SOON)
    assert sorted(ran) == [1, 2]
