"""A command in its own process group, and the supervisor that ends it where this process cannot.

A process group of its own needs the job control of a shell. The terminal is lent to the group.
When the terminal stops the group (Ctrl-Z), this process stops too. (POSIX, general terminal
interface; the GNU C library's manual, "Implementing a Job Control Shell".)
"""

from __future__ import annotations

import contextlib
import fcntl
import linecache
import math
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

import zklock
from zklock._ground.clock import clock
from zklock._ground.loss import Loss
from zklock.cli import supervisor
from zklock.cli.supervisor import Message, hand_terminal

_TURN_SECONDS = 0.2
_LOOK_SECONDS = 0.05
_PARTING_SECONDS = 2.0
"""How long a supervisor has to end what is left, before this process does it."""


Happening: TypeAlias = "int | Message | Loss"
"""A signal's number, what the supervisor tells of the command, or a loss."""

_T = TypeVar("_T")


def next_of(events: SimpleQueue[_T]) -> _T | None:
    """Return the next event; ``None`` if none comes for a moment.

    A signal that arrives just before a wait begins does not end the wait: so it is short.
    """
    with contextlib.suppress(Empty):
        return events.get(timeout=_TURN_SECONDS)
    return None


@dataclass(frozen=True, slots=True)
class Limits:
    """Until when a command may run if nothing more is heard of its lease; times of ``clock``.

    It gets SIGTERM at ``term_at`` and SIGKILL at ``kill_at``, from the supervisor. If it still runs
    at ``act_at``, this process ends both. ``fresh``: for how many seconds this need not be renewed.
    """

    term_at: float
    kill_at: float
    act_at: float
    fresh: float


