"""The process between ``zklock run`` and its command: it ends the command if nobody else does.

It runs by itself (``python -I -S supervisor.py FD``), knows no ZooKeeper and takes no lock. The
*runner*, ``zklock run`` or ``zklock elect``, is at the other end of the socket ``FD``, and tells it
over and over until when the lease lasts. The command is this process's child. So the command ends
in time in each of these cases:

- the lease is not renewed (cut off, or the runner is stopped): this process acts by its own clock;
- the runner is dead: the socket is closed;
- this process is dead: the kernel kills the command (``PR_SET_PDEATHSIG``), the runner the rest.

Both are *child subreapers*, and this process is a child of the runner. A descendant that loses its
parent becomes a child of this process, or of the runner if this process is gone. So a process that
has left the group and the session of the command is found, too.

A message is a length and a marshalled tuple. Both ends run the same Python.

=====================  ===========================================================================
from the runner
``RUN``                argv, environment, as ``LEASE``, and a process group: start the command; if
                       that group has the terminal's foreground, the command takes it over; and
                       whether ``EXITED`` waits until all that it started has ended, too
``LEASE``              when to send SIGTERM, when SIGKILL, by ``clock``, if nothing more is heard
``END``                when to send SIGKILL; SIGTERM now
``SIGNAL``             send this signal to the command's process group
``KILL``               kill all and end
``LEAVE``              end, and leave alone what the command has left running
to the runner
``BEGAN``              the command runs; its process id
``FAILED``             it cannot run; the error's number
``STOPPED``            it was stopped; the signal's number
``ENDS``               it was sent SIGTERM because the lease runs out
``EXITED``             it has ended, or all of it; its status, as shells write it
=====================  ===========================================================================
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing it takes as long as all the rest
    from typing import Any, TypeAlias

RUN, LEASE, END, SIGNAL, KILL, LEAVE = "run", "lease", "end", "signal", "kill", "leave"
BEGAN, FAILED, STOPPED, ENDS, EXITED = "began", "failed", "stopped", "ends", "exited"

Message: TypeAlias = "tuple[Any, ...]"

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_TURN_SECONDS = 0.1
"""The longest wait: the system's waits stand still while the machine is suspended."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05
_LENGTH = 4


def clock() -> float:
    """Return the seconds of the clock of leases: ``zklock._ground.clock``, without its imports."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


# Messages.


class Wire:
    """Sends and receives messages on a socket."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._read = bytearray()

    def send(self, *message: Any) -> None:
        """Send a message; ``OSError`` if the other end is gone.

        On a socket that does not block a short message is sent as a whole, or ``BlockingIOError``.
        """
        body = marshal.dumps(message)
        left = memoryview(len(body).to_bytes(_LENGTH, "big") + body)
        while left:
            left = left[os.write(self._fd, left) :]

    def receive(self) -> list[Message] | None:
        """Return the messages that are complete by now; ``None`` when the other end is gone."""
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data:
            return None
        self._read += data
        return list(self._complete())

    def _complete(self) -> Iterator[Message]:
        while len(self._read) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._read[:_LENGTH], "big")
            if len(self._read) < end:
                return
            yield marshal.loads(self._read[_LENGTH:end])
            del self._read[:end]


# Processes.


