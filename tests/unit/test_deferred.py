"""What a change leaves to be done: all of it is done, whatever interrupts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from zklock._engine.deferred import Deferred


def test_duties_run_in_order_and_once() -> None:
    outbox, ran = Deferred(), list[int]()
    for number in range(5):
        outbox.add(lambda number=number: ran.append(number))  # type: ignore[misc]
    outbox.run()
    outbox.run()
    assert ran == list(range(5))


def test_an_interrupt_loses_no_duty() -> None:
    outbox, ran = Deferred(), list[str]()
    interrupts = [KeyboardInterrupt()]

    def duty() -> None:
        ran.append("begun")
        if interrupts:
            raise interrupts.pop()
        ran.append("done")

    outbox.add(duty)
    outbox.add(lambda: ran.append("next"))
    with pytest.raises(KeyboardInterrupt):
        outbox.run()
    outbox.run()
    assert ran == ["begun", "begun", "done", "next"]


def test_an_error_of_one_duty_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    outbox, ran = Deferred(), list[str]()
    outbox.add(lambda: 1 / 0)
    outbox.add(lambda: ran.append("next"))
    with ThreadPoolExecutor() as other:
        other.submit(outbox.run).result()
    outbox.run()
    assert ran == ["next"]
    assert caplog.text.count("ZeroDivisionError: division by zero") == 1


def test_an_error_on_the_main_thread_may_be_an_interrupt_so_the_duty_is_kept() -> None:
    outbox, ran = Deferred(), list[str]()

    def duty() -> None:
        ran.append("duty")
        if len(ran) == 1:
            raise TimeoutError("the handler of a time limit")

    outbox.add(duty)
    with pytest.raises(TimeoutError, match="time limit"):
        outbox.run()
    outbox.run()
    assert ran == ["duty", "duty"]


def test_a_duty_that_another_thread_does_meanwhile_is_done() -> None:
    outbox, ran = Deferred(), list[str]()

    def duty() -> None:
        ran.append("done")
        if len(ran) == 1:
            outbox._calls.popleft()  # as the other thread does

    outbox.add(duty)
    outbox.add(lambda: ran.append("next"))
    outbox.run()
    assert ran == ["done", "next"]


def test_what_comes_back_from_a_duty_is_left_to_the_sender() -> None:
    outbox, ran = Deferred(), list[str]()

    def duty() -> None:
        ran.append("begun")
        outbox.add(lambda: ran.append("next"))
        outbox.run()
        ran.append("done")

    outbox.add(duty)
    outbox.run()
    assert ran == ["begun", "done", "next"]
