"""``zklock check``: tells whether a token still belongs to a holder."""

from __future__ import annotations

import argparse
import os

from zklock.cli import connection
from zklock.cli.saying import say
from zklock.cli.settings import PATH_VARIABLE, TOKEN_VARIABLE
from zklock.cli.status import Status
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import named

DESCRIPTION = """\
Ask ZooKeeper whether a token is that of the lock's present holder: exit status 0 if it is, 1 if
not. Under 'zklock run' both arguments have defaults. The answer was true when ZooKeeper gave it; a
resource that must not see a late write has to compare tokens."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(options: argparse.Namespace) -> int:
    """Compare the token with the holders' tokens."""
    if options.path is None or options.token is None:
        options.parser.error(f"give PATH and TOKEN, or set {PATH_VARIABLE} and {TOKEN_VARIABLE}")
    with connection.connected(options) as client:
        reader = Reader(client, options.path, alone=True)
        lock = reader.find().lock
        reader.must_see_queue()
    holders = [] if lock is None else lock.holders
    if any(it.token == options.token for it in holders):
        return Status.OK
    now = ", ".join(f"{named(it.identity)} ({it.token})" for it in holders) or "nobody"
    say("check", f"{options.path}: held by {now}")
    return Status.FAILED
