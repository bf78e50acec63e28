"""``zklock show``: who holds a lock, and who waits for it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from zklock.cli import connection
from zklock.cli.locks import places
from zklock.cli.status import Status


def add(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "show",
        help="show the holder and the queue of a lock",
        description="Print the contenders of a lock, of zklock and of other libraries, in queue "
        "order, with token, session and identity.",
    )
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    connection.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the queue."""
    with connection.connected(options) as client:
        queue = places(client, options.path)
    if options.json:
        print(json.dumps({"path": options.path, "contenders": [it.to_json() for it in queue]}))
    elif not queue:
        print(f"{options.path} is free")
    else:
        width = max(len(str(it.session)) for it in queue)
        for place in queue:
            it = place.contender
            state = "holds" if place.contender.holds else "waits"
            print(f"{state}  {it.token!s:27}  {place.session!s:>{width}}  {it.identity}")
    return Status.OK