def become_subreaper() -> None:
    """Become the parent of all descendants that lose theirs. Does nothing but on Linux."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def children_of(pid: int) -> set[int]:
    """Return the children of a process, also those that have ended and are not reaped yet.

    Empty where there is no ``/proc`` as on Linux.
    """
    me = os.getpid()
    if _read(f"/proc/{me}/task/{me}/children") is None:  # a kernel without CONFIG_PROC_CHILDREN
        return {one for one in _numbers("/proc") if _parent_of(one) == pid}
    found: set[int] = set()
    for task in _numbers(f"/proc/{pid}/task"):
        found.update(map(int, (_read(f"/proc/{pid}/task/{task}/children") or b"").split()))
    return found


def _parent_of(pid: int) -> int | None:
    stat = _read(f"/proc/{pid}/stat")
    return int(stat.rpartition(b")")[2].split()[1]) if stat else None


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []


def _read(file: str) -> bytes | None:
    # Not by pathlib: importing it takes longer than starting Python.
    try:
        with open(file, "rb") as opened:  # noqa: PTH123
            return opened.read()
    except OSError:
        return None


def signal_all(
    number: int, *, spare: Collection[int] = (), if_: Callable[[int], bool] | None = None
) -> None:
    """Send a signal to all descendants, except ``spare`` and what descends from these.

    With ``if_``, send it only where ``if_(pid)`` is true.
    """
    family = {os.getpid()}
    level = children_of(os.getpid()).difference(spare)
    while level:
        family |= level
        for pid in level:
            if if_ is None or if_(pid):
                _signal(pid, number, family)
        level = set().union(*map(children_of, level)) - family


def _signal(pid: int, number: int, family: Collection[int]) -> None:
    """Send a signal to a process if its parent is one of these; else its id was used again."""
    process = None
    try:
        process = os.pidfd_open(pid)
        if _parent_of(pid) in family:
            signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        return  # it has ended
    except (OSError, AttributeError):
        # A kernel before 5.3, a container, or a Python that was built for old systems lacks these
        # calls. Then its id may be used again just between the look and the signal.
        try:
            if _parent_of(pid) in family:
                os.kill(pid, number)
        except OSError:
            return  # it has ended, or runs as another user
    finally:
        if process is not None:
            os.close(process)


def end_all(reaped: Callable[[int, int], object], *, spare: Collection[int] = ()) -> None:
    """Kill all descendants, except ``spare`` and what descends from these, until none is left.

    A process that forks while it is killed leaves a child. That becomes a child of this process. So
    when this process has no child, none is left. ``reaped(pid, status)``: a child has ended.
    """
    pause = _SHORTEST_PAUSE
    while True:
        signal_all(signal.SIGKILL, spare=spare)
        if not reap(reaped, spare=spare):
            return
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def reap(reaped: Callable[[int, int], object], *, spare: Collection[int] = ()) -> bool:
    """Reap the children that have ended, except ``spare``; return whether others are left."""
    if not spare:
        return _reap(-1, reaped)
    mine = children_of(os.getpid()).difference(spare)
    return sum(_reap(pid, reaped) for pid in mine) > 0


def _reap(pid: int, reaped: Callable[[int, int], object]) -> bool:
    try:
        while True:
            found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if not found:
                return True
            reaped(found, status)
    except ChildProcessError:
        return False


# The process.


class Supervisor:
    """Starts one command; ends it, and all that it started, when it is told to, or by itself."""

    def __init__(self, fd: int) -> None:
        _fill_standard()
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)
        self._runner: int | None = fd
        self._wire = Wire(fd)
        self._command: int | None = None  # its process id; None: not begun, or reaped
        self._begun = False
        self._all = False  # what the command leaves behind counts as the command
        self._starting: int | None = None  # readable when the command runs, or cannot
        self._exited: int | None = None
        self._term_at = math.inf
        self._kill_at = math.inf
        self._told = False  # SIGTERM was sent for good
        self._over = False
        # Blocked, not ignored: the command would inherit ignored signals.
        # Set, not added: the starter may have blocked SIGCHLD.
        self._mask = signal.pthread_sigmask(
            signal.SIG_SETMASK, signal.valid_signals() - {signal.SIGCHLD}
        )
        self._children, woken = os.pipe()
        for end in (self._children, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def attend(self) -> None:
        """Do everything; return when nothing is left to do."""
        while not self._over:
            self._act()
            if not self._over:
                self._wait()

    def _act(self) -> None:
        """Do what it is time for."""
        if clock() >= self._kill_at:
            self._end_all()
        elif clock() >= self._term_at:
            self._terminate(self._kill_at)
            self._tell(ENDS)

    def _wait(self) -> None:
        poll = select.poll()
        for fd in (self._runner, self._children, self._starting):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        left = min(self._term_at, self._kill_at, clock() + _TURN_SECONDS) - clock()
        ready = {fd for fd, _ in poll.poll(max(0.0, math.ceil(left * 1000)))}
        if self._starting in ready:
            self._look_at_start()
        if self._children in ready:
            os.read(self._children, 4096)
            reap(self._reaped)
            self._report()
        if self._runner in ready:
            self._hear()

    def _hear(self) -> None:
        messages = self._wire.receive()
        if messages is None and self._begun:
            self._lost_runner()
        elif messages is None:
            self._over = True
        for what, *how in messages or ():
            if what == RUN:
                *start, self._all = how
                self._start(*start)
            elif what == LEASE and not self._told:
                self._term_at, self._kill_at = how
            elif what == END:
                self._terminate(*how)
            elif what == SIGNAL:
                self._signal_group(*how)
            elif what == KILL:
                self._end_all()
                self._over = True
            elif what == LEAVE:
                self._over = True

    def _lost_runner(self) -> None:
        """Nobody renews the lease any more: end the command in order, by the end of the lease."""
        self._runner = None
        if not self._told:
            grace = self._kill_at - self._term_at
            self._terminate(min(self._kill_at, clock() + grace))
        elif self._kill_at == math.inf:
            self._over = True  # all have ended

    def _start(
        self,
        argv: list[bytes],
        environ: dict[bytes, bytes],
        term_at: float,
        kill_at: float,
        foreground: int | None,
    ) -> None:
        self._term_at, self._kill_at = term_at, kill_at
        self._begun = True
        me = os.getpid()
        try:
            self._starting, failed = os.pipe()
            self._command = os.fork()
        except OSError as error:  # no process, memory or descriptor is left
            self._tell(FAILED, error.errno or errno.EAGAIN)
            self._over = True
            return
        if not self._command:
            try:
                self._become(argv, environ, me, foreground)
            except Exception as error:
                number = getattr(error, "errno", None) or errno.EINVAL
                os.write(failed, str(number).encode())
            finally:
                os._exit(127)
        os.close(failed)

    def _become(
        self,
        argv: list[bytes],
        environ: dict[bytes, bytes],
        parent: int,
        foreground: int | None,
    ) -> None:
        """Become the command, in a process that was forked."""
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(127)  # too late for that signal
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # Python ignores them
        # A command that began in the background and read at once would be stopped. The signal that
        # lets it go on could come so late that it undoes a later Ctrl-Z.
        lent = foreground is not None and hand_terminal(foreground, os.getpid())
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            _exec(argv, environ)
        finally:
            if foreground is not None and lent:
                hand_terminal(os.getpid(), foreground)

    def _look_at_start(self) -> None:
        assert self._starting is not None
        error = os.read(self._starting, 16)
        os.close(self._starting)
        self._starting = None
        if error:
            self._tell(FAILED, int(error))
            self._over = True
        else:
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1):  # the command's now: its end is to be the end of a pipe
                os.dup2(nothing, standard)
            os.close(nothing)
            self._tell(BEGAN, self._command)
            self._report()

    def _reaped(self, pid: int, status: int) -> None:
        if pid != self._command:
            return
        if os.WIFSTOPPED(status):
            self._tell(STOPPED, os.WSTOPSIG(status))
            return
        code = os.waitstatus_to_exitcode(status)
        self._command, self._exited = None, code if code >= 0 else 128 - code

    def _report(self) -> None:
        """Tell the runner of the command's end; before that, end the rest if it was to end."""
        if self._exited is None or self._starting is not None:
            return
        # An orphan is this process's child. So when it has no child, no descendant is left.
        if self._all and reap(self._reaped):
            return
        if self._told:
            self._end_all()
        else:
            self._tell_exit()

    def _tell_exit(self) -> None:
        if self._exited is not None:
            self._tell(EXITED, self._exited)
            self._exited = None

    def _terminate(self, kill_at: float) -> None:
        """Send SIGTERM, once, to the command's group and to processes that left its session."""
        self._term_at, self._kill_at = math.inf, kill_at
        if not self._told:
            self._told = True
            if not self._lingers:
                session = os.getsid(0)
                signal_all(signal.SIGTERM, if_=lambda pid: _session_of(pid) not in {session, None})
            self._signal_group(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)
        if self._command is None and not self._lingers:
            self._end_all()

    @property
    def _lingers(self) -> bool:
        """Whether the command has ended, and is waited for, as some that it started has not."""
        return self._all and self._exited is not None

    def _signal_group(self, number: int) -> None:
        if self._command is not None:
            try:
                os.killpg(self._command, number)
            except OSError:
                return  # it has no group yet, or runs as another user
        elif self._lingers:  # the number of its group may be used again
            signal_all(number)

    def _end_all(self) -> None:
        self._told = True
        self._term_at = self._kill_at = math.inf
        # A group is killed in one step: none of it can fork meanwhile.
        self._signal_group(signal.SIGKILL)
        end_all(self._reaped)
        self._tell_exit()
        if self._runner is None:
            self._over = True

    def _tell(self, *message: Any) -> None:
        if self._runner is not None:
            try:
                self._wire.send(*message)
            except OSError:
                return  # the runner has died: the next look at the socket finds it


