"""Arguments to a command, and what every command's end has in common."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import zklock
from zklock.cli import break_, check, elect, list, run, show
from zklock.cli.demo import command as demo
from zklock.cli.ending import Ended
from zklock.cli.status import Status

COMMANDS = (run, elect, show, list, check, break_, demo)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(Status.USAGE, f"{self.prog}: {message}\n")


def build() -> argparse.ArgumentParser:
    """Return the parser; what it parses has ``run``, the function of the command."""
    parser = _Parser(prog="zklock", description="Fair, fenced locks on ZooKeeper.")
    parser.add_argument("--version", action="version", version=f"zklock {zklock.__version__}")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="log what the libraries do, on standard error"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run the command, return its exit status."""
    options = build().parse_args(argv)
    log = logging.StreamHandler() if options.verbose else logging.NullHandler()
    logging.basicConfig(level=logging.INFO, handlers=[log])
    try:
        status = int(options.run(options))
        sys.stdout.flush()
    except Ended as ended:
        return ended.status
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone. The interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Status.BROKEN_PIPE
    except (zklock.ZkLockError, ValueError) as error:
        print(f"zklock: {error}", file=sys.stderr)
        return _STATUS.get(type(error), Status.FAILED)
    return status


_STATUS = {
    zklock.NoAnswer: Status.UNAVAILABLE,
    zklock.AccessDenied: Status.DENIED,
    ValueError: Status.USAGE,
}
