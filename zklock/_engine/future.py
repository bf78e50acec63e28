"""An outcome that will come: it is set once, waited for, and told."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from zklock._ground.clock import clock
from zklock._ground.events import Event

T = TypeVar("T")

_TURN = 1.0


class Once:
    """A call that is made at most once, however often it is asked for.

    For a job that ``when_done()`` hands to another thread: it may be handed over twice.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = [call]

    def __call__(self, *what: object) -> None:
        """Call, unless it was called before."""
        if self._call:
            self._call.pop()(*what)


class Future(Generic[T]):
    """A value or an error that will come.

    It is not that of ``concurrent.futures``: a KeyboardInterrupt that strikes while a thread enters
    its condition leaves it locked. That would block the thread that sets it, the client's.
    """

    _outcome: tuple[Any, BaseException | None] | None = None  # set once, by setdefault()

    def __init__(self) -> None:
        # Each call, and behind it who has wanted to make it: the first one makes it. It stays here
        # until it was made.
        self._when_done: list[list[Any]] = []

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return bool(self._outcome)

    def when_done(self, call: Callable[[], object]) -> None:
        """Call when there is an outcome, on the thread that brings it; at once if there is one.

        It is called once. Only if an interrupt strikes in the call, it is called again: it must be
        harmless when it is repeated.
        """
        due: list[Any] = [call]
        self._when_done.append(due)
        if self._outcome:
            self._make(due)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the outcome, at most ``timeout`` seconds; return whether there is one."""
        if not self._outcome:
            come = Event()
            self.when_done(come.set)
            limit = self.limit(timeout, come.set)
            end = math.inf if limit is None else clock() + limit
            # In turns: an interrupt may have struck the thread that was about to set the event.
            while not (self._outcome or come.is_set()) and (left := end - clock()) > 0:
                come.wait(min(left, _TURN))
        return bool(self._outcome)

    def look(self) -> bool:
        """Return whether there is an outcome, or one comes at once."""
        return bool(self._outcome)

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Return how long to wait natively; see ``runtime.Limit``."""
        return seconds

    def result(self) -> T:
        """Return the value, or raise the error; there must be an outcome."""
        assert self._outcome is not None
        value, error = self._outcome
        if error is not None:
            raise error
        result: T = value
        return result

    def settled(self) -> tuple[Any, BaseException | None]:
        """Return the value or the error, and raise neither; there must be an outcome.

        What this raises comes from elsewhere: a signal handler.
        """
        assert self._outcome is not None
        return self._outcome

    def _resolve(self, value: Any, error: BaseException | None) -> None:
        """Set the outcome, unless there is one. Repeatable."""
        self.__dict__.setdefault("_outcome", (value, error))
        for due in self._when_done.copy():
            self._make(due)

    def _make(self, due: list[Any]) -> None:
        """Make a call, unless another thread makes it."""
        me = object()
        due.append(me)
        if due[1:2] == [me]:  # else another one makes it, or is to make it again
            due[0]()
            try:
                self._when_done.remove(due)
            except ValueError:
                return  # made again meanwhile, by another thread

    def _make_again(self) -> None:
        """Have the calls made again that a thread was making when an interrupt struck it."""
        for due in self._when_done.copy():
            del due[1:]
