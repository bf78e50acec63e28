"""Ends a command in order after any signal that would end it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

_NAMES = "HUP INT QUIT USR1 USR2 TERM ALRM VTALRM PROF POLL PWR STKFLT XCPU"
_SIGNALS = (
    *{getattr(signal, f"SIG{it}") for it in _NAMES.split() if hasattr(signal, f"SIG{it}")},
    *range(getattr(signal, "SIGRTMIN", 0), getattr(signal, "SIGRTMAX", -1) + 1),
)
"""Those that end a process by default, but for those that tell of a fault of its own."""
_AGAIN_SECONDS = 0.05


class Ended(BaseException):
    """A signal asked for the end; not an error, so that only the command itself handles it."""

    def __init__(self, number: int) -> None:
        named = number in set(signal.Signals)
        super().__init__(signal.Signals(number).name if named else f"signal {number}")
        self.number = number
        self.status = 128 + number


class Ending:
    """Handles a signal: raises ``Ended`` in the main thread, unless it is diverted."""

    def __init__(self) -> None:
        self._taker: Callable[[int], object] | None = None

    def divert(self, taker: Callable[[int], object]) -> None:
        """From now on call ``taker(number)`` instead of raising."""
        self._taker = taker

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._taker is not None:
            self._taker(number)
        elif number in _SIGNALS:
            ignore_signals()
            raise Ended(number)


@contextlib.contextmanager
def ends_on_signals(also: Iterable[int] = ()) -> Iterator[Ending]:
    """Raise ``Ended`` in the body on the first signal that would end it, and ignore later ones.

    A signal that was ignored before stays ignored. Does nothing outside the main thread. ``also``:
    signals that end nothing, and go to the taker if there is one.

    A signal may come while Python runs a ``__del__`` or a callback of a weak reference. Python only
    prints what is raised there, by ``sys.unraisablehook``. Then it is raised again.
    """
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    before = {number: signal.getsignal(number) for number in (*_SIGNALS, *also)}
    hook = sys.unraisablehook

    def unraisable(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, Ended):
            _raise_again(lost.exc_value.number)
        else:
            hook(lost)

    try:
        sys.unraisablehook = unraisable
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, ending)
        yield ending
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook


@contextlib.contextmanager
def interrupts_kill() -> Iterator[None]:
    """Have Ctrl-C kill this process in the body, which has nothing to clean up.

    ``KeyboardInterrupt`` would be a traceback out of some import, or be lost in a callback there.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise_again(number: int) -> None:
    """Raise soon what was raised where it could not arrive."""

    def handle(_: int, __: FrameType | None) -> None:
        raise Ended(number)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)


def ignore_signals() -> None:
    """Ignore the signals, so that none interrupts the clean-up; ``ends_on_signals`` undoes it."""
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
