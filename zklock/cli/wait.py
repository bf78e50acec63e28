"""``zklock wait``: until a lock is free."""

from __future__ import annotations

import argparse
import math

from zklock._ground.clock import clock
from zklock.cli import connection
from zklock.cli.ending import ends_on_signals
from zklock.cli.saying import say
from zklock.cli.status import Status
from zklock.cli.view.model import LockView
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import named
from zklock.cli.watch import queue_of

_TURN_SECONDS = 0.5

DESCRIPTION = """\
Wait until nobody holds a lock, or until a permit of a semaphore is free and nobody waits for it. It
does not queue, and takes nothing: another may take the lock at once. Exit status 0: it was free;
1: not within --wait."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    connection.add_wait(parser)


def run(options: argparse.Namespace) -> int:
    until = clock() + (options.wait or math.inf)
    with ends_on_signals(), connection.connected(options) as client:
        reader = Reader(client, options.path, follow=True)
        reader.read()
        view = queue_of(reader)
        while view is not None and not is_free(view):
            left = until - clock()
            if left <= 0:
                names = ", ".join(named(place.identity) for place in view.holders)
                say("wait", f"{options.path} is held by {names}")
                return Status.FAILED
            if reader.refresh(
                min(left, _TURN_SECONDS)
            ):  # what is free is learnt from ZooKeeper alone
                view = queue_of(reader)
    return Status.OK


def is_free(view: LockView) -> bool:
    """Whether one that came now would be granted."""
    if view.limit is not None:
        return len(view.holders) < view.limit and not view.waiting
    return not view.places
