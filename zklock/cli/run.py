"""``zklock run``: a command that runs while a lock is held, and no longer."""

from __future__ import annotations

import argparse
import contextlib
import math
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial

import zklock
from zklock._ground.clock import clock
from zklock._recipes import names
from zklock.cli import connection, settings
from zklock.cli.child import Child
from zklock.cli.ending import Ending
from zklock.cli.runner import Runner, add_command_options, check_not_inside, command_of
from zklock.cli.saying import say
from zklock.cli.settings import HELD_VARIABLE, PATH_VARIABLE, TOKEN_VARIABLE
from zklock.cli.status import Status

_TELL_SECONDS = 2.0
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
    parser.add_argument(
        "--all",
        action="store_true",
        help="keep the lock until all processes that the command has started have ended, too",
    )
    add_command_options(parser, "lock")


def run(options: argparse.Namespace) -> int:
    command = command_of(options)
    if options.permits is not None and options.shared:
        options.parser.error("argument --permits: not allowed with argument -s/--shared")
    return _Run(command, options).attend()


class _Run(Runner):
    """One ``zklock run``."""

    NAME = "run"

    def __init__(self, command: Sequence[str], options: argparse.Namespace) -> None:
        super().__init__(command, options)
        self._tells = options.verbose or sys.stderr.isatty()
        self._decided = threading.Event()  # whether it gets the lock
        self._place: int | None = None  # this contender's sequence number, once it was seen

    def _attend(self, ending: Ending) -> int:
        # Before it is needed: it starts while ZooKeeper is asked.
        self._child = Child(self.happened)
        try:
            return super()._attend(ending)
        finally:
            self._child.close()

    def work(self) -> None:
        """Connect, acquire, run the command, release."""
        options = self.options
        if self._tells:
            with contextlib.suppress(RuntimeError):  # no thread can start: nothing is told
                threading.Thread(target=self._tell, name="zklock-run-tell", daemon=True).start()
        try:
            with connection.connected(options) as self.client:
                self.say_cuts()
                grant = self._acquire()
                self._decided.set()
                if grant is not None:
                    self._hold(grant)
                    return
                if self._tells:
                    self._say("gives up")
                self.status = options.conflict_exit_code
        finally:
            self._decided.set()

    def _acquire(self) -> zklock.Grant | None:
        """Make the lock that the options name, and acquire it."""
        options, path, name = self.options, self.options.path, self.identity
        acquire: Callable[..., zklock.Grant | None]
        if options.limit is None and options.permits is None:
            kind = zklock.ReadLock if options.shared else zklock.Lock
            lock = self.contender = kind(self.client, path, identity=name)
            acquire = lock.acquire
            if not (options.nonblock or options.wait):
                check_not_inside(path, lambda: self._blockers(lock.contenders()))
        else:
            semaphore = zklock.Semaphore(self.client, path, limit=options.limit, identity=name)
            self.contender = semaphore
            acquire = partial(semaphore.acquire, permits=options.permits or 1)
        return acquire(blocking=not options.nonblock, timeout=options.wait)

    def _blockers(self, queue: Sequence[zklock.Contender]) -> list[zklock.Contender]:
        """Return those that this contender would have to wait for."""
        if self.options.shared and all(_reads(one) for one in queue):
            return []
        return [one for one in queue if one.holds]

    def _hold(self, grant: zklock.Grant) -> None:
        """Run the command, keep the lock for as long as it is wanted, and release it."""
        options, until = self.options, clock() + self.options.at_least
        outcome = self.run_while(grant, self._child)
        self.status = Status.LOST if outcome.ended else outcome.status
        if outcome.hung_up and not options.pass_hup:
            self.end(signal.SIGHUP)
        if outcome.ran and not outcome.ended:
            while grant.held and (left := until - clock()) > 0:
                if self.told.wait(min(left, grant.remaining())):
                    break
        try:
            grant.release()
        except zklock.LockLost:
            self.status = Status.LOST

    def _tell(self) -> None:
        """Say what this process waits for, once it has waited for a while."""
        # In any case before it gives up: then it knows its place.
        pause, silent = min(_TELL_SECONDS, (self.options.wait or math.inf) / 2), False
        while not self._decided.wait(pause):
            if self.contender is not None:
                self._say("waits")
                return
            if not silent:
                silent = True
                say("run", f"no ZooKeeper server of {self.options.hosts} has answered yet")

    def _say(self, what: str) -> None:
        from kazoo.exceptions import KazooException  # noqa: PLC0415 - most get their lock at once

        from zklock.cli.standing import standing  # noqa: PLC0415

        with contextlib.suppress(zklock.ZkLockError, KazooException):  # nothing is told
            told, self._place = standing(self.client, self.options.path, self._place)
            say("run", f"{what}: {told}")


def _reads(one: zklock.Contender) -> bool:
    return names.kind_of(one.path.rpartition("/")[2]) is names.Kind.READ
