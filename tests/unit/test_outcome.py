"""An outcome's calls: each is made, even if an interrupt strikes whoever makes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.contract.support import SOON
from tests.unit.bytecodes import Bytecodes, Struck
from zklock._engine.outcome import Once, Outcome

pytestmark = pytest.mark.hazard("H9", "H55")

HERE = "_engine/outcome.py"
NAMES = ("first", "second", "third")


def resolved(outcome: Outcome[int], made: list[str]) -> Callable[[], None]:
    """Return what resolves an outcome that others wait for."""
    for name in NAMES:
        outcome.when_done(partial(made.append, name))
    return lambda: outcome._resolve(1, None)


def asked(outcome: Outcome[int], made: list[str]) -> Callable[[], None]:
    """Return what asks for calls when there is an outcome already."""
    outcome._resolve(1, None)

    def ask() -> None:
        for name in NAMES:
            outcome.when_done(partial(made.append, name))

    return ask


def test_struck_while_it_is_told_it_makes_every_call() -> None:
    bytecodes = Bytecodes(HERE)
    bytecodes.run(resolved(Outcome(), []))
    assert bytecodes.count > 30
    for at in range(1, bytecodes.count + 1):
        outcome: Outcome[int] = Outcome()
        made: list[str] = []
        bytecodes.run(resolved(outcome, made), at)
        assert not outcome.done or tuple(dict.fromkeys(made)) == NAMES, at


def test_struck_while_it_is_asked_it_makes_what_it_has_taken() -> None:
    bytecodes = Bytecodes(HERE)
    bytecodes.run(asked(Outcome(), []))
    for at in range(1, bytecodes.count + 1):
        outcome: Outcome[int] = Outcome()
        made: list[str] = []
        bytecodes.run(asked(outcome, made), at)
        taken = len(set(made))
        assert tuple(dict.fromkeys(made)) == NAMES[:taken], at
        assert not outcome._when_done, at


def test_a_call_that_is_struck_is_made_again() -> None:
    outcome: Outcome[int] = Outcome()
    made: list[str] = []

    def struck() -> None:
        made.append("struck")
        if len(made) == 1:
            raise Struck

    outcome.when_done(struck)
    outcome.when_done(partial(made.append, "next"))
    with pytest.raises(Struck):
        outcome._resolve(1, None)
    assert made == ["struck", "struck", "next"]


def test_an_error_of_a_call_is_raised_and_stops_no_other() -> None:
    outcome: Outcome[int] = Outcome()
    made: list[str] = []

    def fails() -> None:
        made.append("fails")
        raise ValueError

    outcome.when_done(fails)
    outcome.when_done(partial(made.append, "next"))
    with pytest.raises(ValueError):  # noqa: PT011
        outcome._resolve(1, None)
    outcome._resolve(1, None)
    assert made == ["fails", "fails", "next"]


def test_a_call_that_lasts_keeps_no_other_from_being_made() -> None:
    outcome: Outcome[int] = Outcome()
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
    outcome: Outcome[int] = Outcome()
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
