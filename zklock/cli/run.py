"""``zklock run``: a command that runs while a lock is held, and no longer."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import zklock
from zklock._ground.clock import clock
from zklock._recipes import names
from zklock.cli import connection, settings
from zklock.cli.child import Child, Limits, check_proc, expect_children
from zklock.cli.ending import Ending, ends_on_signals
from zklock.cli.happenings import (
    PARTING_SECONDS,
    Asked,
    Ends,
    Exited,
    Finished,
    Granted,
    Happenings,
    Passed,
    Stopped,
)
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

_TELL_SECONDS = 2.0
_CANCEL_SECONDS = 0.1
_NAME_LENGTH = 800  # characters of at most 4 bytes: an identity has room for 4096 bytes
_SHELL = "/bin/sh"
_PERMITS = settings.whole(1, 2**31 - 1, "not a number of permits")

DESCRIPTION = f"""\
Wait for the lock, run the command while it is held, release the lock. The command finds the fencing
token in ${TOKEN_VARIABLE}, the path in ${PATH_VARIABLE}, 1 in ${HELD_VARIABLE}, the hosts in \
${settings.HOSTS.variable}. When the lease of the lock ends, the command's process group gets
SIGTERM, and after the grace all its processes get SIGKILL. They are gone before another can be
granted the lock, even if 'zklock run' itself is stopped or killed. The lock is released only when
the command has ended. The exit status is that of the command, 128 + n if signal n ended it; 75, or
CODE, if the lock was not granted; 79 if it was lost; 64: wrong usage; 69: no ZooKeeper; 77: not
permitted; 125: 'zklock run' itself has failed; 126: the command cannot be run; 127: there is no
such command."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "-n", "--nonblock", action="store_true", help="do not wait if the lock is not free"
    )
    connection.add_wait(waiting)
    parser.add_argument(
        "-E",
        "--conflict-exit-code",
        type=settings.whole(0, 255, "not 0 to 255"),
        default=Status.NOT_OBTAINED,
        metavar="CODE",
        help="the exit status if the lock was not granted, with -n or -w; default 75",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "-s", "--shared", action="store_true", help="share the lock with other shared holders"
    )
    kind.add_argument(
        "--limit",
        type=_PERMITS,
        metavar="M",
        help="PATH is a semaphore of M permits: up to M commands run at a time",
    )
    parser.add_argument(
        "--permits",
        type=_PERMITS,
        metavar="N",
        help="take N permits of the semaphore; default 1. Without --limit, the stored limit counts",
    )
    parser.add_argument(
        "--at-least",
        type=settings.seconds,
        default=0.0,
        metavar="SECONDS",
        help="keep the lock for this long after the grant, even if the command ends earlier: a "
        "job that several hosts start, by clocks that differ, runs once",
    )
    add_command_options(parser, "lock")


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
        "--identity", type=connection.text, help="shown to others; default host:pid:COMMAND"
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
    parser.set_defaults(failed=Status.ITSELF)


def run(options: argparse.Namespace) -> int:
    """Acquire, run, release."""
    command = command_of(options)
    if options.permits is not None and options.shared:
        options.parser.error("argument --permits: not allowed with argument -s/--shared")
    check_proc()
    with ends_on_signals(PASSED) as ending:
        expect_children()
        return _Run(command, options).attend(ending)


