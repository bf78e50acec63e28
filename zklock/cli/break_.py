"""``zklock break``: take a lock from its holder."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from zklock.cli import connection
from zklock.cli.locks import Place, look
from zklock.cli.status import Status


def add(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "break",
        help="take a lock from its holder",
        description="Delete the node of a holder of a lock or a semaphore, so that the next in the "
        "queue is granted at once. The holder is told, if it lives, but may be in the middle of "
        "its work: only a resource that compares tokens is safe then. Exit status 1 if nobody "
        "holds, or not with this token any more.",
    )
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "token",
        metavar="TOKEN",
        type=connection.token,
        nargs="?",
        help="the holder's, as 'zklock show' prints it",
    )
    which.add_argument(
        "--oldest", action="store_true", help="whoever holds, of several the oldest holder"
    )
    parser.add_argument("--json", action="store_true", help="print whose it was as a JSON object")
    connection.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Break it, and print whose it was."""
    with connection.connected(options) as client:
        lock, _ = look(client, options.path)
        broken = lock.break_lock(options.token)
    if broken is None:
        print(f"zklock break: {options.path}: held by nobody", file=sys.stderr)
        return Status.FAILED
    if options.json:
        print(json.dumps({"path": options.path, "broken": Place(broken).to_json()}))
    else:
        print(f"{options.path} taken from {broken.identity} ({broken.token})")
    return Status.OK
