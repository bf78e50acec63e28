"""``zklock watch``: the events of a queue, as they happen."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from ssl import SSLContext
from typing import Any

from kazoo.client import KazooClient

from zklock.cli import connection
from zklock.cli.ending import ends_on_signals
from zklock.cli.saying import say
from zklock.cli.view import happened, servers
from zklock.cli.view.model import LockView, find
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import json_of, named

_TURN_SECONDS = 0.5

DESCRIPTION = """\
Print the holders and the waiters, and then each event: queued, granted, released, withdrawn, ended
(its session, too). It prints one event a line, until a signal ends it. It prints 'left' if the
server does not tell whether a session lives: put 'dump' on its whitelist of four-letter words."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    parser.add_argument("--json", action="store_true", help="print a JSON object a line")


def run(options: argparse.Namespace) -> int:
    with ends_on_signals(), connection.connected(options) as client:
        reader = Reader(client, options.path, follow=True)
        tls = connection.tls_context(options)
        reader.read()
        view = queue_of(reader)
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
                now = queue_of(reader)
                for event in happened.between(view, now, _life(client, tls)):
                    tell(options.path, event)
                view = now


def queue_of(reader: Reader) -> LockView | None:
    """Return the lock at the root; ``None`` if it has no contenders.

    ``NoAuthError`` if ACLs hide them.
    """
    reader.must_see_queue()
    lock = find(reader.root, reader.facts).lock
    return lock if lock is not None and lock.places else None


def _life(client: KazooClient, tls: SSLContext | None) -> Callable[[int], bool | None]:
    """Return what tells whether a session lives; ``None``: the server does not tell.

    The client's server is asked once, and only if there is a question.
    """

    @cache
    def alive() -> set[int] | None:
        host, _, port = client.handler.server.rpartition(":")
        with contextlib.suppress(OSError):
            return servers.sessions(host.strip("[]"), int(port), tls)
        return None

    return lambda session: None if (living := alive()) is None else session in living


def _tell(path: str, event: happened.QueueEvent) -> None:
    place = event.place
    token = place.contender.token
    now = datetime.now().strftime("%H:%M:%S")
    print(
        f"{now}  {event.what.value:<9}  {place.kind}  {token if token is not None else '-'}  "
        f"{place.session or '-'}  {named(place.contender.identity)}  "
        f"({event.waiting} waiting)",
        flush=True,
    )


def _tell_json(path: str, event: happened.QueueEvent) -> None:
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
