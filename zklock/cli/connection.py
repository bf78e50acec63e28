"""The options by which commands find ZooKeeper, and a connection for as long as one runs."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator

from kazoo.client import KazooClient

import zklock

HOSTS_VARIABLE = "ZKLOCK_HOSTS"
DEFAULT_HOSTS = "127.0.0.1:2181"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--hosts``, ``--session-timeout`` and ``--connect-timeout``."""
    parser.add_argument(
        "--hosts",
        default=os.environ.get(HOSTS_VARIABLE, DEFAULT_HOSTS),
        help=f"host:port,…[/chroot]; default ${HOSTS_VARIABLE}, else {DEFAULT_HOSTS}",
    )
    parser.add_argument(
        "--session-timeout",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="to ask ZooKeeper for; default 10",
    )
    parser.add_argument(
        "--connect-timeout",
        type=seconds,
        default=15.0,
        metavar="SECONDS",
        help="to wait for the first connection; default 15",
    )


@contextlib.contextmanager
def connected(options: argparse.Namespace) -> Iterator[KazooClient]:
    """Return a client of the ZooKeeper that the options name, to be stopped in the end."""
    client = zklock.connect(
        options.hosts, options.session_timeout, start_timeout=options.connect_timeout
    )
    try:
        yield client
    finally:
        client.stop()
        client.close()


def seconds(text: str) -> float:
    """Read a number of seconds above 0; for ``argparse``."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: not a number of seconds above 0")
    return value


def lock_path(text: str) -> str:
    """Read the path of a lock; for ``argparse``."""
    try:
        return zklock.names.check_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def token(text: str) -> zklock.FencingToken:
    """Read a fencing token; for ``argparse``."""
    try:
        return zklock.FencingToken.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
