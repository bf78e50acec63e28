"""Scripts: methods that ask and wait, written once for both fronts.

A script is a coroutine that waits only through its front. asyncio awaits it. A thread calls
``blocking.run``: there, what the script awaits blocks the thread, and never suspends. So an
exception out of nowhere strikes a script as it strikes plain calls: where it stands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from zklock._recipes import queries
from zklock._recipes.effects import Recipe
from zklock.errors import NoAnswer

if TYPE_CHECKING:
    from zklock._core.attempt import Pending
    from zklock._core.session import Session

R = TypeVar("R")


A = TypeVar("A", bound="Pending[Any]")


class Front(ABC):
    @abstractmethod
    def hears(self, session: Session) -> bool:
        """Whether this thread reads the answer to what it sends next; then ``finished()``."""

    @abstractmethod
    def begin(self, attempt: Pending[Any], *, awaited: bool = False) -> None:
        """Start an attempt, now or soon. ``awaited``: what follows is ``finished(attempt)``."""

    @abstractmethod
    def finished(
        self, answer: A, timeout: float | None, unheard: Callable[[A], object] | None = None
    ) -> Awaitable[bool]:
        """Wait for the answer, at most ``timeout`` seconds. Return whether it has come.

        ``unheard(answer)`` is called if nobody can hear the answer any more when it comes.
        """

    async def ask(
        self, session: Session, make: Callable[[], Recipe[R]], path: str, timeout: float | None
    ) -> R:
        """Run a query and return its result; ``NoAnswer`` after ``timeout`` seconds.

        ``None`` stands for the session timeout.
        """
        session.check_usable()
        limit = session.timeout if timeout is None else timeout
        attempt = session.attempt(partial(queries.retry_on_new_session, make))
        try:
            if not await self.finished(attempt.start(), limit) and attempt.cancel():
                raise NoAnswer(f"{path}: ZooKeeper did not answer within {limit:g} s", path=path)
            result: R = attempt.result()
            return result
        except BaseException:
            session.post(attempt.cancel)  # a second interrupt may strike in what follows
            attempt.cancel()
            raise
