"""Users' callbacks: checked when they are handed over, and called with care."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from zklock._ground.records import log_fields

log = logging.getLogger("zklock")


def check_callbacks(awaits: bool, takes: int = 1, /, **callbacks: object) -> None:
    """Raise ``TypeError`` for a callback that cannot be called here; ``None`` means no callback.

    ``awaits``: whether there is an event loop, on which coroutine functions can run. ``takes``: how
    many arguments they are called with.
    """
    for name, callback in callbacks.items():
        if callback is not None:
            check_callback(awaits, name, callback, takes)


def check_callback(awaits: bool, name: str, callback: object, takes: int = 1) -> None:
    """Raise ``TypeError`` for a callback that cannot be called, or whose call would run nothing."""
    if not callable(callback):
        raise TypeError(f"{name} must be callable, not {type(callback).__name__}")
    if any(map(_generates, _calls(callback))):
        raise TypeError(
            f"{name} is a generator function, and calling it runs nothing: pass a function "
            "without yield"
        )
    if not awaits and is_coroutine_function(callback):
        raise TypeError(
            f"{name} is a coroutine function, which only an event loop can run: pass a plain "
            "function here, or use the class of the same name in zklock.aio"
        )
    if _refuses(callback, takes):
        arguments = "one argument" if takes == 1 else f"{takes} arguments"
        # A lambda is no coroutine function, and other processes cannot have one.
        around = "coroutine function (async def)" if is_coroutine_function(callback) else "function"
        raise TypeError(
            f"zklock calls {name} with {arguments}, which {callback!r} does not take: wrap it in "
            f"a {around} that does"
        )


def is_coroutine_function(call: object) -> bool:
    """Whether a call of it runs nothing until an event loop runs it."""
    return any(map(inspect.iscoroutinefunction, _calls(call)))


def ran(what: str, outcome: object) -> object:
    """Return the outcome of a call; ``TypeError`` for a coroutine: nothing would run it here."""
    if inspect.iscoroutine(outcome):
        outcome.close()
        raise TypeError(
            f"{what} returned a coroutine, but no event loop runs it: use a plain function, or a "
            "coroutine function with zklock.aio"
        )
    return outcome


def _calls(call: object) -> tuple[object, ...]:
    return call, getattr(call, "__call__", None)  # noqa: B004 - an object may have a method for it


def _refuses(call: Callable[..., object], takes: int) -> bool:
    """Whether a call with so many arguments is known to fail."""
    try:
        signature = inspect.signature(call, follow_wrapped=False)
    except Exception:  # of a built-in, or of its own: the call may still be right
        return False
    try:
        signature.bind(*[None] * takes)
    except TypeError:
        return True
    return False


def _generates(call: object) -> bool:
    function: Any = call
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def run(call: Callable[[], object]) -> None:
    """Call on a thread of ours; an exception is logged, and so is a returned coroutine."""
    try:
        outcome = call()
    except BaseException:  # SystemExit too: it would end this thread silently
        log.exception("a callback of a lock raised", extra=log_fields())
        return
    if inspect.iscoroutine(outcome):
        outcome.close()
        log.error(
            "a callback returned a coroutine, but no event loop runs it: use a plain function, "
            "or zklock.aio",
            extra=log_fields(),
        )
