"""How tasks enter and leave an ``async with`` body; see ``zklock._ground.context_exit``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from zklock._ground.context_exit import Body, ContextExit, Exiting, look_up
from zklock._ground.interrupts import raised_by_zklock
from zklock.errors import ZkLockError

T = TypeVar("T")


class TaskBody(Body):
    """One ``async with`` statement. Its exit returns a coroutine, which is watched in its place.

    The first step of a coroutine may be struck, too.
    """

    __slots__ = ()

    it: TaskEntersContext

    def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        """Return what releases, or ends; see ``Body.leave``."""
        self.held = True  # maybe it was called by hand
        steps = self._steps(error)
        self.watch(steps)
        return steps

    async def _steps(self, error: BaseException | None) -> None:
        try:
            await self.it._end_body(error)
        except raised_by_zklock(*self.it._OUTCOMES):
            self.watches = ()
            raise
        self.watches = ()


class TaskEntersContext(ContextExit):
    """What is held from its ``__aenter__`` on, and given back at the end of ``async with``."""

    _BODY = TaskBody
    _OUTCOMES = (ZkLockError, asyncio.CancelledError, GeneratorExit)

    async def _end_body(self, error: BaseException | None) -> None:
        """Give back what was held, or end it. ``error`` is that of the body."""
        raise NotImplementedError

    if TYPE_CHECKING:

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None: ...

    else:
        __aexit__ = Exiting(look_up)


async def held_from(body: Body, enter: Callable[[], Awaitable[T]]) -> T:
    """Enter a body that holds something from then on."""
    try:
        it = await enter()
    except BaseException:
        body.watches = ()
        raise
    body.held = True
    return it
