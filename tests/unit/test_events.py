"""An event that signal handlers may set, and that interrupts do not leave locked."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.unit.bytecodes import nothing_collected
from zklock._ground.events import Event

SOON = 60.0


@pytest.fixture
def alarm() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Have something called by a signal handler, each time ``setitimer`` fires."""
    before = signal.getsignal(signal.SIGALRM)

    def set_up(call: Callable[[], object]) -> None:
        signal.signal(signal.SIGALRM, lambda number, frame: call())

    yield set_up
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_it_is_an_event() -> None:
    event = Event()
    assert isinstance(event, threading.Event)
    assert not event.is_set()
    assert not event.wait(0)
    assert not event.wait(0.01)
    assert repr(event) == "<Event unset>"
    event.set()
    assert event.is_set()
    assert event.wait()
    assert repr(event) == "<Event set>"
    event.clear()
    assert not event.wait(0)


def test_all_who_wait_are_woken() -> None:
    event = Event()
    woken = threading.Semaphore(0)

    def sleep() -> None:
        if event.wait(SOON):
            woken.release()

    threads = [threading.Thread(target=sleep) for _ in range(20)]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join(SOON)
        assert woken.acquire(timeout=SOON)


@pytest.mark.hazard("H28")
def test_a_signal_handler_may_set_it_at_any_moment(
    alarm: Callable[[Callable[[], object]], None],
) -> None:
    for number in range(300):
        event = Event()
        alarm(event.set)
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + 1e-6 * (number % 100))
        while not event.wait(0.0001):
            event.is_set()
        assert event.is_set()


# A function of its own: on Python 3.13, a strike at the end of a loop is not one in its try.
def wait_until(until: float, event: Event) -> None:
    while time.monotonic() < until:
        event.wait(0.00001)


@pytest.mark.hazard("H28")
@nothing_collected()
def test_no_interrupt_leaves_it_locked(alarm: Callable[[Callable[[], object]], None]) -> None:
    armed = False

    def interrupt() -> None:
        if armed:  # not behind the wait, where a busy machine may run it
            raise KeyboardInterrupt

    interrupted = 0
    alarm(interrupt)
    for number in range(300):
        event = Event()
        until = time.monotonic() + 0.002
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + 3e-6 * (number % 200))
            wait_until(until, event)
            armed = False
        except KeyboardInterrupt:
            interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        setting = threading.Thread(target=event.set, daemon=True)
        setting.start()
        setting.join(SOON)
        assert not setting.is_alive()
        assert event.wait(SOON)
    assert interrupted > 100
