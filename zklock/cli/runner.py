"""Runs a command while a grant is held: what ``zklock run`` and ``zklock elect`` have in common."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

import zklock
from zklock._ground.clock import clock
from zklock.cli import connection, settings, supervisor
from zklock.cli.child import (
    Child,
    Happening,
    Limits,
    check_proc,
    expect_children,
    next_of,
)
from zklock.cli.ending import Ending, ends_on_signals
from zklock.cli.saying import say
from zklock.cli.settings import HELD_VARIABLE, PATH_VARIABLE, TOKEN_VARIABLE
from zklock.cli.status import Status

GRACE_FRACTION = 0.1
"""The default grace, as a fraction of the session timeout T.

The lease ends 2/3 T after the last proof was sent, and always before the next grant may come. The
grace period therefore counts against the lease. Heartbeats go out every T/10, and the
supervisor hears of the lease every T/20: while they are answered at once, it knows at least 0.51 T
of it. SIGTERM comes 0.15 T before the end. So answers may take 0.36 T, more than a session allows;
with the longest grace, 0.13 T.
"""
_MOST_GRACE_FRACTION = 1 / 3
_RESERVE_FRACTION = 1 / 20
_MOST_RESERVE_SECONDS = 0.2
"""SIGKILL is sent so long before the end of the lease: killing takes time, too."""
_RENEWAL_FRACTION = 1 / 20
_SETTLING_FRACTION = 1 / 5

PASSED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
"""The signals that are for a command alone."""

PARTING_SECONDS = 3.0
"""How long a command that was told to end waits for ZooKeeper's answer; then it ends without."""

_NAME_LENGTH = 800  # characters of at most 4 bytes: an identity has room for 4096 bytes
_SHELL = "/bin/sh"
_COERCED = "LC_CTYPE"


@dataclass(frozen=True, slots=True)
class Finished:
    """The work is over, with this error if it has failed."""

    error: BaseException | None = None


