"""``zklock elect``: a command that runs on one member of an election, and only while it leads."""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

import zklock
from zklock.cli import connection
from zklock.cli.check import PATH_VARIABLE, TOKEN_VARIABLE
from zklock.cli.child import Asked, Happenings
from zklock.cli.ending import ends_on_signals
from zklock.cli.run import GRACE_FRACTION, HELD_VARIABLE, command_of, environ_of, run_command
from zklock.cli.status import Status

_DESCRIPTION = f"""\
Stand for election, and run the command while this member leads. The command finds the fencing token
of the term in ${TOKEN_VARIABLE}, the path in ${PATH_VARIABLE}, 1 in ${HELD_VARIABLE}, the hosts in
${connection.HOSTS_VARIABLE}. If the leadership is lost, its process group gets SIGTERM, after the
grace SIGKILL, and this member stands again. When the command ends by itself, its status is that
of 'zklock elect', 128 + n if signal n ended it; with --again this member stands again instead. The
leadership is handed on only when the command has ended. 64 wrong usage, 69 no ZooKeeper, 126 the
command cannot be run, 127 there is no such command."""


def add(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "elect", help="run a command while leading an election", description=_DESCRIPTION,
        usage="zklock elect [options] PATH [--] COMMAND [ARGUMENT …]",
    )  # fmt: skip
    parser.add_argument(
        "--again", action="store_true", help="stand again when the command has ended by itself"
    )
    parser.add_argument(
        "--grace",
        type=connection.seconds,
        metavar="SECONDS",
        help="between SIGTERM and SIGKILL when the leadership is lost; default a tenth of the "
        "session timeout",
    )
    parser.add_argument("--identity", help="shown to others; default host:pid:COMMAND")
    parser.add_argument("--payload", default="", help="shown to others besides, such as an address")
    connection.add_options(parser)
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    parser.add_argument("command", metavar="COMMAND …", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Stand for election, and run the command in each term."""
    command = command_of(options)
    identity = options.identity or f"{socket.gethostname()}:{os.getpid()}:{command[0]}"
    with ends_on_signals() as ending, connection.connected(options) as client:
        election = zklock.LeaderElection(
            client, options.path, identity=identity, payload=options.payload, grace=math.inf
        )
        grace = options.grace or GRACE_FRACTION * client.handler.session_timeout
        office = _Office(election, command, options, grace)
        ending.divert(office.on_signal)
        election.run(office.lead, on_error="raise")
        return office.status


class _Office:
    """What is done in a term, and what the command has come to."""

    def __init__(
        self,
        election: zklock.LeaderElection,
        command: Sequence[str],
        options: argparse.Namespace,
        grace: float,
    ) -> None:
        self.status: int = Status.OK
        self._election = election
        self._command = command
        self._options = options
        self._grace = grace
        self._asked: int | None = None
        self._happened: Happenings | None = None

    def on_signal(self, number: int) -> None:
        """Pass the signal on to the command, if it runs; in any case stand no more."""
        self._asked = number
        happened = self._happened
        if happened is not None:
            happened.put(Asked(number))
        else:
            self._end(128 + number)

    def lead(self, leadership: zklock.Leadership) -> None:
        """Run the command; it has ended when this returns."""
        happened = self._happened = Happenings()
        if self._asked is not None:  # before there was a command to pass it on to
            self._end(128 + self._asked)
            return
        told = threading.Thread(
            target=_pass_on, args=(leadership, happened), name="zklock-elect-told", daemon=True
        )
        told.start()
        environ = environ_of(leadership, self._options.hosts)
        status = run_command(self._command, environ, happened, leadership, self._grace)
        self._happened = None
        over = not leadership.held or leadership.should_stop.is_set()
        leadership.resign()
        told.join()
        cannot = status in {Status.NOT_FOUND, Status.NOT_EXECUTABLE}
        if self._asked is not None or cannot or not (over or self._options.again):
            self._end(status)
        else:
            print(f"zklock elect: stands again, the status was {status}", file=sys.stderr)

    def _end(self, status: int) -> None:
        self.status = status
        self._election.stop()


def _pass_on(leadership: zklock.Leadership, happened: Happenings) -> None:
    """Have the command end when the leadership is to be given up; of a loss it is told anyway."""
    leadership.should_stop.wait()
    if not leadership.lost.is_set():
        happened.put(Asked(signal.SIGTERM))
