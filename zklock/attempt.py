"""Drives a recipe: carries out what it yields, sends back what comes of it, and its outcome.

Nobody waits here. A step runs on whichever thread brings the news (an answer, a watch, a lost
session, the caller), one at a time: news that arrives meanwhile is queued for the thread that is
stepping. The steps are short and do not block.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from zklock.effects import (
    Claim,
    Create,
    Event,
    Flight,
    GiveUp,
    Node,
    Pause,
    Recipe,
    SessionReplaced,
    Wait,
    Watch,
    WatchExists,
    WatchList,
)
from zklock.grant import Terms

log = logging.getLogger("zklock")
T = TypeVar("T")

_TURN = 1.0


class Host(Protocol):
    """What an attempt needs of its session."""

    guard: AbstractContextManager[object]

    @property
    def connected(self) -> bool:
        """Whether requests go out at once."""

    def enter(self, attempt: Attempt[Any]) -> None:
        """Tell the attempt of lost sessions and connections, until it leaves."""

    def leave(self, attempt: Attempt[Any]) -> None:
        """Forget the attempt."""

    def park(self, attempt: Attempt[Any]) -> None:
        """Call ``attempt.resume()`` once the client is connected."""

    def fly(self, flight: Flight, done: Callable[[tuple[Any, ...]], None]) -> None:
        """Send the flight; ``done(results)`` is called once."""

    def pause(self, seconds: float, done: Callable[[], object]) -> Callable[[], object]:
        """Call ``done()`` once so many seconds have passed; return what calls that off."""

    def watch(self, attempt: Attempt[Any], paths: Iterable[str]) -> None:
        """Tell the attempt of watch events on these paths from now on, and on no other."""

    def claim(self, attempt: Attempt[Any], claim: Claim) -> Any:
        """Return a grant if the lease is live, else ``None``; then ``attempt.lease_live()``."""

    def sweep(self, node: str) -> None:
        """Delete a node that nobody stands on."""

    def later(self, job: Callable[[], object]) -> None:
        """Run the job soon, on the session's own thread."""


