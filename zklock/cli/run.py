"""``zklock run``: a command that runs while a lock is held, and no longer."""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import zklock
from zklock.cli import connection
from zklock.cli.check import PATH_VARIABLE, TOKEN_VARIABLE
from zklock.cli.child import Answered, Asked, Child, Exited, Happenings, Stopped
from zklock.cli.ending import ends_on_signals
from zklock.cli.status import Status
from zklock.clock import clock

HELD_VARIABLE = "ZKLOCK_HELD"
GRACE_FRACTION = 0.1
"""Of the session timeout T. The next grant comes 0.9 T less half a tick after the last proof at the
earliest, the lease ends 2/3 T after it: what lies between is more where T is at least 4 ticks."""

_DESCRIPTION = f"""\
Wait for the lock, run the command while it is held, release. The command finds the fencing token
in ${TOKEN_VARIABLE}, the path in ${PATH_VARIABLE}, 1 in ${HELD_VARIABLE}, the hosts in \
${connection.HOSTS_VARIABLE}. If the lock is lost, its
process group gets SIGTERM, after the grace SIGKILL, and 'zklock run' ends with status 75. The
lock is released only when the command has ended. The exit status is that of the command, 128 + n
if signal n ended it; CODE if the lock was not got; 64 wrong usage, 69 no ZooKeeper, 126 the command
cannot be run, 127 there is no such command."""


def add(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "run", help="run a command while holding a lock", description=_DESCRIPTION,
        usage="zklock run [options] PATH [--] COMMAND [ARGUMENT …]",
    )  # fmt: skip
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "-n", "--nonblock", action="store_true", help="do not wait if the lock is not free"
    )
    waiting.add_argument(
        "-w", "--wait", type=connection.seconds, metavar="SECONDS", help="wait no longer than this"
    )
    parser.add_argument(
        "-E",
        "--conflict-exit-code",
        type=_code,
        default=1,
        metavar="CODE",
        help="the status if the lock was not got, because of -n or -w; default 1",
    )
    parser.add_argument(
        "--grace",
        type=connection.seconds,
        metavar="SECONDS",
        help="between SIGTERM and SIGKILL when the lock is lost; default a tenth of the session "
        "timeout, so that the command is gone before another can be granted the lock",
    )
    parser.add_argument("--identity", help="shown to others; default host:pid:COMMAND")
    connection.add_options(parser)
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    parser.add_argument("command", metavar="COMMAND …", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Acquire, run, release."""
    command = command_of(options)
    identity = options.identity or f"{socket.gethostname()}:{os.getpid()}:{command[0]}"
    happened = Happenings()
    with ends_on_signals() as ending, connection.connected(options) as client:
        lock = zklock.Lock(client, options.path, identity=identity)
        ending.divert(lambda number: happened.put(Asked(number)))
        answer = _acquire(lock, options, happened)
        if isinstance(answer, Asked):
            return 128 + answer.number
        if answer.error is not None:
            raise answer.error
        if answer.grant is None:
            return int(options.conflict_exit_code)
        grace = options.grace or GRACE_FRACTION * client.handler.session_timeout
        environ = environ_of(answer.grant, options.hosts)
        status = run_command(command, environ, happened, answer.grant, grace)
        try:
            answer.grant.release()
        except zklock.LockLost:
            return Status.LOST
        return status


def command_of(options: argparse.Namespace) -> Sequence[str]:
    """Return the command that is to be run; ends with a usage error if there is none."""
    command: Sequence[str] = options.command
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        options.parser.error("give a COMMAND to run")
    return command


def _acquire(
    lock: zklock.Lock, options: argparse.Namespace, happened: Happenings
) -> Answered | Asked:
    """Wait for the lock, or for a signal; no contender is left after a signal."""

    def acquire() -> None:
        try:
            grant = lock.acquire(blocking=not options.nonblock, timeout=options.wait)
            happened.put(Answered(grant))
        except zklock.ZkLockError as error:
            happened.put(Answered(error=error))

    asking = threading.Thread(target=acquire, name="zklock-run-acquire", daemon=True)
    asking.start()
    asked: Asked | None = None
    while True:
        match happened.next():
            case Asked() as asked:
                lock.cancel()
            case Answered() as answer:
                if asked is not None and answer.grant is not None:
                    answer.grant.abandon()
                return asked or answer


def run_command(
    command: Sequence[str],
    environ: Mapping[str, str],
    happened: Happenings,
    grant: zklock.Grant,
    grace: float,
) -> int:
    """Run the command and return its status when nothing of it is left."""
    try:
        child = Child(command, environ, happened)
    except OSError as error:
        print(f"zklock: {command[0]}: {error.strerror}", file=sys.stderr)
        missing = isinstance(error, FileNotFoundError)
        return Status.NOT_FOUND if missing else Status.NOT_EXECUTABLE
    grant.add_lost_callback(happened.put)
    try:
        _attend(child, happened, grant, grace)
    except BaseException:
        child.signal(signal.SIGKILL)
        raise
    finally:
        status = child.reap()
    return status


def environ_of(grant: zklock.Grant, hosts: str) -> dict[str, str]:
    """Return what a command finds in its environment while the grant is held."""
    return {
        **os.environ,
        connection.HOSTS_VARIABLE: hosts,
        PATH_VARIABLE: grant.lock_path,
        TOKEN_VARIABLE: str(grant.token),
        HELD_VARIABLE: "1",
    }


def _attend(child: Child, happened: Happenings, grant: zklock.Grant, grace: float) -> None:
    """Pass on what happens, until the child has ended."""
    kill_at = math.inf
    while True:
        match happened.next(kill_at):
            case None:
                child.signal(signal.SIGKILL)
                kill_at = math.inf
            case Exited():
                if not grant.held:
                    child.signal(signal.SIGKILL)  # what it started and left behind
                return
            case Stopped(number):
                child.stop_with_it(number, go_on=lambda: grant.held)
            case Asked(number):
                child.signal(number)
            case zklock.Loss() as loss:
                print(f"zklock: {loss}", file=sys.stderr)
                child.signal(signal.SIGTERM)
                child.signal(signal.SIGCONT)
                kill_at = clock() + grace


def _code(text: str) -> int:
    code = int(text)
    if not 0 <= code <= 255:
        raise argparse.ArgumentTypeError(f"{text}: not 0 to 255")
    return code
