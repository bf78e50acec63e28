"""``zklock top``: all locks below a path, on a live screen or once."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from kazoo.client import KazooClient

from zklock._ground.clock import clock
from zklock.cli import connection
from zklock.cli.ending import Ended, ends_on_signals
from zklock.cli.saying import say, say_hidden, say_missing
from zklock.cli.status import Status
from zklock.cli.view import servers, table
from zklock.cli.view.live import look, looks
from zklock.cli.view.model import Look
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import json_of

_STOP_SECONDS = 1.0
_ASKED_EVERY = 30.0
DESCRIPTION = """\
Show all locks, semaphores, elections and pools at and below a node: the holders, the
number of waiters, and their times. On a terminal it is a live screen that follows by watches, and
needs textual; --once and --json print the present state. Exit status 66: with --once or --json,
there is no such node."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    connection.add_root(parser)
    parser.add_argument("--once", action="store_true", help="print a table, and end")
    parser.add_argument("--json", action="store_true", help="print one JSON object, and end")
    parser.add_argument(
        "--sort",
        type=lambda text: text.replace(" ", "-"),  # as 1.1.0 had it
        choices=[str(order) for order in table.Order],
        default=str(table.Order.WAITING),
        metavar="BY",
        help="waiting (the default), longest-wait, time-held, path",
    )
    parser.add_argument(
        "--filter",
        default="",
        metavar="TEXT",
        help="only what has this text in its path, kind or holder",
    )
    connection.add_interval(parser)
    connection.add_admin_port(parser)


def run(options: argparse.Namespace) -> int:
    if options.json or options.once:
        return _once(options)
    try:
        from zklock.cli.screen import Top  # noqa: PLC0415
    except ImportError:
        say("top", "the live screen needs textual: pip install textual; or pass --once")
        return Status.USAGE
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # Textual draws on the latter
        say("top", "the live screen needs a terminal; or pass --once")
        return Status.USAGE
    with ends_on_signals() as ending, connection.connected(options, _STOP_SECONDS) as client:
        reader = Reader(client, options.root, follow=True)
        seen = addressed(looks(reader, options.interval), partial(_addresses, client, options))
        screen = Top(seen, options.root, options.sort, options.filter)
        ending.divert(screen.end_by)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Textual may wait for a terminal that is gone
        screen.run()
        if screen.failed is not None:
            raise screen.failed
        if screen.ended_by is not None:
            raise Ended(screen.ended_by)
    return Status.OK


def _once(options: argparse.Namespace) -> int:
    with connection.connected(options) as client:
        reader = Reader(client, options.root)
        seen = look(reader, reader.read())
        reader.must_see_root()
        seen = replace(seen, addresses=_addresses(client, options))
    if seen.missing:
        return say_missing("top", options.root)
    if options.json:
        say_hidden("top", reader)
        print(json_of(path=options.root, **table.to_json(seen, options.sort, options.filter)))
        return Status.OK
    print(table.summary(seen))
    print(*table.locks(seen, options.sort, options.filter).lines(), sep="\n")
    return Status.OK


def _addresses(client: KazooClient, options: argparse.Namespace) -> dict[int, str]:
    """Return the addresses of sessions, as far as the servers tell."""
    found, tls = dict[int, str](), connection.tls_context(options)
    for host, port in client.hosts:
        at = servers.Asked(host, port, options.admin_port, tls, servers.QUICK)
        found |= servers.connections(at)
    return found


def addressed(seen: Iterator[Look], ask: Callable[[], Mapping[int, str]]) -> Iterator[Look]:
    """Yield each look; from the second on with addresses, which are asked for every 30 s."""
    told: Mapping[int, str] = {}
    due = -math.inf
    for one in seen:
        yield replace(one, addresses=told)
        if clock() >= due:
            told, due = ask(), clock() + _ASKED_EVERY
