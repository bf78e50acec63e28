"""``zklock elect``: runs a command on one member of an election, only while that member leads."""

from __future__ import annotations

import argparse
import math
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import zklock
from zklock._election.base import pause_after
from zklock._ground.clock import clock
from zklock.cli import connection, supervisor
from zklock.cli.child import Child, check_proc, expect_children
from zklock.cli.ending import Ending, ends_on_signals
from zklock.cli.happenings import PARTING_SECONDS, Asked, Finished, Happenings, Passed
from zklock.cli.run import (
    PASSED,
    Term,
    add_command_options,
    check_not_inside,
    command_of,
    environ_of,
    identity_of,
    is_passed,
    run_command,
    say_cuts,
)
from zklock.cli.saying import say
from zklock.cli.settings import HELD_VARIABLE, HOSTS, PATH_VARIABLE, TOKEN_VARIABLE
from zklock.cli.status import Status

_LOOK_SECONDS = 0.2
_RETRY = (0.5, 30.0)
"""The first and the longest pause after a command that has failed."""

DESCRIPTION = f"""\
Stand for election, and run the command while this member leads. The command finds the fencing token
of the term in ${TOKEN_VARIABLE}, the path in ${PATH_VARIABLE}, 1 in ${HELD_VARIABLE}, the hosts in
${HOSTS.variable}. When the lease ends, the command's process group gets SIGTERM,
after the grace all its processes get SIGKILL, and this member stands again. The processes
are gone before another can lead, even if 'zklock elect' itself is stopped or killed. When
the command ends by itself, 'zklock elect' ends with its status, 128 + n if signal n ended it; with
--again this member stands again instead, after a pause that grows while the command fails. The
leadership is handed on only when the command has ended. Other exit statuses: 64: wrong usage; 69:
no ZooKeeper; 77: not permitted; 125: 'zklock elect' itself has failed; 126: the command cannot be
run; 127: there is no such command."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--again", action="store_true", help="stand again when the command has ended by itself"
    )
    parser.add_argument(
        "--payload",
        type=connection.text,
        default="",
        help="more text that others see, such as an address",
    )
    add_command_options(parser, "leadership")


def run(options: argparse.Namespace) -> int:
    """Stand for election, and run the command in each term."""
    command = command_of(options)
    check_proc()
    with ends_on_signals(PASSED) as ending:
        expect_children()
        return _Office(command, options).attend(ending)


class _Office:
    """What happens in a term, and the result of the command.

    The main thread attends to signals. The election, and everything else that waits for
    ZooKeeper, runs on another thread.
    """

    def __init__(self, command: Sequence[str], options: argparse.Namespace) -> None:
        self._status: int | None = None  # set when the last command has ended
        self._command = command
        self._options = options
        self._election: zklock.LeaderElection | None = None
        self._asked: int | None = None
        self._told = threading.Event()  # whether it was asked
        self._failures = 0  # of the command, in a row
        self._pause = 0.0
        self._client: Any = None
        self._foreign = supervisor.children_of(os.getpid())
        self._signals = Happenings()
        self._happened: Happenings | None = None  # those of the command, while it runs

    def attend(self, ending: Ending) -> int:
        """Do everything; return the exit status."""
        ending.divert(lambda number: self._signals.put(Asked(number)))
        self._signals.work(self._stand, "zklock-elect")
        leave_at = math.inf
        while True:
            match self._signals.next(min(clock() + _LOOK_SECONDS, leave_at)):
                case Finished() as finished:
                    if finished.error is not None:
                        raise finished.error
                    return self._outcome()
                case Asked(number):
                    self._heed(number)
            if self._asked is None or self._happened is not None:
                leave_at = math.inf
            elif clock() >= leave_at or self._election is None:
                return self._outcome()
            else:
                leave_at = min(leave_at, clock() + PARTING_SECONDS)

    def _outcome(self) -> int:
        if self._status is not None:
            return self._status
        return Status.OK if self._asked is None else 128 + self._asked

    def _stand(self) -> None:
        options = self._options
        with connection.connected(options) as client:
            say_cuts("elect", options, client)
            self._client = client
            while True:
                self._election = election = zklock.LeaderElection(
                    client,
                    options.path,
                    identity=options.identity or identity_of(self._command),
                    payload=options.payload,
                    grace=math.inf,
                )
                if self._asked is None:
                    check_not_inside(options.path, lambda: _leaders(election))  # noqa: B023
                    election.run(self.lead, on_error="raise")
                if self._status is not None or self._told.wait(self._pause):
                    return

    def _heed(self, number: int) -> None:
        """Pass the signal on to the command if it runs; end the candidacy if it asks for that."""
        happened = self._happened
        if is_passed(number, self._options, runs=happened is not None):
            if happened is not None:
                happened.put(Passed(number))
            return
        self._asked = number
        self._told.set()
        if happened is not None:
            happened.put(Asked(number))
        elif self._election is not None:
            self._election.stop()

    def lead(self, leadership: zklock.Leadership) -> None:
        """Run the command; it has ended when this returns."""
        happened = self._happened = Happenings()
        try:
            # Checked only after _happened is set: so either the command gets a signal, or this
            # check finds it.
            if self._asked is None:
                self._run(leadership, happened)
            elif self._election is not None:
                self._election.stop()
        finally:
            self._happened = None

    def _run(self, leadership: zklock.Leadership, happened: Happenings) -> None:
        told = threading.Thread(
            target=_pass_on, args=(leadership, happened), name="zklock-elect-told", daemon=True
        )
        told.start()
        environ = environ_of(leadership, self._options)
        supervisor.reap(lambda *_: None, spare=self._foreign)  # what an earlier command has left
        child = Child(happened)
        try:
            term = Term(self._options, self._client, leadership)
            outcome = run_command(self._command, environ, child, happened, term)
        finally:
            child.close()
        status = outcome.status
        self._happened = None
        over = outcome.ended or leadership.should_stop.is_set()
        leadership.resign()
        told.join()
        again = self._options.again and not (outcome.hung_up and not self._options.pass_hup)
        cannot = status in {Status.NOT_FOUND, Status.NOT_EXECUTABLE}
        self._failures = 0 if over or not status else self._failures + 1
        self._pause = pause_after(self._failures, _RETRY) if self._failures else 0.0
        if self._asked is not None or cannot or not (over or again):
            self._status = status
        elif self._failures:
            say("elect", f"stands again in {self._pause:.1f} s; the status was {status}")
        else:
            say("elect", f"stands again; the status was {status}")
            return
        if self._election is not None:
            self._election.stop()


def _leaders(election: zklock.LeaderElection) -> list[zklock.Contender]:
    leader = election.leader()
    return [] if leader is None else [leader]


def _pass_on(leadership: zklock.Leadership, happened: Happenings) -> None:
    """End the command when the leadership should end; a lost callback already tells of a loss."""
    leadership.should_stop.wait()
    if not leadership.lost.is_set():
        happened.put(Asked(signal.SIGTERM))
