"""An outcome's calls: each is made, even if an interrupt strikes whoever makes them."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from tests.contract.support import SOON
from zklock._engine.future import Future, Once

pytestmark = pytest.mark.hazard("H9", "H55")


def test_a_call_that_an_interrupt_strikes_is_made_again_when_that_is_asked_for() -> None:
    outcome: Future[int] = Future()
    made: list[str] = []

    def struck() -> None:
        made.append("struck")
        if len(made) == 1:
            raise KeyboardInterrupt

    outcome.when_done(struck)
    outcome.when_done(partial(made.append, "next"))
    with pytest.raises(KeyboardInterrupt):
        outcome._resolve(1, None)
    outcome._make_again()
    outcome._resolve(2, None)
    assert made == ["struck", "struck", "next"]
    assert outcome.result() == 1


def test_a_call_that_lasts_keeps_no_other_from_being_made() -> None:
    outcome: Future[int] = Future()
    made: list[str] = []
    begun, over = threading.Event(), threading.Event()

    def lasts() -> None:
        begun.set()
        assert over.wait(SOON)
        made.append("lasting")

    outcome.when_done(lasts)
    thread = threading.Thread(target=outcome._resolve, args=(1, None))
    thread.start()
    assert begun.wait(SOON)
    outcome.when_done(partial(made.append, "other"))
    assert made == ["other"]
    over.set()
    thread.join(SOON)
    assert made == ["other", "lasting"]


def test_a_call_that_asks_for_another_is_made_once() -> None:
    outcome: Future[int] = Future()
    made: list[str] = []

    def asks() -> None:
        made.append("asks")
        outcome.when_done(partial(made.append, "asked for"))

    outcome.when_done(asks)
    outcome._resolve(1, None)
    assert made == ["asks", "asked for"]


def test_what_was_handed_over_twice_is_called_once() -> None:
    made: list[Any] = []
    once = Once(made.append)
    once(1)
    once(2)
    assert made == [1]