class Child:
    """Runs one command under a supervisor, and puts what happens to it into ``happened``.

    The constructor starts the supervisor (``OSError`` if the system cannot). If ``begin()`` raises,
    nothing runs. ``close()`` it in the end: this ends whatever still runs.
    """

    def __init__(self, happened: SimpleQueue[Happening]) -> None:
        self._happened = happened
        # These children are not the command's: a shell that became this process by exec had started
        # them, or an earlier command of an election has left them.
        self._spare = supervisor.children_of(os.getpid())
        supervisor.become_subreaper()
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                # Above the standard ones: some of these may be closed.
                fd = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", *_program(), str(fd)],
                    pass_fds=[fd],
                    process_group=0,
                )
            finally:
                os.close(fd)
        except BaseException:
            self._socket.close()
            raise
        self._wire = supervisor.Wire(self._socket.fileno())
        self._watcher: threading.Thread | None = None
        self._born: SimpleQueue[int | OSError | None] = SimpleQueue()
        self._act_at = math.inf
        self._begun = False
        self._left = False
        self.pid = 0  # of the command, and of its group
        self.status: int | None = None
        """The command's, as shells write it; ``None`` if the supervisor was killed before it."""

    def begin(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        first: Limits,
        limits: Callable[[], Limits | None],
        *,
        all_: bool,
    ) -> None:
        """Start the command. ``OSError`` if it cannot be run.

        ``first``: until when it may run. ``limits`` tells it anew; it is called again and again, on
        another thread, for as long as the command runs. ``None``: the lease is over. ``all_``: it
        runs until all that it has started has ended.
        """
        self._act_at = first.act_at
        watcher = threading.Thread(
            target=self._watch, args=(limits,), name="zklock-run-child", daemon=True
        )
        # The thread first: a command that nobody watches could not be ended when its lock is lost.
        watcher.start()
        self._watcher = watcher
        argv = [os.fsencode(argument) for argument in command]
        encoded = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
        lender = None if _in_pipeline() else os.getpgrp()  # else as soon as the command uses it
        with contextlib.suppress(ConnectionError):  # then the thread finds that it is gone
            self._wire.send(
                supervisor.RUN, argv, encoded, first.term_at, first.kill_at, lender, all_
            )
        self._socket.setblocking(False)
        self._begun = True
        born = self._born.get()
        if isinstance(born, OSError):
            raise born
        if born is None:
            raise zklock.ZkLockError("the command's supervisor was killed: run it again")

    def signal(self, number: int) -> None:
        """Send a signal to the command's group."""
        self._order(supervisor.SIGNAL, int(number))

    def end(self, kill_at: float) -> None:
        """Send SIGTERM to the command, and SIGKILL at ``kill_at`` to all that is left of it."""
        self._act_at = kill_at + _LOOK_SECONDS
        self._order(supervisor.END, kill_at)

    def kill(self) -> None:
        """Kill the command and all that it started."""
        self._order(supervisor.KILL)

    def reap(self, *, leave: bool) -> None:
        """Wait until the command has ended, and all that it started too, unless ``leave``."""
        self._take_terminal()
        self._left = leave
        self._act_at = clock() + _PARTING_SECONDS
        self._order(supervisor.LEAVE if leave else supervisor.KILL)
        if self._watcher is not None:
            self._watcher.join()

    def close(self) -> None:
        """End whatever still runs, and the supervisor."""
        if self._watcher is not None and self._watcher.is_alive():
            self.reap(leave=False)
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _order(self, *message: Any) -> None:
        self._near_head()
        try:
            self._wire.send(*message)
        except BlockingIOError:
            self._process.kill()  # it has not run for long; the command ends with it
        except OSError:
            return  # the supervisor is dead: the thread finds that

    def _near_head(self) -> None:
        """Have the supervisor go on if somebody has stopped it: it alone sees the command's end."""
        self._process.send_signal(signal.SIGCONT)

    # The thread.

    def _watch(self, limits: Callable[[], Limits | None]) -> None:
        try:
            self._follow(limits)
        finally:
            self._process.kill()
            self._process.wait()
            if not self._left:
                self._end_orphans()
            self._born.put(None)
            self._happened.put((supervisor.EXITED, self.status))

    def _end_orphans(self) -> None:
        """End what the dead supervisor has left: that has become children of this process."""
        if self.pid and self.status is None:
            with contextlib.suppress(OSError):  # all that can be done where there is no subreaper
                os.killpg(self.pid, signal.SIGKILL)
        supervisor.end_all(lambda *_: None, spare=self._spare)

    def _follow(self, limits: Callable[[], Limits | None]) -> None:
        """Renew the lease, and pass on what the supervisor tells, until that is gone."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        renew_at = clock()
        while (now := clock()) < self._act_at:
            if now >= renew_at:
                renew_at = now + self._renew(limits())
            left = min(renew_at, self._act_at) - clock()
            if poll.poll(max(0.0, math.ceil(left * 1000))):
                messages = self._wire.receive()
                if messages is None:
                    return
                for message in messages:
                    self._hear(message)

    def _renew(self, limits: Limits | None) -> float:
        """Pass on how long the lease lasts now; return after how long to ask again."""
        if limits is None or not self._begun or self.status is not None:
            return _LOOK_SECONDS
        self._act_at = limits.act_at
        self._near_head()
        with contextlib.suppress(OSError):
            self._wire.send(supervisor.LEASE, limits.term_at, limits.kill_at)
        return limits.fresh

    def _hear(self, message: Message) -> None:
        match message:
            case (supervisor.BEGAN, pid):
                self.pid = pid
                self._born.put(pid)
            case (supervisor.FAILED, number):
                self._born.put(OSError(number, os.strerror(number)))
            case (supervisor.EXITED, status):
                self.status, self._act_at = status, math.inf
                self._happened.put(message)
            case _:
                self._happened.put(message)

    # The terminal.

    def stop_with_it(self, number: int, *, go_on: Callable[[], bool]) -> None:
        """Stop this process as the child did; afterwards let the child go on if ``go_on()``.

        A child that was stopped by its id, and has no terminal, stays so: whoever did it ends it.
        """
        asks = number in {signal.SIGTTIN, signal.SIGTTOU}
        if asks and self._lend_terminal():  # in a pipeline, this process has not lent it before
            self.signal(signal.SIGCONT)
            return
        if not self._take_terminal() and number == signal.SIGSTOP:
            return
        # The system drops SIGTSTP where no shell could let this process go on. To this thread, so
        # that it does not run on until another one has taken the signal.
        stop = signal.SIGSTOP if asks else signal.SIGTSTP
        signal.pthread_kill(threading.get_ident(), stop)
        if go_on():
            self._lend_terminal()
            self.signal(signal.SIGCONT)

    def _lend_terminal(self) -> bool:
        """Give the group the foreground if this process has it; return whether the group has it."""
        return any(hand_terminal(giver, self.pid) for giver in (os.getpgrp(), self.pid))

    def _take_terminal(self) -> bool:
        """Take the foreground back if the group has it; return whether it had."""
        return bool(self.pid) and hand_terminal(self.pid, os.getpgrp())


def _in_pipeline() -> bool:
    """Whether standard input or output is a pipe: its other end may need the terminal, too."""
    for standard in (0, 1):
        with contextlib.suppress(OSError):  # it is closed
            if stat.S_ISFIFO(os.fstat(standard).st_mode):
                return True
    return False


def _program() -> list[str]:
    """Return the supervisor for a Python to run: its file, or its text if an archive has it."""
    file = supervisor.__file__
    if Path(file).is_file():
        return [file]
    return ["-c", "".join(linecache.getlines(file, vars(supervisor)))]


def check_proc() -> None:
    """Raise ``ZkLockError`` if ``/proc`` lacks this PID namespace, and so descendants."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            if os.readlink("/proc/self") == str(os.getpid()):  # noqa: PTH115
                return
        raise zklock.ZkLockError(
            "/proc does not show the processes of this PID namespace, and zklock could not end "
            "child processes: mount it, as 'unshare --mount-proc' does"
        )


def expect_children() -> None:
    """Make the system keep the exit status of children. Call it in the main thread.

    The system keeps no status if SIGCHLD is ignored. A process inherits that from its parent.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