class Runner:
    """Runs a command while it holds something: a lock once, or an election's leadership.

    The main thread attends to signals. The work, which waits for ZooKeeper and for the command,
    has its own thread: so a signal is heard, whatever the work waits for.
    """

    NAME: ClassVar[str]

    def __init__(self, command: Sequence[str], options: argparse.Namespace) -> None:
        self.command = command
        self.options = options
        self.client: Any = None
        self.contender: Any = None
        """What waits, once there is one; ``cancel()`` ends the wait."""
        self.happened: SimpleQueue[Happening] = SimpleQueue()
        """What happens to the command."""
        self.asked: int | None = None
        """The signal by which this process was asked to end; ``told`` is set then."""
        self.told = threading.Event()
        self.status: int | None = None
        """The exit status, once the work knows it."""
        self._signals: SimpleQueue[int | Finished] = SimpleQueue()
        self._runs = False
        self._begun = False

    def work(self) -> None:
        """Do everything but attending to signals, until a command has ended for good."""
        raise NotImplementedError

    def attend(self) -> int:
        """Have the work done; return the exit status."""
        check_proc()
        with ends_on_signals(PASSED) as ending:
            expect_children()
            return self._attend(ending)

    def _attend(self, ending: Ending) -> int:
        ending.divert(self._signals.put)
        threading.Thread(target=self._work, name=f"zklock-{self.NAME}", daemon=True).start()
        leave_at = math.inf
        while True:
            match next_of(self._signals):
                case Finished(error):
                    # One that was asked to end while it waited has given up: that is no failure.
                    if error is not None and not self._gave_up():
                        raise error
                    return self._outcome()
                case int(number):
                    self._heed(number)
            if self.asked is None or self._runs:
                leave_at = math.inf
            elif self.contender is None or clock() >= leave_at:
                return self._outcome()
            else:
                self.contender.cancel()  # again and again: it may be just about to queue
                leave_at = min(leave_at, clock() + PARTING_SECONDS)

    def _work(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._signals.put(Finished(error))
        else:
            self._signals.put(Finished())

    def _gave_up(self) -> bool:
        return self.asked is not None and self.status is None and not self._begun

    def _outcome(self) -> int:
        if self.status is not None:
            return self.status
        return Status.OK if self.asked is None else 128 + self.asked

    def _heed(self, number: int) -> None:
        """Take a signal. One that is for the command alone asks this process for nothing.

        While the command runs, a hang-up is for it, too: it may go on.
        """
        hangs_up = number == signal.SIGHUP and (self._runs or self.options.pass_hup)
        if number not in PASSED and not hangs_up:
            self.end(number)
        if self._runs:
            self.happened.put(number)

    def end(self, number: int) -> None:
        """End as after this signal, once no command runs."""
        self.asked = number
        self.told.set()

    def run_while(
        self, grant: zklock.Grant, child: Child, told: threading.Event | None = None
    ) -> Outcome:
        """Run the command while the grant is held, unless this process was asked to end.

        When ``told`` is set, the command is asked to end. On return nothing of it is left that must
        not be.
        """
        self._runs = True
        try:
            # Looked at only now: so either the command gets a signal, or this look finds it.
            if self.asked is not None:
                return Outcome(128 + self.asked, ran=False)
            self._begun = True
            outcome = self._run(Term(self.options, self.client, grant), child, told)
            self._begun = False
            return outcome
        finally:
            self._runs = False

    def _run(self, term: Term, child: Child, told: threading.Event | None) -> Outcome:
        grant = term.grant
        environ = {
            **settings.environ_for(self.options, _environ()),
            PATH_VARIABLE: grant.lock_path,
            TOKEN_VARIABLE: str(grant.token),
            HELD_VARIABLE: "1",
        }
        if (first := term.begin()) is None:
            return Outcome(Status.LOST, ran=False, ended=True)
        try:
            child.begin(self.command, environ, first, term.limits, all_=self.options.all)
        except OSError as error:
            say(None, f"{self.command[0]}: {error.strerror}")
            missing = isinstance(error, FileNotFoundError)
            return Outcome(Status.NOT_FOUND if missing else Status.NOT_EXECUTABLE, ran=False)
        leave = False
        try:
            grant.add_lost_callback(self.happened.put)
            ended = self._follow(term, child, told)
            leave = grant.held and not ended
        finally:
            child.reap(leave=leave)
        if not leave:
            return Outcome(Status.LOST, ended=True)
        if child.status is None:
            raise zklock.ZkLockError(
                f"{grant.lock_path}: the command was killed because its supervisor was killed: "
                "run it again"
            )
        return Outcome(child.status)

    def _follow(self, term: Term, child: Child, told: threading.Event | None) -> bool:
        """Pass on what happens until the child has ended; return whether zklock told it to."""
        ended, grant = False, term.grant
        while True:
            match next_of(self.happened):
                case None if told is not None and told.is_set():
                    told = None
                    if grant.held:  # else it hears of the loss
                        child.signal(signal.SIGTERM)
                case (supervisor.EXITED, _):
                    return ended
                case (supervisor.STOPPED, number):
                    child.stop_with_it(number, go_on=lambda: grant.held)
                case int(number):
                    child.signal(number)
                case (supervisor.ENDS,):
                    ended = True
                    say(
                        None,
                        f"{grant.lock_path}: the lock counts as lost: no answer from ZooKeeper, "
                        f"and the lease of token {grant.token} is ending; stopping the command",
                    )
                case zklock.Loss() as loss:
                    ended = True
                    if loss.reason is zklock.LossReason.LEASE_LAPSED:
                        child.kill()
                    else:  # somebody has taken it: the next may be granted already
                        child.end(clock() + term.grace)
                    say(None, str(loss))

    def say_cuts(self) -> None:
        """Say which of the times that were asked for the servers, or the lease, have cut.

        The log, which ``-v`` shows, says the first.
        """
        options, timeout = self.options, self.client.handler.session_timeout
        other = "session-timeout" in options.given and timeout != options.session_timeout
        if other and not options.verbose:
            say(
                self.NAME,
                f"the session timeout is {timeout:g} s, not {options.session_timeout:g} s: the "
                "servers limit it (minSessionTimeout, maxSessionTimeout)",
            )
        longest = _MOST_GRACE_FRACTION * timeout
        if options.grace is not None and options.grace > longest:
            say(
                self.NAME,
                f"the grace at the end of a lease is {longest:.3g} s, not {options.grace:g} s: it "
                f"is at most a third of the session timeout of {timeout:g} s; pass "
                f"--session-timeout {math.ceil(options.grace / _MOST_GRACE_FRACTION):g}",
            )

    @property
    def identity(self) -> str:
        """What others see; bytes of the command that are not text are replaced."""
        name = os.fsencode(self.command[0]).decode(errors="replace")
        return (
            self.options.identity or f"{socket.gethostname()}:{os.getpid()}:{name[:_NAME_LENGTH]}"
        )


def add_command_options(parser: argparse.ArgumentParser, what: str) -> None:
    """Add what 'run' and 'elect' have in common, and the command."""
    parser.add_argument(
        "--grace",
        type=settings.seconds,
        metavar="SECONDS",
        help=f"time between SIGTERM and SIGKILL when the {what} is about to be lost; default a "
        "tenth of the session timeout, at most a third of it",
    )
    parser.add_argument(
        "--identity", type=settings.utf8, help="shown to others; default host:pid:COMMAND"
    )
    parser.add_argument(
        "-c",
        "--command",
        dest="line",
        metavar="LINE",
        help=f"run LINE by {_SHELL}, instead of COMMAND; may follow PATH",
    )
    parser.add_argument(
        "--pass-hup",
        action="store_true",
        help="pass SIGHUP to the command, as a request to reload; it does not end the wait for "
        f"the {what}",
    )
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    parser.add_argument("command", metavar="COMMAND ...", nargs=argparse.REMAINDER)
    usage = f"{parser.prog} [options] PATH"
    parser.usage = f"{usage} [--] COMMAND [ARGUMENT ...]\n       {usage} -c LINE"
    parser.set_defaults(failed=Status.ITSELF, all=False)


def command_of(options: argparse.Namespace) -> Sequence[str]:
    """Return the command to run; end with a usage error if there is none, or more than one."""
    command: Sequence[str] = options.command
    line: str | None = options.line
    if line is None and command[:1] == ["-c"] and len(command) == 2:
        line, command = command[1], []
    if line is not None:
        if command:
            options.parser.error("give a COMMAND or -c LINE, not both")
        return [_SHELL, "-c", line]
    if command and command[0].startswith("-") and command[0] != "--":
        options.parser.error(
            f"{command[0]}: options go before PATH; put '--' before a command of this name"
        )
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        options.parser.error("give a COMMAND to run")
    return command


def check_not_inside(path: str, blockers: Callable[[], Sequence[zklock.Contender]]) -> None:
    """Raise ``ZkLockError`` if the command that this process runs under holds what it wants.

    Then each would wait for the other.
    """
    if (outer := os.environ.get(TOKEN_VARIABLE)) is None:
        return
    found: Sequence[zklock.Contender] = ()
    with contextlib.suppress(zklock.ZkLockError):  # what asks next says so
        found = blockers()
    if outer in {str(one.token) for one in found}:
        raise zklock.ZkLockError(
            f"{path}: the outer command holds it (token {outer}): this would deadlock; take "
            f"another path, or use 'env -u {TOKEN_VARIABLE}' if the outer command does not wait "
            "for this one",
            path=path,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command has ended: its status; whether it was run; whether it was told to end.

    ``ended``: because the lock was lost, or about to be.
    """

    status: int
    ran: bool = True
    ended: bool = False

    @property
    def hung_up(self) -> bool:
        """Whether a hang-up has ended it."""
        return self.status == 128 + signal.SIGHUP


class Term:
    """How long a command may run: while a grant is held."""

    def __init__(self, options: argparse.Namespace, client: Any, grant: zklock.Grant) -> None:
        self.grant = grant
        self._grace: float | None = options.grace
        self._handler = client.handler

    @property
    def grace(self) -> float:
        """How many seconds a command has between SIGTERM and SIGKILL; the timeout may shrink."""
        return self._grace or GRACE_FRACTION * self._handler.session_timeout

    def limits(self) -> Limits | None:
        """Return until when the command may run as things stand; ``None`` if the grant is lost."""
        now = clock()  # before the lease is asked: this process may be stopped between the two
        left = self.grant.remaining()
        if left <= 0:
            return None
        timeout = self._handler.session_timeout
        reserve = min(_MOST_RESERVE_SECONDS, _RESERVE_FRACTION * timeout)
        kill_at = now + left - reserve
        return Limits(
            term_at=kill_at - min(self.grace, _MOST_GRACE_FRACTION * timeout),
            kill_at=kill_at,
            act_at=kill_at + reserve / 2,
            fresh=_RENEWAL_FRACTION * timeout,
        )

    def begin(self) -> Limits | None:
        """Wait a little, until there is time for a heartbeat: a grant may have little left."""
        until = clock() + _SETTLING_FRACTION * self._handler.session_timeout
        while (now := self.limits()) is not None:
            if now.term_at >= clock() + 2 * now.fresh or clock() >= until:
                return now
            time.sleep(now.fresh / 4)
        return None


def _environ() -> dict[str, str]:
    """Return the environment, without the locale that Python gives itself in place of ``C``.

    That needs ``/proc``; elsewhere the locale stays. (PEP 538.)
    """
    found = dict(os.environ)
    if found.get(_COERCED) in {"C.UTF-8", "C.utf8", "UTF-8"}:
        with contextlib.suppress(OSError):
            begun = Path("/proc/self/environ").read_bytes().split(b"\0")
            del found[_COERCED]
            for name, _, value in (entry.partition(b"=") for entry in begun):
                if name == _COERCED.encode():
                    found[_COERCED] = os.fsdecode(value)
    return found
