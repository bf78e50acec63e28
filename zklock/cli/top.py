"""``zklock top``: all locks below a path, on a live screen or once."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from ssl import SSLContext
from typing import TypeAlias

from kazoo.client import KazooClient

from zklock._ground.clock import clock
from zklock.cli import connection
from zklock.cli.ending import Ended, ends_on_signals
from zklock.cli.saying import columns, say, say_hidden, say_missing
from zklock.cli.status import Status
from zklock.cli.view import servers, table
from zklock.cli.view.live import look, looks
from zklock.cli.view.model import Look
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import json_of

_STOP_SECONDS = 1.0
_SOON, _LATER, _SILENT = 5.0, 30.0, 60.0
Host: TypeAlias = tuple[str, int]
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
        type=_order,
        choices=[each.value for each in table.Order],
        default=table.Order.WAITING.value,
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
    options.sort = table.Order(options.sort)
    if options.json or options.once:
        return _once(options)
    try:
        from zklock.cli.screen import Top, drawn_on_stdout  # noqa: PLC0415
    except ImportError:
        say("top", "the live screen needs textual: pip install textual; or pass --once")
        return Status.USAGE
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        say("top", "the live screen needs a terminal; or pass --once")
        return Status.USAGE
    with ends_on_signals() as ending, connection.connected(options, _STOP_SECONDS) as client:
        reader = Reader(client, options.root, follow=True)
        seen = addressed(looks(reader, options.interval), _clients(client, options))
        screen = Top(seen, options.root, options.sort, options.filter, options.interval)
        ending.divert(screen.end_by)
        with drawn_on_stdout():
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
        clients = _clients(client, options)
        clients.ask(sessions_of(seen))
        seen = replace(seen, addresses=clients.addresses)
    if seen.missing:
        return say_missing("top", options.root)
    if options.json:
        say_hidden("top", reader)
        print(json_of(path=options.root, **table.to_json(seen, options.sort, options.filter)))
        return Status.OK
    print(table.summary(seen))
    found = table.locks(seen, options.sort, options.filter)
    for line in found.lines(columns()):
        print(line)
    return Status.OK


def _clients(client: KazooClient, options: argparse.Namespace) -> Clients:
    return Clients(client.hosts, options.admin_port, connection.tls_context(options))


def _order(text: str) -> str:
    """Read the order, for ``argparse``. The words of the screen are taken, too."""
    return text.replace(" ", "-")


class Clients:
    """The addresses of clients. Each server knows those of its own connections.

    It is asked at most every 5 s if there are new sessions, else every 30 s, because a client may
    have gone to another server. One that does not tell is left alone for a minute.
    """

    def __init__(
        self, hosts: Sequence[Host], admin_port: int, tls: SSLContext | None = None
    ) -> None:
        self.addresses: Mapping[int, str] = {}
        self._hosts = hosts
        self._admin_port = admin_port
        self._tls = tls
        self._asked = -math.inf
        self._looked_for: set[int] = set()
        self._silent: dict[Host, float] = {}

    def ask(self, sessions: Collection[int]) -> bool:
        """Ask if it is time to; whether other addresses of these sessions are known now."""
        now = clock()
        new = not self._looked_for.issuperset(sessions)
        if now < self._asked + (_SOON if new else _LATER):
            return False
        self._asked, self._looked_for = now, set(sessions)
        told: dict[int, str] = {}
        for host in self._hosts:
            if now < self._silent.get(host, -math.inf):
                continue
            at = servers.Asked(*host, self._admin_port, self._tls, servers.QUICK)
            some = servers.connections(at)
            if some is None:
                self._silent[host] = clock() + _SILENT
            else:
                told |= some
        before = self.addresses
        self.addresses = {one: told[one] for one in sessions if one in told}
        return self.addresses != before


def addressed(seen: Iterator[Look], clients: Clients) -> Iterator[Look]:
    """Yield each look at once, and again when other addresses are known."""
    last: Look | None = None
    shown = Look()
    for one in seen:
        if one is not last:
            last, shown = one, replace(one, addresses=clients.addresses)
            yield shown
        if clients.ask(sessions_of(one)):
            shown = replace(one, addresses=clients.addresses)
        yield shown


def sessions_of(look: Look) -> set[int]:
    """Return the sessions of all contenders."""
    places = (place for lock in look.locks for place in lock.places)
    return {place.session_id for place in places if place.session_id}
