"""Tells whether an exception may have left a driver in the middle of a conversation.

A time limit or a cancellation can strike inside a driver. The reply to its last statement is then
half read, and the next statement waits for ever, or takes it for its own. Such a connection can
only be closed.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from zklock.errors import ZkLockError
from zklock.fencing._sql import codes
from zklock.fencing._sql.recognise import LIBRARIES

Result = TypeVar("Result")

# What these call is the driver; one written in C has no frames of its own.
_OURS = {"zklock.fencing._sql.session", "zklock.fencing._sql.alchemy"}


def doubtful(error: BaseException) -> bool:
    """Whether a connection must not be used after this error.

    It may be used after an answer of the database, and after an error of the user's own code.
    """
    if codes.lost_race(error):
        return False
    return any(
        not isinstance(found, ZkLockError)
        and _package(type(found).__module__) not in LIBRARIES
        and any(name in _OURS or _package(name) in LIBRARIES for name in _passed(found))
        for found in _chain(error)
    )


def clear(error: BaseException) -> None:
    """Forget the local variables of the functions that the error has left."""
    for found in _chain(error):
        traceback.clear_frames(found.__traceback__)


def of_the_user(change: Callable[[Any], Result], connection: Any) -> Result:
    """Call ``change``: what the traceback shows before this frame does not count."""
    return change(connection)


async def awaited_of_the_user(made: Awaitable[Result]) -> Result:
    """Await what ``change`` has made: see ``of_the_user``."""
    return await made


_BOUNDS = {of_the_user.__code__, awaited_of_the_user.__code__}


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += [found.__cause__, found.__context__]


def _passed(error: BaseException) -> list[str]:
    """Return the modules that the error has passed, up to the user's own function."""
    names: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in _BOUNDS:
            names.clear()
        else:
            names.append(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
    return names


def _package(module: str) -> str:
    return module.partition(".")[0]
