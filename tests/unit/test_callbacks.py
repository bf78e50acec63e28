"""What is handed over to be called: refused where it would never run."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from zklock._core import callbacks


async def awaited(*_: Any) -> None: ...


def generated(*_: Any) -> Iterator[int]:
    yield 1


async def generated_awaited(*_: Any) -> AsyncIterator[int]:
    yield 1


class Awaited:
    async def __call__(self, *_: Any) -> None: ...

    async def method(self, *_: Any) -> None: ...


class Generated:
    def __call__(self, *_: Any) -> Iterator[int]:
        yield 1


COROUTINE_FUNCTIONS = {
    "function": awaited,
    "partial": functools.partial(awaited, 1),
    "object": Awaited(),
    "method": Awaited().method,
}


@pytest.mark.hazard("H33")
@pytest.mark.parametrize("call", COROUTINE_FUNCTIONS.values(), ids=COROUTINE_FUNCTIONS)
def test_a_coroutine_function_needs_an_event_loop(call: Any) -> None:
    with pytest.raises(TypeError, match=r"on_lost is a coroutine function.*zklock\.aio"):
        callbacks.check_callbacks(False, on_lost=call)
    callbacks.check_callbacks(True, on_lost=call)


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize(
    "call", [generated, generated_awaited, Generated()], ids=["function", "asynchronous", "object"]
)
def test_a_generator_function_runs_nowhere(call: Any, awaits: bool) -> None:
    with pytest.raises(TypeError, match="generator function"):
        callbacks.check_callbacks(awaits, on_lost=call)


@pytest.mark.parametrize("awaits", [False, True])
def test_what_can_be_called_is_accepted(awaits: bool) -> None:
    callbacks.check_callbacks(awaits, on_lost=print, on_suspended=None, observe=[].append)
    with pytest.raises(TypeError, match="on_lost must be callable, not int"):
        callbacks.check_callbacks(awaits, on_lost=1)


class Unsigned:
    """An object whose signature cannot be known."""

    @property
    def __signature__(self) -> object:
        raise NameError("an annotation")

    def __call__(self) -> None: ...


def for_any_event(call: Callable[[], None]) -> Callable[..., None]:
    @functools.wraps(call)
    def wrapped(*_: object) -> None:
        call()

    return wrapped


@pytest.mark.parametrize("awaits", [False, True])
def test_the_arguments_have_to_fit(awaits: bool) -> None:
    stop = threading.Event()
    with pytest.raises(TypeError, match=r"calls on_lost with one argument, which .*Event\.set"):
        callbacks.check_callbacks(awaits, on_lost=stop.set)
    with pytest.raises(TypeError, match="calls on_assigned with 2 arguments"):
        callbacks.check_callbacks(awaits, 2, on_assigned=[].append)
    with pytest.raises(TypeError, match="wrap it in a function that does"):
        callbacks.check_callbacks(awaits, on_lost=stop.set)
    callbacks.check_callbacks(awaits, on_lost=lambda loss, more=1: more)
    callbacks.check_callbacks(awaits, on_lost=for_any_event(stop.set))
    callbacks.check_callbacks(awaits, on_lost=Unsigned())
    callbacks.check_callbacks(awaits, on_lost=Mock(), on_suspended=int)
    callbacks.check_callbacks(awaits, 2, on_assigned=lambda *_: None, on_revoked=max)


def test_a_lambda_is_not_what_goes_around_a_coroutine_function() -> None:
    async def work() -> None: ...

    with pytest.raises(TypeError, match=r"wrap it in a coroutine function \(async def\) that"):
        callbacks.check_callbacks(True, lead=work)


def test_a_coroutine_that_comes_of_a_call_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "zklock"):
        callbacks.run(awaited)
    assert "zklock.aio" in caplog.text


def test_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def exits() -> None:
        raise SystemExit(3)

    with caplog.at_level(logging.ERROR, "zklock"):
        callbacks.run(exits)
    assert "SystemExit: 3" in caplog.text
