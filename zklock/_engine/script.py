"""Scripts: methods that ask and wait, written once for both fronts.

A script is a coroutine that waits only through its front. asyncio awaits it. A thread calls
``blocking.run``: there, what the script awaits blocks the thread, and never suspends. So an
exception out of nowhere strikes a script as it strikes plain calls: where it stands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from zklock._recipes import queries
from zklock._recipes.effects import Recipe
from zklock.errors import NoAnswer

R = TypeVar("R")


class Answer(Protocol):
    """An answer of ZooKeeper's that will come."""

    def when_done(self, call: Callable[[], object]) -> None:
        """Call when the answer comes, on the thread that brings it; at once if it is there."""

    def look(self) -> bool:
        """Return whether the answer is there, or comes at once; do not sleep."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for at most ``timeout`` seconds; return whether the answer has come."""

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Return how long to wait natively; ``wake()`` is called at the end of any other wait."""

    def result(self) -> Any:
        """Return the answer; raise it if it is an error."""


A = TypeVar("A", bound=Answer)


class Outcome(Answer, Protocol):
    """The outcome of an attempt."""

    def start(self, *, awaited: bool = False) -> Answer:
        """Begin the attempt; return without waiting.

        ``awaited``: this thread is about to wait for the outcome.
        """

    def give_up(self) -> bool:
        """Withdraw, unless it is too late; return whether this call did it."""


class Asked(Protocol):
    """What a question needs from its session."""

    @property
    def timeout(self) -> float:
        """The session timeout in seconds."""

    def check_usable(self) -> None:
        """Raise if ZooKeeper cannot be asked."""

    def attempt(self, what: Recipe[Any]) -> Outcome:
        """Return an attempt at a recipe; it is not started yet."""


class Front(ABC):
    """How a front waits."""

    def in_line(self) -> Awaitable[object] | None:
        """Return what to wait for before a start, so that others have their turn; or ``None``."""
        return None

    @abstractmethod
    def hears(self) -> bool:
        """Whether this thread may hear the answers to what it sends next; then ``finished()``."""

    @abstractmethod
    def begin(self, attempt: Outcome) -> None:
        """Start an attempt, now or soon; what follows is ``finished(attempt)``."""

    @abstractmethod
    def finished(
        self, answer: A, timeout: float | None, unheard: Callable[[A], object] | None = None
    ) -> Awaitable[bool]:
        """Wait for the answer, at most ``timeout`` seconds. Return whether it has come.

        ``unheard(answer)`` is called if nobody can hear the answer any more when it comes.
        """

    async def ask(
        self, session: Asked, make: Callable[[], Recipe[R]], path: str, timeout: float | None
    ) -> R:
        """Run a query and return its result; ``NoAnswer`` after ``timeout`` seconds.

        ``None`` stands for the session timeout.
        """
        session.check_usable()
        limit = session.timeout if timeout is None else timeout
        attempt = session.attempt(queries.retry_on_new_session(make))
        try:
            if not await self.finished(attempt.start(), limit) and attempt.give_up():
                raise NoAnswer(f"{path}: ZooKeeper did not answer within {limit:g} s", path=path)
            result: R = attempt.result()
            return result
        except BaseException:
            try:
                attempt.give_up()
            finally:  # a second interrupt may have struck in it
                attempt.give_up()
            raise
