"""The option that says where the servers' admin servers answer."""

from __future__ import annotations

import argparse

from zklock.cli import settings


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--admin-port``."""
    parser.add_argument(
        "--admin-port",
        type=port,
        default=8080,
        metavar="PORT",
        help="port of the servers' admin servers (HTTP); 0: do not ask them; default 8080",
    )


def port(text: str) -> int:
    """Read the number of a port or 0, for ``argparse``."""
    number = settings.whole(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text}: not a port")
    return number
