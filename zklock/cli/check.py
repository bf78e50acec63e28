"""``zklock check``: whether a token is still that of a holder."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from zklock.cli import connection
from zklock.cli.locks import places
from zklock.cli.status import Status

PATH_VARIABLE = "ZKLOCK_PATH"
TOKEN_VARIABLE = "ZKLOCK_TOKEN"


def add(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "check",
        help="tell whether a token still holds its lock",
        description="Ask ZooKeeper whether a token is that of the lock's present holder: exit "
        "status 0 if it is, 1 if not. Under 'zklock run' both arguments are known. What it says "
        "was true when ZooKeeper answered; a resource that must not see a late write has to "
        "compare tokens.",
    )
    for name, variable, kind in (
        ("path", PATH_VARIABLE, connection.lock_path),
        ("token", TOKEN_VARIABLE, connection.token),
    ):
        known = os.environ.get(variable)
        parser.add_argument(
            name,
            metavar=name.upper(),
            type=kind,
            nargs="?",
            default=known,
            help=f"default ${variable}",
        )
    connection.add_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Compare the token with those of the holders."""
    if options.path is None or options.token is None:
        options.parser.error(f"give PATH and TOKEN, or set {PATH_VARIABLE} and {TOKEN_VARIABLE}")
    with connection.connected(options) as client:
        holders = [it.contender for it in places(client, options.path) if it.contender.holds]
    if any(it.token == options.token for it in holders):
        return Status.OK
    now = ", ".join(f"{it.identity} ({it.token})" for it in holders) or "nobody"
    print(f"zklock check: {options.path}: held by {now}", file=sys.stderr)
    return Status.FAILED
