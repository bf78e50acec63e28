"""How a thread runs a script."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from zklock._core.attempt import Pending
from zklock._core.script import A, Front

if TYPE_CHECKING:
    from zklock._core.session import Session

P = ParamSpec("P")
T = TypeVar("T")


def run(script: Callable[P, Coroutine[Any, Any, T]], /, *what: P.args, **options: P.kwargs) -> T:
    """Call a script with these arguments, and run it to its end on this thread.

    It is made and begun in one line: an interrupt in between would leave it never awaited.
    """
    try:
        script(*what, **options).send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a script for threads has awaited what does not block")


class Blocking(Front):
    def hears(self, session: Session) -> bool:
        """Whether this thread reads the answer: it waits for it."""
        return True

    def begin(self, attempt: Pending[Any], *, awaited: bool = False) -> None:
        attempt.start(awaited=awaited)

    async def finished(
        self, answer: A, timeout: float | None, unheard: Callable[[A], object] | None = None
    ) -> bool:
        """Wait for the answer, at most ``timeout`` seconds. Return whether it has come."""
        return answer.wait(timeout)


BLOCKING = Blocking()
