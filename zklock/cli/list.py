"""``zklock ls``: the locks below a node."""

from __future__ import annotations

import argparse
import json
from typing import Any

from zklock.cli import connection
from zklock.cli.locks import below, places
from zklock.cli.status import Status


def add(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "ls",
        help="list the locks below a node",
        description="Print the locks in use at and below a node: how many wait, and who holds. "
        "A lock without contenders cannot be told from any other node.",
    )
    parser.add_argument(
        "root", metavar="ROOT", nargs="?", default="/", type=_root, help="where to look; default /"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for each lock")
    connection.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the locks."""
    with connection.connected(options) as client:
        for path in below(client, options.root, options.session_timeout):
            queue = places(client, path)
            holders = [it for it in queue if it.contender.holds]
            waiting = len(queue) - len(holders)
            if options.json:
                line = {
                    "path": path,
                    "holders": [it.to_json() for it in holders],
                    "waiting": waiting,
                }
                print(json.dumps(line))
            elif queue:  # else the last one has left meanwhile
                names = ", ".join(it.contender.identity for it in holders)
                print(f"{path}  held by {names}  {waiting} waiting")
    return Status.OK


def _root(text: str) -> str:
    return text if text == "/" else connection.lock_path(text)
