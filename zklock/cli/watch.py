"""``zklock watch``: the events of a queue, as they happen."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from zklock.cli import connection
from zklock.cli.ending import ends_on_signals
from zklock.cli.saying import say
from zklock.cli.view.model import LockView, QueuePlace, What, find
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import json_of, named

_TURN_SECONDS = 0.5

DESCRIPTION = """\
Print the holders and the waiters, and then each event: queued, granted, released, withdrawn. It
prints one event a line, until a signal ends it."""


def between(before: LockView | None, after: LockView | None) -> Iterator[tuple[str, QueuePlace]]:
    """Yield what happened between two looks: first who left, then who came, in queue order."""
    was = {place.path: place for place in (before.places if before else ())}
    now = {place.path: place for place in (after.places if after else ())}
    holding = {place.owner for place in now.values() if place.holds}
    permits = before is not None and before.what is What.SEMAPHORE
    for path, place in was.items():
        # A waiter for permits leaves the queue when it has them.
        granted = permits and not place.holds and place.owner in holding
        if path not in now and not granted:
            yield "released" if place.holds else "withdrawn", place
    for path, place in now.items():
        known = was.get(path)
        if place.holds and not (known and known.holds):
            yield "granted", place
        elif known is None:
            yield "queued", place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    parser.add_argument("--json", action="store_true", help="print a JSON object a line")


def run(options: argparse.Namespace) -> int:
    with ends_on_signals(), connection.connected(options) as client:
        reader = Reader(client, options.path, follow=True)
        reader.read()
        view = queue_of(reader)
        for place in view.places if view else ():
            _tell(options, "holds" if place.holds else "waits", place, view)
        cut = False
        while True:
            changed = reader.refresh(_TURN_SECONDS)
            if cut != (changed is None):
                cut = changed is None
                _tell(options, "interrupted" if cut else "resumed")
            if changed:
                before, view = view, queue_of(reader)
                for what, place in between(before, view):
                    _tell(options, what, place, view)


def queue_of(reader: Reader) -> LockView | None:
    """Return the lock at the root; ``None`` if it has no contenders.

    ``NoAuthError`` if ACLs hide them.
    """
    reader.must_see_queue()
    lock = find(reader.root, reader.facts).lock
    return lock if lock is not None and lock.places else None


def _tell(
    options: argparse.Namespace,
    what: str,
    place: QueuePlace | None = None,
    view: LockView | None = None,
) -> None:
    """Tell of an event; ``view``: what is there after all that happened at that look."""
    now, told = datetime.now(UTC), dict[str, Any]()
    holders, waiting = (len(view.holders), len(view.waiting)) if view else (0, 0)
    if place is not None:
        told = {"contender": place.to_json(), "holders": holders, "waiting": waiting}
    if options.json:
        at = now.isoformat(timespec="milliseconds")
        print(json_of(at=at, event=what, path=options.path, **told), flush=True)
    elif place is None:
        say("watch", f"the connection is {what}")
    else:
        print(
            f"{now.astimezone():%H:%M:%S}  {what:<9}  {place.kind}  {place.token or '-'}  "
            f"{place.session or '-'}  {named(place.identity)}  ({waiting} waiting)",
            flush=True,
        )
