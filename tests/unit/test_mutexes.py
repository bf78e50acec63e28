"""The locks of zklock's own: no interrupt leaves one taken, on any Python."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from zklock._ground import mutexes

SOON = 60.0
ROUNDS = 2000
ALL = [
    pytest.param(mutexes.Mutex, id="plain"),
    pytest.param(mutexes.ReentrantMutex, id="re-entrant"),
    pytest.param(mutexes._Mutex, id="plain for 3.14"),
    pytest.param(mutexes._ReentrantMutex, id="re-entrant for 3.14"),
]


class Struck(BaseException):
    """What the signal handler raises."""


@pytest.fixture(params=ALL)
def mutex(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture
def alarm() -> Iterator[list[int]]:
    """The signals so far."""
    struck: list[int] = []

    def strike(number: int, frame: FrameType | None) -> None:
        struck.append(number)
        raise Struck

    before = signal.signal(signal.SIGALRM, strike)
    yield struck
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def taking(mutex: Any) -> tuple[threading.Thread, threading.Event]:
    """Return a thread that takes the mutex once, and an event that is set when it has it."""
    taken = threading.Event()

    def take() -> None:
        with mutex:
            taken.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread, taken


def use(mutex: Any) -> None:
    with mutex:
        pass
    with mutex:
        pass


# A function of its own: on Python 3.13, a strike at the end of a loop is not one in its try.
def use_until(alarm: list[int], count: int, mutex: Any) -> None:
    while len(alarm) < count:
        use(mutex)


# Python swallows what a handler raises in the callback of a weak reference. Such a callback may run
# between any two steps, if another thread gave up the last reference and there is no global lock.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_at_any_moment_leaves_it_free(mutex: Any, alarm: list[int]) -> None:
    for number in range(ROUNDS):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.00003 + number % 50 * 1e-6)
            use_until(alarm, number + 1, mutex)
        except Struck:
            pass
        if number % 50 == 49:
            assert taking(mutex)[1].wait(SOON), f"taken after {number + 1} interrupts"


def test_a_signal_while_it_is_waited_for_leaves_it_to_its_owner(
    mutex: Any, alarm: list[int]
) -> None:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            held.set()
            over.wait(SOON)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(SOON)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Struck):
            use(mutex)
        other, taken = taking(mutex)
        assert not taken.is_set()
    finally:
        over.set()
        holder.join()
    assert taken.wait(SOON)
    other.join()


def test_one_at_a_time(mutex: Any) -> None:
    count = 0

    def work() -> None:
        nonlocal count
        for _ in range(2000):
            with mutex:
                seen = count
                use_up_a_turn()
                count = seen + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 8000


def use_up_a_turn() -> None:
    for _ in range(3):
        pass


def test_an_error_of_the_body_passes_and_frees_it(mutex: Any) -> None:
    with pytest.raises(KeyError), mutex:
        raise KeyError
    assert taking(mutex)[1].wait(SOON)


@pytest.mark.parametrize("kind", ALL[1::2])
def test_its_own_thread_may_take_it_again_and_can_tell_that_it_has_it(kind: Any) -> None:
    mutex = kind()
    tells = threading.Condition(mutex)
    with mutex:
        with mutex:
            pass
        tells.notify(0)
        other, taken = taking(mutex)
        assert not taken.is_set()
    with pytest.raises(RuntimeError):
        tells.notify(0)
    assert taken.wait(SOON)
    other.join()