class Attempt(Generic[T]):
    """One run of a recipe; its outcome is what that returns, or its error.

    Threads ``wait()`` for the outcome and take the ``result()``. It is no ``Future``: a
    KeyboardInterrupt that strikes while the condition of one is being entered leaves it locked,
    and would block the thread that resolves it, which is the client's.

    ``recover`` makes the recipe that cleans up should this one be torn apart by an exception
    out of nowhere, such as ``KeyboardInterrupt`` in the caller's thread. ``terms`` are for the
    host, when it grants a claim.
    """

    def __init__(
        self,
        host: Host,
        recipe: Recipe[T],
        *,
        recover: Callable[[], Recipe[None]] | None = None,
        terms: Terms | None = None,
    ) -> None:
        self.terms = terms
        self._host = host
        self._recipe = recipe
        self._recover = recover
        self._lock = threading.Lock()
        self._news: deque[Callable[[], None]] = deque()
        self._stepping = False
        self._outcome: tuple[Any, BaseException | None] | None = None
        self._when_done: list[Callable[[], object]] = []
        self._gave_up = False  # asked to
        self._told = False  # the recipe was told so
        self._granted = False
        self._final: Exception | None = None
        # What the recipe is suspended at, None once it is over. The number tells the answers
        # to its flight from late ones to an earlier flight.
        self._at: Flight | Claim | Wait | Pause | None = None
        self._number = 0
        self._parked = False
        self._wake_up: Callable[[], object] | None = None  # calls a pause off
        self._events: list[tuple[str | None, bool, bool]] = []

    def start(self) -> Attempt[T]:
        """Begin; returns without waiting."""
        self._host.enter(self)
        self._tell(partial(self._step, partial(next, self._recipe)))
        return self

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return self._outcome is not None

    def when_done(self, call: Callable[[], object]) -> None:
        """Call once there is an outcome, on whichever thread brings it; at once if there is."""
        with self._lock:
            if self._outcome is None:
                self._when_done.append(call)
                return
        call()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the outcome for so many seconds; whether there is one."""
        if self._outcome is None:
            done = threading.Lock()
            done.acquire()
            self.when_done(done.release)
            end = math.inf if timeout is None else time.monotonic() + timeout
            left = end - time.monotonic()
            # In turns, as Python misses a signal that arrives just before it begins to wait.
            while not done.acquire(timeout=max(0.0, min(left, _TURN))) and left > 0:
                left = end - time.monotonic()
        return self._outcome is not None

    def result(self) -> T:
        """Return what the recipe returned, or raise its error; there must be an outcome."""
        assert self._outcome is not None
        value, error = self._outcome
        if error is not None:
            raise error
        result: T = value
        return result

    def give_up(self, error: BaseException | None = None) -> bool:
        """Withdraw, unless it is too late; whether it was not.

        The outcome is there at once, ``error`` or ``None``; the withdrawal goes on.
        """
        with self._lock:
            if self._gave_up or self._granted or self._outcome is not None:
                return False
            self._gave_up = True
        self._resolve(None, error)
        self._tell(self._withdraw)
        return True

    def resume(self) -> None:
        """Send the parked flight: the client is connected."""
        self._tell(self._unpark)

    def lease_live(self) -> None:
        """Go on with the claim: the lease is live."""
        self._tell(self._look_again)

    def refused(self, error: Exception) -> None:
        """Fail, if at a claim: there can be no lease."""
        self._tell(partial(self._refuse, error))

    def session_replaced(self, final: Exception | None = None) -> None:
        """Hear that the session is gone, and no other will come if ``final`` says why."""
        self._tell(partial(self._replaced, final))

    def watched(self, path: str | None, deleted: bool, held: bool = False) -> None:
        """Hear of a watch that fired on ``path``; of all watches at once if it is ``None``.

        ``held``: whether the node had been granted, on this session.
        """
        self._tell(partial(self._happened, path, deleted, held))

    # From here on one thread at a time.

    def _tell(self, news: Callable[[], None]) -> None:
        try:
            with self._lock:
                self._news.append(news)
                if self._stepping:
                    return
                self._stepping = True
            while True:
                with self._lock:
                    if not self._news:
                        self._stepping = False
                        return
                    news = self._news.popleft()
                news()
        except BaseException as error:
            self._wreck(error)
            if not isinstance(error, Exception):
                raise
            log.exception("an attempt was torn apart, and is cleaned up after")

    def _step(self, advance: Callable[[], Flight | Claim | Wait | Pause]) -> None:
        try:
            if self._wake_up is not None:
                self._wake_up()
                self._wake_up = None
            while True:
                self._at = None
                at = advance()
                if self._gave_up and not self._told:
                    self._told = True
                    advance = partial(self._recipe.throw, GiveUp())
                elif self._final is not None:
                    advance = partial(self._recipe.throw, SessionReplaced(self._final))
                else:
                    self._at = at
                    answer = self._begin(at)
                    if answer is None:
                        return
                    advance = partial(self._recipe.send, answer)
        except StopIteration as stop:
            self._end(stop.value, None)
        except Exception as error:
            self._end(None, error)

    def _begin(self, at: Flight | Claim | Wait | Pause) -> Any:
        """Begin what the recipe asks for; the answer, if there is one already."""
        match at:
            case Wait():
                events = (_event(at, *happened) for happened in self._events)
                return next((event for event in events if event), None)
            case Claim():
                with self._host.guard, self._lock:
                    # Giving up and being granted exclude each other.
                    grant = None if self._gave_up else self._host.claim(self, at)
                    self._granted = grant is not None
                return grant
            case Pause():
                self._wake_up = self._host.pause(
                    at.seconds, lambda: self._tell(partial(self._go_on, at))
                )
                return None
            case _:
                self._send(at)
                return None

    def _send(self, flight: Flight) -> None:
        self._parked = not self._host.connected
        if self._parked:
            self._host.park(self)
            return
        self._number += 1
        watched = [it.path for it in flight if isinstance(it, Watch | WatchList | WatchExists)]
        if watched:
            self._events.clear()
            self._host.watch(self, watched)
        number = self._number
        self._host.fly(
            flight, lambda results: self._tell(partial(self._landed, number, flight, results))
        )

    def _landed(self, number: int, flight: Flight, results: tuple[Any, ...]) -> None:
        if number == self._number and isinstance(self._at, tuple):
            self._step(partial(self._recipe.send, results))
            return
        # Nobody stands on a node that was created for a flight which has been given up.
        for request, result in zip(flight, results, strict=True):
            if isinstance(request, Create) and isinstance(result, Node):
                self._host.sweep(result.path)

    def _throw(self, error: Exception) -> None:
        self._number += 1
        self._parked = False
        self._step(partial(self._recipe.throw, error))

    def _withdraw(self) -> None:
        # At a flight that is under way its answer comes first: it may have created a node.
        if isinstance(self._at, Wait | Claim | Pause) or self._parked:
            self._told = True
            self._throw(GiveUp())

    def _unpark(self) -> None:
        if self._parked and isinstance(self._at, tuple):
            self._send(self._at)

    def _look_again(self) -> None:
        if isinstance(self._at, Claim):
            self._step(partial(self._recipe.send, None))

    def _go_on(self, pause: Pause) -> None:
        if self._at is pause:
            self._step(partial(self._recipe.send, None))

    def _refuse(self, error: Exception) -> None:
        if isinstance(self._at, Claim):
            self._throw(error)

    def _replaced(self, final: Exception | None) -> None:
        self._final = final
        if self._at is not None:
            self._throw(SessionReplaced(final))

    def _happened(self, path: str | None, deleted: bool, held: bool) -> None:
        if not isinstance(self._at, Wait):
            self._events.append((path, deleted, held))
        elif event := _event(self._at, path, deleted, held):
            self._step(partial(self._recipe.send, event))

    def _end(self, value: Any, error: Exception | None) -> None:
        self._host.leave(self)
        self._resolve(value, error)

    def _wreck(self, error: BaseException) -> None:
        self._at = None
        self._number += 1
        self._host.leave(self)
        self._resolve(None, error)
        if self._recover is not None:
            recover = self._recover
            self._host.later(lambda: Attempt(self._host, recover()).start())

    def _resolve(self, value: Any, error: BaseException | None) -> None:
        with self._lock:
            if self._outcome is not None:
                return
            self._outcome = value, error
            calls, self._when_done = self._when_done, []
        for call in calls:
            call()


def _event(wait: Wait, path: str | None, deleted: bool, held: bool) -> Event | None:
    """Return what a fired watch means to this wait; ``None`` if nothing."""
    if path is None:
        return Event.UNWATCHED
    if path not in {wait.blocker, wait.own, wait.beside}:
        return None
    if not deleted:
        return Event.UNWATCHED
    if path == wait.own:
        return Event.OWN_GONE
    return Event.HOLDER_GONE if held else Event.BLOCKER_GONE
