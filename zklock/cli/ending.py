"""Ends a command in order when it is interrupted, terminated or hung up on."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal asked for the end; no error, so that nothing but the command itself handles it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Ending:
    """What such a signal does: raise ``Ended`` in the main thread, unless it is diverted."""

    def __init__(self) -> None:
        self._taker: Callable[[int], object] | None = None

    def divert(self, taker: Callable[[int], object]) -> None:
        """Have ``taker(number)`` called from now on, instead of raising."""
        self._taker = taker

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._taker is not None:
            self._taker(number)
        else:
            ignore_signals()
            raise Ended(number)


@contextlib.contextmanager
def ends_on_signals() -> Iterator[Ending]:
    """Raise ``Ended`` in the body on the first such signal, and ignore those that follow.

    A signal that was ignored before stays ignored. Does nothing outside the main thread.
    """
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, ending)
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Let nothing cut short what clears away; ``ends_on_signals`` undoes it."""
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
