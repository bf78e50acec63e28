"""``zklock watch``: the events of a queue, as they happen."""

from __future__ import annotations

import argparse
import contextlib
from datetime import UTC, datetime
from ssl import SSLContext
from typing import Any

from kazoo.client import KazooClient

from zklock.cli import connection
from zklock.cli.ending import ends_on_signals
from zklock.cli.saying import say
from zklock.cli.view import happened, servers
from zklock.cli.view.model import LockView, Picture, picture
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import json_of, named

_TURN_SECONDS = 0.5

DESCRIPTION = """\
Print the holders and the waiters, and then each event: queued, granted, released, withdrawn, ended
(its session, too). It prints one event a line, until a signal ends it. It prints 'left' if the
server does not tell whether a session lives: put 'dump' on its whitelist of four-letter words."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    parser.add_argument("--json", action="store_true", help="print a JSON object a line")


def run(options: argparse.Namespace) -> int:
    """Print events until a signal."""
    with ends_on_signals(), connection.connected(options) as client:
        reader = Reader(client, options.path, follow=True)
        sessions = _Sessions(client, connection.tls_context(options))
        view = queue_of(reader, reader.read())
        tell = _tell_json if options.json else _tell
        for event in happened.first(view):
            tell(options.path, event)
        cut = False
        while True:
            try:
                changed = reader.refresh(_TURN_SECONDS)
            except ConnectionError:
                if not cut:
                    cut = True
                    _tell_connection(options, "interrupted")
                continue
            if cut:
                cut = False
                _tell_connection(options, "resumed")
            if changed:
                sessions.forget()
                now = queue_of(reader, picture(reader.facts))
                for event in happened.between(view, now, sessions.lives):
                    tell(options.path, event)
                view = now


def queue_of(reader: Reader, found: Picture) -> LockView | None:
    """Return the lock at the root; ``None`` if it has no contenders.

    ``NoAuthError`` if ACLs hide them.
    """
    reader.must_see_queue()
    return next((lock for lock in found.locks if lock.path == reader.root), None)


class _Sessions:
    """Which sessions live, as the client's server lists them; asked at most once a look."""

    def __init__(self, client: KazooClient, tls: SSLContext | None) -> None:
        self._client = client
        self._tls = tls
        self._alive: set[int] | None = None
        self._refused = False

    def forget(self) -> None:
        """Ask again at the next question."""
        self._alive = None

    def lives(self, session: int) -> bool | None:
        """Whether the session lives; ``None``: the server does not tell."""
        if self._alive is None and not self._refused:
            host, _, port = self._client.handler.server.rpartition(":")
            with contextlib.suppress(OSError):
                self._alive = servers.sessions(host.strip("[]"), int(port), self._tls)
                self._refused = self._alive is None
        return None if self._alive is None else session in self._alive


def _tell(path: str, event: happened.Event) -> None:
    place = event.place
    token = place.contender.token
    now = datetime.now().strftime("%H:%M:%S")
    print(
        f"{now}  {event.what.value:<9}  {place.kind}  {token if token is not None else '-'}  "
        f"{place.session or '-'}  {named(place.contender.identity)}  "
        f"({event.waiting} waiting)",
        flush=True,
    )


def _tell_json(path: str, event: happened.Event) -> None:
    _print_json(
        event.what.value,
        path,
        contender=event.place.to_json(),
        holders=event.holders,
        waiting=event.waiting,
    )


def _tell_connection(options: argparse.Namespace, what: str) -> None:
    if options.json:
        _print_json(what, options.path)
    else:
        say("watch", f"the connection is {what}")


def _print_json(what: str, path: str, **more: Any) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    print(json_of(at=now, event=what, path=path, **more), flush=True)