class _Run:
    """One ``zklock run``.

    The main thread attends to signals and to the command. Everything that waits for ZooKeeper
    runs on another thread. So a signal is heard, whatever that thread waits for.
    """

    def __init__(self, command: Sequence[str], options: argparse.Namespace) -> None:
        self._command = command
        self._options = options
        self._tells = options.verbose or sys.stderr.isatty()
        self._happened = Happenings()
        self._asked: int | None = None
        self._client: Any = None
        self._lock: zklock.Lock | zklock.ReadLock | zklock.Semaphore | None = None
        self._place: int | None = None  # this contender's sequence number, once it was seen
        self._runs = False
        self._over = threading.Event()  # the command has ended, or must not begin

    def attend(self, ending: Ending) -> int:
        """Do everything; return the exit status."""
        ending.divert(self._on_signal)
        # Before it is needed: it starts while ZooKeeper is asked.
        child = Child(self._happened)
        try:
            self._happened.work(self._hold, "zklock-run")
            granted = self._await_grant()
            if not isinstance(granted, Granted):
                return _status(granted)
            return self._run(granted, child)
        finally:
            child.close()

    def _run(self, granted: Granted, child: Child) -> int:
        grant, options = granted.grant, self._options
        term = Term(options, self._client, grant)
        environ = environ_of(grant, options)
        try:
            self._runs = True
            outcome = run_command(self._command, environ, child, self._happened, term)
            self._runs = False
            if outcome.hung_up and not options.pass_hup:
                self._asked = signal.SIGHUP
            if outcome.ran and not outcome.ended:
                self._keep(grant, granted.at + options.at_least)
        except BaseException:
            self._runs = False
            self._part()
            raise
        status = _status(self._part(), outcome.status)
        return Status.LOST if outcome.ended else status

    def _on_signal(self, number: int) -> None:
        if is_passed(number, self._options, runs=self._runs):
            self._happened.put(Passed(number))
        else:
            self._asked = number
            self._happened.put(Asked(number))

    def _hold(self) -> int | None:
        """Connect, acquire, release after the command; return a status other than the command's."""
        options = self._options
        with connection.connected(options) as self._client:
            say_cuts("run", options, self._client)
            acquire = self._make_lock()
            if options.limit is options.permits is None and not (options.nonblock or options.wait):
                check_not_inside(options.path, self._blockers)
            grant = acquire(blocking=not options.nonblock, timeout=options.wait)
            if grant is None:
                if self._tells:
                    self._say("gives up")
                return int(options.conflict_exit_code)
            self._happened.put(Granted(grant, clock()))
            self._over.wait()
            try:
                grant.release()
            except zklock.LockLost:
                return Status.LOST
        return None

    def _make_lock(self) -> Callable[..., zklock.Grant | None]:
        """Make the lock that the options name; return what acquires it."""
        options, client = self._options, self._client
        identity = options.identity or identity_of(self._command)
        if options.limit is None and options.permits is None:
            kind = zklock.ReadLock if options.shared else zklock.Lock
            self._lock = lock = kind(client, options.path, identity=identity)
            return lock.acquire
        self._lock = semaphore = zklock.Semaphore(
            client, options.path, limit=options.limit, identity=identity
        )
        return partial(semaphore.acquire, permits=options.permits or 1)

    def _blockers(self) -> list[zklock.Contender]:
        """Return those that this contender would have to wait for."""
        assert self._lock is not None
        queue = self._lock.contenders()
        if self._options.shared and all(_reads(one) for one in queue):
            return []
        return [one for one in queue if one.holds]

    def _await_grant(self) -> Granted | Finished:
        """Wait for the lock or for a signal; after a signal no contender is left."""
        # In any case before it gives up: then it knows its place.
        pause = min(_TELL_SECONDS, (self._options.wait or math.inf) / 2)
        tell_at, connects = (clock() + pause if self._tells else math.inf), False
        while self._asked is None:
            outcome = self._happened.next(tell_at)
            if isinstance(outcome, Granted | Finished) and self._asked is None:
                return outcome
            if outcome is None:
                told, connects = connects, self._lock is None
                tell_at = clock() + pause if connects else math.inf
                if told and connects:
                    continue
                tell = self._tell_silence if connects else self._tell
                with contextlib.suppress(RuntimeError):  # no thread can start: nothing is told
                    threading.Thread(target=tell, name="zklock-run-tell", daemon=True).start()
        self._over.set()
        until = clock() + PARTING_SECONDS
        while (lock := self._lock) is not None and clock() < until:
            lock.cancel()  # again and again: it may be just about to queue
            if isinstance(self._happened.next(clock() + _CANCEL_SECONDS), Finished):
                break
        return Finished(128 + self._asked)

    def _tell_silence(self) -> None:
        """Tell that this process is not connected yet."""
        say("run", f"no ZooKeeper server of {self._options.hosts} has answered yet")

    def _tell(self) -> None:
        """Tell what this process waits for."""
        self._say("waits")

    def _say(self, what: str) -> None:
        from kazoo.exceptions import KazooException  # noqa: PLC0415 - most get their lock at once

        from zklock.cli.standing import standing  # noqa: PLC0415

        with contextlib.suppress(zklock.ZkLockError, KazooException):  # nothing is told
            told, self._place = standing(self._client, self._options.path, self._place)
            say("run", f"{what}: {told}")

    def _keep(self, grant: zklock.Grant, until: float) -> None:
        """Keep the lock until then, unless this process is asked to end."""
        while self._asked is None and grant.held and clock() < until:
            self._happened.next(min(until, clock() + grant.remaining()))

    def _part(self) -> Finished:
        """Have the lock released; wait until the client has left, but not long if asked to end."""
        self._over.set()
        until = math.inf
        while True:
            if self._asked is not None:
                until = min(until, clock() + PARTING_SECONDS)
            outcome = self._happened.next(until)
            if outcome is None:
                return Finished()
            if isinstance(outcome, Finished):
                return outcome


