"""A child process in a process group of its own, which can be ended with all that it started.

A group of its own needs the job control of a shell: the terminal is lent to the group, and when
the group is stopped from there (Ctrl-Z), this process stops too (POSIX, general terminal
interface; the GNU C library's manual, "Implementing a Job Control Shell").
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from zklock.clock import clock
from zklock.grant import Grant, Loss

_TURN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Exited:
    """The child has ended; it is to be reaped."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The child was stopped by this signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Asked:
    """This process was asked to end by this signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The lock has answered: with its grant, with ``None``, or with an error."""

    grant: Grant | None = None
    error: Exception | None = None


Happening: TypeAlias = Exited | Stopped | Asked | Answered | Loss


class Happenings:
    """What is to be attended to, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self.put = self._queue.put

    def next(self, until: float = math.inf) -> Happening | None:
        """Wait for the next one; ``None`` if there is none by then (of ``clock``)."""
        while True:
            # In short turns: a signal that arrives just before a wait begins does not end it.
            turn = max(0.0, min(_TURN_SECONDS, until - clock()))
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=turn)
            if clock() >= until:
                return None


class Child:
    """Runs a command; what happens to it is put into ``happened``. ``OSError`` if it cannot."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], happened: Happenings
    ) -> None:
        self._process = subprocess.Popen(command, env=environ, process_group=0)
        self._happened = happened
        self._lend_terminal()
        threading.Thread(target=self._watch, name="zklock-run-child", daemon=True).start()

    @property
    def pid(self) -> int:
        """The id of the process, and of its group until it is reaped."""
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal to the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def reap(self) -> int:
        """Take leave of a child that has ended; its status as shells have it."""
        code = self._process.wait()
        self._take_terminal()
        return code if code >= 0 else 128 - code

    def stop_with_it(self, number: int, *, go_on: Callable[[], bool]) -> None:
        """Stop as the child did, and let it go on afterwards if ``go_on()``."""
        if number in {signal.SIGTTIN, signal.SIGTTOU} and self._lend_terminal():
            return  # it was faster to use the terminal than this process to lend it
        self._take_terminal()
        os.kill(os.getpid(), signal.SIGSTOP)
        if go_on():
            self._lend_terminal()
            self.signal(signal.SIGCONT)

    def _watch(self) -> None:
        while True:
            # Left to be reaped, so that its id stays that of its group.
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            if found is None or found.si_code != os.CLD_STOPPED:
                self._happened.put(Exited())
                return
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
            self._happened.put(Stopped(found.si_status))

    def _lend_terminal(self) -> bool:
        """Put the group into the foreground if this process is; whether it was."""
        with _terminal() as terminal:
            if terminal is None or os.tcgetpgrp(terminal) not in {os.getpgrp(), self.pid}:
                return False
            os.tcsetpgrp(terminal, self.pid)
            self.signal(signal.SIGCONT)
            return True

    def _take_terminal(self) -> None:
        with _terminal() as terminal:
            if terminal is not None and os.tcgetpgrp(terminal) == self.pid:
                os.tcsetpgrp(terminal, os.getpgrp())


@contextlib.contextmanager
def _terminal() -> Iterator[int | None]:
    """Open the controlling terminal, if there is one, for a process in the background too."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    # Blocked, not ignored, which the child would inherit.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield terminal
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(terminal)
