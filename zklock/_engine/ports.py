"""What attempts and grants need from their session, and what a session needs to send."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from zklock._engine.future import Future
from zklock._recipes.effects import Batch, Claim, Recipe

T = TypeVar("T")

Answer: TypeAlias = Future[Any]
"""An answer of ZooKeeper's that will come."""


class Pending(Future[T]):
    """What was asked, or is about to be: an attempt, or an acquire of a kept lock."""

    # What few have takes no memory in the others.
    # For telemetry, by the host's clock: when it began, when it was heard that what its last
    # wait was for was gone, and whether a grant was told.
    began: float | None = None
    heard: float | None = None
    told = False
    made: tuple[Any, ...] = ()  # grants that the host has made for it
    # Made once, by setdefault(): it is one step, and no thread or handler can come in between.
    _decided: Any = None

    @property
    def asks(self) -> bool:
        """Whether it sends requests as it begins."""
        return True

    def start(self, *, awaited: bool = False) -> Self:
        """Begin; return without waiting. ``awaited``: this thread is about to wait."""
        raise NotImplementedError

    def cancel(self, error: BaseException | None = None) -> bool:
        """Withdraw, unless it is too late; return whether this call did it."""
        raise NotImplementedError


class Transport(Protocol):
    """Sends batches. There are two: on zklock's connection, and through kazoo's public calls."""

    def send_batch(
        self, batch: Batch, done: Callable[[tuple[Any, ...]], None], awaited: bool = False
    ) -> None:
        """Send the requests; call ``done(results)`` when all are answered.

        ``awaited``: for a thread that waits, and may ``hear`` the answers itself. If it is
        interrupted meanwhile, ``done`` may be called twice, with the same results.
        """

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        """Wait for answers to a batch, at most so long; ``False`` at once if others hear them.

        With ``None``, do not sleep: ask again for less than a millisecond. With an empty batch,
        wait for events, for a moment.
        """


class SessionPort(Transport, Protocol):
    """A session, as its attempts, its grants and those who ask see it."""

    @property
    def post(self) -> Callable[[Callable[[], object]], object]:
        """What has a job run soon, on the session's own thread, if that runs.

        It is a function in C: no interrupt can strike before the job is handed over.
        """

    def later(self, job: Callable[[], object]) -> None:
        """Run the job soon, on the session's own thread."""

    def now(self) -> float:
        """Return the time, in seconds of the clock that the lease runs on."""

    @property
    def timeout(self) -> float:
        """The session timeout in seconds."""

    @property
    def moment(self) -> float:
        """How long a call that should be short may wait for an answer, in seconds."""

    @property
    def connected(self) -> bool:
        """Whether requests go out at once."""

    @property
    def interrupted(self) -> bool:
        """Whether this is a signal handler that has interrupted a change on its own thread."""

    def check_usable(self) -> None:
        """Raise if ZooKeeper cannot be asked."""

    def attempt(self, what: Recipe[Any]) -> Pending[Any]:
        """Return an attempt at a recipe; it is not started yet."""

    # For attempts.

    def enter(self, attempt: Any) -> None:
        """Report lost sessions and connections to the attempt, until it leaves."""

    def leave(self, attempt: Any) -> None:
        """Forget the attempt. Repeatable."""

    def park(self, attempt: Any) -> None:
        """Call ``attempt.resume()`` when the client is connected."""

    def pause(self, seconds: float, done: Callable[[], object]) -> Callable[[], object]:
        """Call ``done()`` after ``seconds``; return a function that cancels the call."""

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Return how long to wait natively; see ``runtime.Limit``."""

    def watch(self, attempt: Any, paths: Iterable[str]) -> None:
        """Report watch events on these paths to the attempt from now on, and on no others."""

    def claim(self, attempt: Any, claim: Claim) -> Any:
        """Return a grant if the lease is live; else ``None``, and later ``attempt.lease_live()``.

        A grant may be made only after ``attempt.accept()`` returned true.
        """

    def delete_orphan(self, node: str) -> None:
        """Delete a node that nobody uses."""

    def abandon_create(self, path: str, uuid: str) -> None:
        """Delete the contender with this name, should it be made later; see ``AbandonCreate``."""

    # For grants.

    @property
    def lease_end(self) -> float:
        """When the lease ends, or has ended."""

    def remaining(self) -> float:
        """Return the seconds of lease left; grants that are over by now are declared lost."""

    def notify(self, calls: list[Callable[[], object]]) -> None:
        """Run users' callbacks on threads of the library."""

    def release_grant(self, grant: Any, *, awaited: bool = False) -> Answer:
        """Give a grant back to ZooKeeper, with as many tries as it takes.

        ``awaited``: this thread is about to wait for the answer.
        """

    def finish(self, grant: Any, end: Any) -> None:
        """Give back a grant whose release was interrupted: it has ended, and in this way."""

    def confirmed(self, grant: Any, sent: float, there: bool) -> None:
        """Take a quorum's answer about the grant's nodes; the request was sent at ``sent``."""
