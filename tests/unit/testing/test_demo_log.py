from __future__ import annotations

import threading

import pytest

from zklock._ground.clock import clock
from zklock.testing.demo.events import Event
from zklock.testing.demo.log import Interrupted, Log


def event(at: float, what: str = "look") -> Event:
    return Event(at, 1, "w1", what)


def test_events_are_told_in_order_of_time() -> None:
    told: list[float] = []
    log = Log(lambda it: told.append(it.at))
    for at in (3.0, 1.0, 2.0):
        log.add(event(at))
    log.flush()
    assert told == [1.0, 2.0, 3.0]
    assert [it.at for it in log.events()] == told
    assert log.count() == 3


def test_what_has_just_happened_is_kept_back() -> None:
    told: list[Event] = []
    log = Log(told.append)
    log.add(event(clock() + 60))
    log.rest(0.0)
    assert told == []
    log.flush()
    assert len(told) == 1


def test_a_wait_ends_with_the_event() -> None:
    log = Log(lambda _: None)
    timer = threading.Timer(0.05, log.add, [event(clock(), "granted")])
    timer.start()
    found = log.wait(
        lambda events: next((it for it in events if it.what == "granted"), None), 10.0, "a grant"
    )
    timer.join()
    assert found.what == "granted"


def test_a_wait_in_vain_says_for_what() -> None:
    with pytest.raises(Interrupted, match=r"w1: granted: not within 0\.0 s"):
        Log(lambda _: None).wait(lambda _: None, 0.0, "w1: granted")


def test_a_failure_ends_every_wait() -> None:
    log = Log(lambda _: None)
    log.fail("w3 ended")
    log.fail("and then w4")
    with pytest.raises(Interrupted, match=r"^w3 ended$"):
        log.wait(lambda _: None, 10.0, "a grant")
    with pytest.raises(Interrupted, match=r"^w3 ended$"):
        log.rest(10.0)
