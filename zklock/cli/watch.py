"""``zklock watch``: the events of a queue, as they happen."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """An event, and how many held and waited after all that happened at that look."""

    what: Happened
    place: QueuePlace
    holders: int
    waiting: int


def first(view: LockView | None) -> Iterator[QueueEvent]:
    """Yield what the first look shows."""
    for place in view.places if view else ():
        what = Happened.HOLDS if place.contender.holds else Happened.WAITS
        yield _event(what, place, view)


def between(
    before: LockView | None, after: LockView | None, lives: Callable[[int], bool | None]
) -> Iterator[QueueEvent]:
    """Yield what happened between two looks: first who left, then who came, in queue order.

    ``lives`` tells whether a session still exists; ``None``: that cannot be told.
    """
    was = {place.contender.path: place for place in (before.places if before else ())}
    now = {place.contender.path: place for place in (after.places if after else ())}
    holding = {place.owner for place in now.values() if place.contender.holds}
    for path, place in was.items():
        if path in now:
            continue
        if not place.contender.holds and _is_semaphore(before) and place.owner in holding:
            continue  # a waiter for permits leaves the queue when it has them
        yield _event(_leaving(place, lives), place, after)
    for path, place in now.items():
        known = was.get(path)
        if place.contender.holds:
            if known is None or not known.contender.holds:
                yield _event(Happened.GRANTED, place, after)
        elif known is None:
            yield _event(Happened.QUEUED, place, after)


def _leaving(place: QueuePlace, lives: Callable[[int], bool | None]) -> Happened:
    session = place.contender.session_id
    alive = lives(session) if session is not None else None
    if alive is None:
        return Happened.LEFT
    if not alive:
        return Happened.ENDED
    return Happened.RELEASED if place.contender.holds else Happened.WITHDRAWN


def _event(what: Happened, place: QueuePlace, view: LockView | None) -> QueueEvent:
    holders, waiting = (len(view.holders), len(view.waiting)) if view else (0, 0)
    return QueueEvent(what, place, holders, waiting)


def _is_semaphore(view: LockView | None) -> bool:
    return view is not None and view.what is What.SEMAPHORE


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
        for event in first(view):
            tell(options.path, event)
        cut = False
        while True:
            changed = reader.refresh(_TURN_SECONDS)
            if cut != (changed is None):
                cut = changed is None
                _tell_connection(options, "interrupted" if cut else "resumed")
            if changed:
                now = queue_of(reader)
                for event in between(view, now, _life(client, tls)):
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


def _tell(path: str, event: QueueEvent) -> None:
    place = event.place
    token = place.contender.token
    now = datetime.now().strftime("%H:%M:%S")
    print(
        f"{now}  {event.what.value:<9}  {place.kind}  {token if token is not None else '-'}  "
        f"{place.session or '-'}  {named(place.contender.identity)}  "
        f"({event.waiting} waiting)",
        flush=True,
    )


def _tell_json(path: str, event: QueueEvent) -> None:
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
