"""``zklock elect``: runs a command on one member of an election, only while that member leads."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue

import zklock
from zklock._election.options import pause_after
from zklock.cli import connection, supervisor
from zklock.cli.child import Child
from zklock.cli.runner import Runner, add_command_options, check_not_inside, command_of
from zklock.cli.saying import say
from zklock.cli.settings import HELD_VARIABLE, HOSTS, PATH_VARIABLE, TOKEN_VARIABLE, utf8
from zklock.cli.status import Status

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
    parser.add_argument(
        "--again", action="store_true", help="stand again when the command has ended by itself"
    )
    parser.add_argument(
        "--payload",
        type=utf8,
        default="",
        help="more text that others see, such as an address",
    )
    add_command_options(parser, "leadership")


def run(options: argparse.Namespace) -> int:
    """Stand for election, and run the command in each term."""
    return _Elect(command_of(options), options).attend()


class _Elect(Runner):
    """One ``zklock elect``."""

    NAME = "elect"

    def __init__(self, command: Sequence[str], options: argparse.Namespace) -> None:
        super().__init__(command, options)
        self._failures = 0  # of the command, in a row
        self._foreign = supervisor.children_of(os.getpid())

    def work(self) -> None:
        """Connect; stand and run the command until it has ended for good."""
        options = self.options
        with connection.connected(options) as self.client:
            self.say_cuts()
            election = self.contender = zklock.LeaderElection(
                self.client, options.path, identity=self.identity, payload=options.payload
            )
            pause = 0.0
            while not self.told.wait(pause):
                check_not_inside(options.path, lambda: _leaders(election))
                status = self._lead(election)
                if self.status is not None:
                    return
                if self._failures:
                    pause = pause_after(self._failures, _RETRY)
                    say("elect", f"stands again in {pause:.1f} s; the status was {status}")
                else:
                    pause = 0.0
                    say("elect", f"stands again; the status was {status}")

    def _lead(self, election: zklock.LeaderElection) -> int:
        """Wait until this member leads, and run the command; return the command's status."""
        leadership = election.acquire()
        assert leadership is not None  # it has no time limit
        supervisor.reap(lambda *_: None, spare=self._foreign)  # what an earlier command has left
        self.happened = SimpleQueue()
        child = Child(self.happened)
        try:
            outcome = self.run_while(leadership, child, leadership.should_stop)
        finally:
            child.close()
        status, options = outcome.status, self.options
        over = outcome.ended or leadership.should_stop.is_set()
        again = options.again and not (outcome.hung_up and not options.pass_hup)
        cannot = status in {Status.NOT_FOUND, Status.NOT_EXECUTABLE}
        self._failures = 0 if over or not status else self._failures + 1
        if self.asked is not None or cannot or not (over or again):
            self.status = status
        with suppress(zklock.LockLost):
            leadership.release()
        return status


def _leaders(election: zklock.LeaderElection) -> list[zklock.Contender]:
    leader = election.leader()
    return [] if leader is None else [leader]