def _status(finished: Finished, otherwise: int = Status.OK) -> int:
    if finished.error is not None:
        raise finished.error
    return otherwise if finished.status is None else finished.status


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


def identity_of(command: Sequence[str]) -> str:
    """Return the default identity; bytes of the command that are not text are replaced."""
    name = os.fsencode(command[0]).decode(errors="replace")
    return f"{socket.gethostname()}:{os.getpid()}:{name[:_NAME_LENGTH]}"


def _reads(one: zklock.Contender) -> bool:
    return names.kind_of(one.path.rpartition("/")[2]) is names.Kind.READ


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


def is_passed(number: int, options: argparse.Namespace, *, runs: bool) -> bool:
    """Whether a signal is for the command alone, and asks this process for nothing.

    ``runs``: the command runs. Then a hang-up is for the command, too: it may go on.
    """
    return number in PASSED or (number == signal.SIGHUP and (runs or options.pass_hup))


def say_cuts(command: str, options: argparse.Namespace, client: Any) -> None:
    """Say which of the times that were asked for the servers, or the lease, have cut.

    The log, which ``-v`` shows, says the first.
    """
    timeout: float = client.handler.session_timeout
    other = "session-timeout" in options.given and timeout != options.session_timeout
    if other and not options.verbose:
        say(
            command,
            f"the session timeout is {timeout:g} s, not {options.session_timeout:g} s: the "
            "servers limit it (minSessionTimeout, maxSessionTimeout)",
        )
    longest = Term.longest_grace(timeout)
    if options.grace is not None and options.grace > longest:
        say(
            command,
            f"the grace at the end of a lease is {longest:.3g} s, not {options.grace:g} s: it is "
            f"at most a third of the session timeout of {timeout:g} s; pass --session-timeout "
            f"{math.ceil(options.grace / _MOST_GRACE_FRACTION):g}",
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

    @staticmethod
    def longest_grace(timeout: float) -> float:
        """Return the longest grace that a lease has room for."""
        return _MOST_GRACE_FRACTION * timeout

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
            term_at=kill_at - min(self.grace, self.longest_grace(timeout)),
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


def run_command(
    command: Sequence[str],
    environ: Mapping[str, str],
    child: Child,
    happened: Happenings,
    term: Term,
) -> Outcome:
    """Run the command; return when nothing of it is left that must not be."""
    first = term.begin()
    if first is None:
        return Outcome(Status.LOST, ran=False, ended=True)
    try:
        child.begin(command, environ, first, term.limits)
    except OSError as error:
        say(None, f"{command[0]}: {error.strerror}")
        missing = isinstance(error, FileNotFoundError)
        return Outcome(Status.NOT_FOUND if missing else Status.NOT_EXECUTABLE, ran=False)
    leave = False
    try:
        term.grant.add_lost_callback(happened.put)
        ended = _attend(child, happened, term)
        leave = term.grant.held and not ended
    finally:
        child.reap(leave=leave)
    if not leave:
        return Outcome(Status.LOST, ended=True)
    if child.status is None:
        raise zklock.ZkLockError(
            f"{term.grant.lock_path}: the command was killed because its supervisor was killed: "
            "run it again"
        )
    return Outcome(child.status)


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


_COERCED = "LC_CTYPE"


def environ_of(grant: zklock.Grant, options: argparse.Namespace) -> dict[str, str]:
    """Return the environment of a command that runs while the grant is held."""
    return {
        **settings.environ_for(options, _environ()),
        PATH_VARIABLE: grant.lock_path,
        TOKEN_VARIABLE: str(grant.token),
        HELD_VARIABLE: "1",
    }


def _attend(child: Child, happened: Happenings, term: Term) -> bool:
    """Pass on what happens until the child has ended; return whether zklock told it to."""
    ended = False
    while True:
        match happened.next():
            case Exited():
                return ended
            case Stopped(number):
                child.stop_with_it(number, go_on=lambda: term.grant.held)
            case Asked(number) | Passed(number):
                child.signal(number)
            case Ends():
                ended = True
                say(
                    None,
                    f"{term.grant.lock_path}: the lock counts as lost: no answer from ZooKeeper, "
                    f"and the lease of token {term.grant.token} is ending; stopping the command",
                )
            case zklock.Loss() as loss:
                ended = True
                if loss.reason is zklock.LossReason.LEASE_LAPSED:
                    child.kill()
                else:  # somebody has taken it: the next may be granted already
                    child.end(clock() + term.grace)
                say(None, str(loss))
