"""The threads that callbacks run on: there before they are needed, few, and none waits for ever."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from tests.fakes import interrupted_starter, no_thread
from zklock._shell.callback_executor import FEWEST, MOST, CallbackExecutor
from zklock.testing import wait_for

SOON = 60.0


def crew() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "zklock-callback"}


@pytest.fixture
def others() -> set[threading.Thread]:
    """Threads of tests before."""
    return crew()


@pytest.fixture
def callers(others: set[threading.Thread]) -> Iterator[CallbackExecutor]:
    made = CallbackExecutor()
    made.start()
    yield made
    made.end()
    wait_for(lambda: crew() <= others, SOON, "its threads have ended")


def test_calls_given_together_are_in_order(callers: CallbackExecutor) -> None:
    ran: list[int] = []
    done = threading.Event()
    callers.run([*(lambda number=number: ran.append(number) for number in range(50)), done.set])
    assert done.wait(SOON)
    assert ran == list(range(50))


def test_one_that_hangs_keeps_no_other_waiting(callers: CallbackExecutor) -> None:
    go = threading.Event()
    told = threading.Semaphore(0)
    for _ in range(10):
        callers.run([lambda: go.wait(SOON)])
    callers.run([told.release])
    assert told.acquire(timeout=SOON)
    go.set()


def test_callbacks_do_not_see_the_variables_of_who_was_the_first() -> None:
    seen: list[str | None] = []
    done = threading.Event()
    variable = ContextVar[str | None]("variable", default=None)
    variable.set("of the first")
    made = CallbackExecutor()
    made.start()
    made.run([lambda: seen.append(variable.get()), done.set])
    assert done.wait(SOON)
    made.end()
    assert seen == [None]


def test_a_burst_starts_no_thread_for_each(
    callers: CallbackExecutor, others: set[threading.Thread]
) -> None:
    go = threading.Event()
    most = []
    told = threading.Semaphore(0)

    def call() -> None:
        go.wait(SOON)
        most.append(len(crew() - others))
        told.release()

    for _ in range(300):
        callers.run([call])
    go.set()
    for _ in range(300):
        assert told.acquire(timeout=SOON)
    assert FEWEST <= max(most) <= MOST


@pytest.mark.hazard("H27")
def test_all_are_called_where_no_thread_can_be_started(
    callers: CallbackExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    go = threading.Event()
    told = threading.Semaphore(0)
    callers.run([lambda: go.wait(SOON)])  # hangs
    for _ in range(300):
        callers.run([told.release])
    for _ in range(300):
        assert told.acquire(timeout=SOON)
    go.set()


def test_that_none_can_be_started_is_known_beforehand_and_what_is_called_waits_for_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    callers = CallbackExecutor()
    done = threading.Event()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            CallbackExecutor().start()
        callers.run([done.set])
    assert "no thread can be started" in caplog.text
    callers.run([])
    assert done.wait(SOON)
    callers.end()


def test_an_interrupt_of_who_starts_a_thread_does_it_no_harm(
    others: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    callers, ends = CallbackExecutor(), threading.Semaphore(0)
    serve = CallbackExecutor._serve

    def served(executor: CallbackExecutor, me: object, lasting: bool) -> None:
        serve(executor, me, lasting)
        ends.release()

    monkeypatch.setattr(CallbackExecutor, "_serve", served)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted_starter())
        with pytest.raises(KeyboardInterrupt):
            callers.start()
    done = threading.Event()
    callers.run([done.set])
    assert done.wait(SOON)
    began = len(crew() - others)
    callers.end()
    wait_for(lambda: crew() <= others, SOON, "its threads have ended")
    assert [ends.acquire(blocking=False) for _ in range(began)] == [True] * began


def test_nothing_is_forgotten_at_the_end() -> None:
    """The end may be said while calls are being given."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(200):
            callers = CallbackExecutor()
            callers.start()
            told = threading.Semaphore(0)
            giving = threading.Thread(
                target=lambda callers=callers, told=told: [
                    callers.run([told.release]) for _ in range(5)
                ]
            )
            giving.start()
            callers.end()
            giving.join()
            for _ in range(5):
                assert told.acquire(timeout=SOON)
            callers.end()
    finally:
        sys.setswitchinterval(interval)


def test_an_end_that_is_struck_ends_the_threads(
    callers: CallbackExecutor, others: set[threading.Thread]
) -> None:
    callers._queue.put(None)  # what end() does before an interrupt strikes it
    wait_for(lambda: crew() <= others, SOON, "its threads have ended")
    assert callers._over
