"""What commands say on standard error: their lines, and those of the log under ``-v``.

Identities and paths come from others. What would steer a terminal, or begin another line, is
escaped in each of these lines.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from zklock.cli.status import Status
from zklock.cli.view.text import CLOCKS_DIFFER, lines, plain, short, some

if TYPE_CHECKING:
    from types import TracebackType

    from zklock.cli.view.model import LockView
    from zklock.cli.view.reader import Reader


def say(command: str | None, what: str) -> None:
    """Say a sentence in the name of a command, or of zklock.

    It is dropped if standard error cannot be written to: what the command does goes on.
    """
    name = "zklock" if command is None else f"zklock {command}"
    with contextlib.suppress(OSError):
        print(f"{name}: {plain(what)}", file=sys.stderr, flush=True)


def say_missing(command: str, path: str) -> Status:
    """Say that there is no such node; return the exit status for that."""
    say(command, f"{path} does not exist")
    return Status.MISSING


def say_hidden(command: str, reader: Reader) -> None:
    if reader.hidden:
        say(command, f"ACLs forbid reading {some(reader.hidden)}")


def say_orphans(command: str, locks: Iterable[LockView]) -> None:
    """Say which contenders are of no session, and how to remove them."""
    for lock in locks:
        for what, todo in lock.orphans():
            say(command, f"a contender may be of a dead program: {what}: {todo}")


def say_limits(command: str, reader: Reader) -> None:
    """Say what a picture lacks: nodes that ACLs hide, and ages that are not exact."""
    say_hidden(command, reader)
    if reader.facts.behind >= CLOCKS_DIFFER:
        say(
            command,
            f"ages are approximate: this machine's clock is {short(reader.facts.behind)} or more "
            "behind the clock of ZooKeeper's leader: keep both by NTP",
        )


class LogFormatter(logging.Formatter):
    """A record is one line; the traceback below it keeps its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return plain(super().formatMessage(record))

    def formatException(  # noqa: N802 - logging's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        return lines(super().formatException(ei))