def _exec(argv: list[bytes], environ: dict[bytes, bytes]) -> None:
    """Become a program, as execvp(3) does: a file of text without ``#!`` is a script for a shell.

    ``os.execvpe`` goes on to the next folder when it meets such a file.
    """
    files = [argv[0]]
    if b"/" not in argv[0]:
        folders = environ.get(b"PATH", os.fsencode(os.defpath)).split(b":")
        files = [folder + b"/" * bool(folder) + argv[0] for folder in folders]
    denied: OSError | None = None
    for file in files:
        try:
            os.execve(file, argv, environ)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve("/bin/sh", [b"sh", file, *argv[1:]], environ)
    raise denied or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def hand_terminal(giver: int, taker: int) -> bool:
    """If this group has the foreground of the controlling terminal, give it to that one.

    Works for a background process, too. The terminal may be gone at any moment: ``False``.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    # Blocked, not ignored: the child would inherit an ignored signal.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        had = os.tcgetpgrp(terminal) == giver
        if had:
            os.tcsetpgrp(terminal, taker)
        return had
    except OSError:
        return False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(terminal)


def _fill_standard() -> None:
    """Open the standard descriptors that are closed; they will be closed again for the command."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


if __name__ == "__main__":
    become_subreaper()
    Supervisor(int(sys.argv[1])).attend()
