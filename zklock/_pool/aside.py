"""A call of a user's function that may never return: on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from zklock._ground.events import Event

T = TypeVar("T")


class Aside(Generic[T]):
    """A call, begun now. ``done`` is set when it has ended.

    Its thread is a daemon: Python ends without it. ``RuntimeError`` if it cannot be started.
    """

    def __init__(self, name: str, call: Callable[[], T]) -> None:
        self.done = Event()
        self.complained = False
        self._call = call
        self._results: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def result(self) -> T:
        """Return what the call returned, or raise what it raised; it must be done."""
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:
            self._error = error
        finally:
            self.done.set()
