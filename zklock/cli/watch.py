"""``zklock watch``: the events of a queue, as they happen."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from ssl import SSLContext
from typing import Any

from kazoo.client import KazooClient

from zklock.cli import connection
from zklock.cli.ending import ends_on_signals
from zklock.cli.saying import say
from zklock.cli.view import servers
from zklock.cli.view.model import LockView, QueuePlace, What, find
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import json_of, named

_TURN_SECONDS = 0.5

DESCRIPTION = """\
Print the holders and the waiters, and then each event: queued, granted, released, withdrawn, ended
(its session, too). It prints one event a line, until a signal ends it. It prints 'left' if the
server does not tell whether a session lives: put 'dump' on its whitelist of four-letter words."""


class Happened(Enum):
    HOLDS = "holds"  # it held at the first look
    WAITS = "waits"  # it waited at the first look
    QUEUED = "queued"
    GRANTED = "granted"
    RELEASED = "released"
    WITHDRAWN = "withdrawn"
    ENDED = "ended"  # its session, too: in order, or by a crash
    LEFT = "left"  # whether its session lives cannot be told


def first(view: LockView | None) -> Iterator[tuple[Happened, QueuePlace]]:
    """Yield what the first look shows."""
    for place in view.places if view else ():
        yield Happened.HOLDS if place.holds else Happened.WAITS, place


def between(
    before: LockView | None, after: LockView | None, lives: Callable[[int], bool | None]
) -> Iterator[tuple[Happened, QueuePlace]]:
    """Yield what happened between two looks: first who left, then who came, in queue order.

    ``lives`` tells whether a session still exists; ``None``: that cannot be told.
    """
    was = {place.path: place for place in (before.places if before else ())}
    now = {place.path: place for place in (after.places if after else ())}
    holding = {place.owner for place in now.values() if place.holds}
    permits = before is not None and before.what is What.SEMAPHORE
    for path, place in was.items():
        # A waiter for permits leaves the queue when it has them.
        granted = permits and not place.holds and place.owner in holding
        if path not in now and not granted:
            yield _leaving(place, lives), place
    for path, place in now.items():
        known = was.get(path)
        if place.holds and not (known and known.holds):
            yield Happened.GRANTED, place
        elif known is None:
            yield Happened.QUEUED, place


def _leaving(place: QueuePlace, lives: Callable[[int], bool | None]) -> Happened:
    alive = lives(place.session_id) if place.session_id is not None else None
    if alive is None:
        return Happened.LEFT
    if not alive:
        return Happened.ENDED
    return Happened.RELEASED if place.holds else Happened.WITHDRAWN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    parser.add_argument("--json", action="store_true", help="print a JSON object a line")


def run(options: argparse.Namespace) -> int:
    with ends_on_signals(), connection.connected(options) as client:
        reader = Reader(client, options.path, follow=True)
        tls = connection.tls_context(options)
        reader.read()
        view = queue_of(reader)
        for event in first(view):
            _tell(options, view, *event)
        cut = False
        while True:
            changed = reader.refresh(_TURN_SECONDS)
            if cut != (changed is None):
                cut = changed is None
                _tell_connection(options, "interrupted" if cut else "resumed")
            if changed:
                before, view = view, queue_of(reader)
                for event in between(before, view, _life(client, tls)):
                    _tell(options, view, *event)


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
            return servers.sessions(servers.Asked(host.strip("[]"), int(port), tls=tls))
        return None

    return lambda session: None if (living := alive()) is None else session in living


def _tell(
    options: argparse.Namespace, view: LockView | None, what: Happened, place: QueuePlace
) -> None:
    """Tell of an event; ``view``: what is there after all that happened at that look."""
    holders, waiting = (len(view.holders), len(view.waiting)) if view else (0, 0)
    if options.json:
        told = place.to_json()
        _print_json(options, what.value, contender=told, holders=holders, waiting=waiting)
        return
    now = datetime.now().strftime("%H:%M:%S")
    print(
        f"{now}  {what.value:<9}  {place.kind}  {place.token or '-'}  {place.session or '-'}  "
        f"{named(place.identity)}  ({waiting} waiting)",
        flush=True,
    )


def _tell_connection(options: argparse.Namespace, what: str) -> None:
    if options.json:
        _print_json(options, what)
    else:
        say("watch", f"the connection is {what}")


def _print_json(options: argparse.Namespace, what: str, **more: Any) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    print(json_of(at=now, event=what, path=options.path, **more), flush=True)
