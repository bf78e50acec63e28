"""The threads of a pool's own: for handlers, for callbacks, and for the processes of handlers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any, Protocol, TypeAlias

from zklock._ground import threads
from zklock._ground.mutexes import Mutex
from zklock._ground.process import Process, this_process
from zklock._telemetry.subscriptions import in_child


class Calling(Protocol):
    """As much of an ``Executor`` as a pool needs of its own."""

    def submit(self, call: Callable[..., Any], /, *what: Any) -> Future[Any]:
        """Call soon, elsewhere."""

    def shutdown(self) -> None:
        """Wait for all calls."""


_Call: TypeAlias = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class OwnThreads:
    """Runs each call on a new thread, ``most`` at a time. Further calls wait for one of these.

    If no thread can be started, a call is refused, and nothing is left of it. An executor of
    ``concurrent.futures`` keeps it. On Python 3.11, such an executor also takes one more thread for
    idle from then on than there is: it starts none for a later call, which may wait for ever.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._numbers = count()
        self._guard = Mutex()
        self._running = 0
        self._waiting: deque[_Call] = deque()
        self._threads: list[threading.Thread] = []  # all that run, and some that have ended

    def submit(self, call: Callable[..., Any], /, *what: Any) -> Future[Any]:
        """Call soon → the future; ``NoThread`` if no thread can be started. Then do not."""
        future: Future[Any] = Future()
        with self._guard:
            if self._running < self._most:
                self._start((future, call, what))
            else:
                self._waiting.append((future, call, what))
        return future

    def shutdown(self) -> None:
        """Wait for all calls. There must be no further ones."""
        for thread in self._threads:
            thread.join()

    # Inside.

    def _start(self, call: _Call) -> None:
        thread = threading.Thread(
            target=self._run,
            args=(call,),
            name=f"{self._name}_{next(self._numbers)}",
            daemon=False,  # unlike the pool's thread, which starts it: Python waits at its end
        )
        threads.begin(thread)
        self._running += 1
        if len(self._threads) > 2 * self._running:
            self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)

    def _run(self, call: _Call) -> None:
        following: _Call | None = call
        del call
        process = this_process()
        while following is not None:
            _make(*following, process)
            if this_process() != process:
                return
            with self._guard:
                following = self._waiting.popleft() if self._waiting else None
                if following is None:
                    self._running -= 1


def _make(
    future: Future[Any], call: Callable[..., Any], what: tuple[Any, ...], process: Process
) -> None:
    """Make a call, unless it was cancelled. In a child that it has forked, tell nobody."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        outcome = call(*what)
    except BaseException as error:
        if in_child(process):
            raise
        future.set_exception(error)
        del future  # the error has this frame: a circle
    else:
        if not in_child(process):
            future.set_result(outcome)
