"""What is handed over to be called: refused where it would never run."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import AsyncIterator, Iterator
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


class Unsigned:
    """An object whose signature cannot be known."""

    @property
    def __signature__(self) -> object:
        raise NameError("an annotation")

    def __call__(self) -> None: ...


@pytest.mark.hazard("H33")
@pytest.mark.parametrize(
    "call",
    [awaited, functools.partial(awaited, 1), Awaited(), Awaited().method],
    ids=["function", "partial", "object", "method"],
)
def test_a_coroutine_function_needs_an_event_loop(call: Any) -> None:
    with pytest.raises(TypeError, match=r"on_lost is a coroutine function.*zklock\.aio"):
        callbacks.check_callbacks(False, on_lost=call)
    callbacks.check_callbacks(True, on_lost=call)


SET = threading.Event().set
NOWHERE: list[tuple[Any, int, str]] = [
    (1, 1, "on_lost must be callable, not int"),
    (generated, 1, "generator function"),
    (generated_awaited, 1, "generator function"),
    (Generated(), 1, "generator function"),
    (SET, 1, r"calls on_lost with one argument, which .*Event\.set.* wrap it in a function that"),
    ([].append, 2, "calls on_lost with 2 arguments"),
]


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize(("call", "arguments", "said"), NOWHERE)
def test_what_would_run_nowhere_is_refused(
    call: Any, arguments: int, said: str, awaits: bool
) -> None:
    with pytest.raises(TypeError, match=said):
        callbacks.check_callbacks(awaits, arguments, on_lost=call)


@pytest.mark.parametrize("awaits", [False, True])
def test_what_can_be_called_is_accepted(awaits: bool) -> None:
    @functools.wraps(SET)
    def wrapped(*_: object) -> None: ...

    calls: list[Any] = [print, None, [].append, lambda loss, more=1: more, wrapped, Mock(), int]
    for call in (*calls, Unsigned()):
        callbacks.check_callbacks(awaits, on_lost=call)
    callbacks.check_callbacks(awaits, 2, on_assigned=lambda *_: None, on_revoked=max)


def test_a_lambda_is_not_what_goes_around_a_coroutine_function() -> None:
    async def work() -> None: ...

    with pytest.raises(TypeError, match=r"wrap it in a coroutine function \(async def\) that"):
        callbacks.check_callbacks(True, lead=work)


def exits() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(("call", "said"), [(awaited, "zklock.aio"), (exits, "SystemExit: 3")])
def test_what_comes_of_a_call_is_logged(
    call: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "zklock"):
        callbacks.run(call)
    assert said in caplog.text
