"""What is below a path, again and again as it changes: for a screen, and for an exporter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import zklock
from zklock._ground.clock import clock
from zklock.cli.view import waits
from zklock.cli.view.model import Look, picture
from zklock.cli.view.reader import DROPPED, Reader

_TURN_SECONDS = 0.5


def looks(reader: Reader, interval: float) -> Iterator[Look]:
    """Yield what is there, and again after changes, but not more often than every ``interval``.

    While nothing changes, the same look is yielded twice a second, so that the caller may stop. A
    watch tells of one change only. So each node is read once, however often it has changed.
    """
    found = look(reader, reader.read())
    yield found
    next_at = clock() + interval
    while True:
        left = next_at - clock()
        if left > 0:
            time.sleep(min(left, _TURN_SECONDS))
            yield found
            continue
        try:
            changed = reader.refresh(_TURN_SECONDS)
            if changed is None:
                found = replace(found, connected=False)
            elif changed or not found.connected:
                found = look(reader, picture(reader.facts))
                next_at = clock() + interval
        except (zklock.NoAnswer, *DROPPED):
            found = replace(found, connected=False)
        yield found


def look(reader: Reader, seen: Look) -> Look:
    """Return what was seen, with who waits for whom, and the deadlocks that a second look confirms.

    The locks were read one after the other, so a circle may be made of what was never at one time.
    A contender never comes back once it has gone. So if all of a circle is still there after the
    whole was read, there was a moment at which all of it was there.
    """
    stands = waits.stands(seen.locks)
    found = waits.deadlocks(stands)
    nodes = {node for deadlock in found for node in deadlock.involved}
    there = reader.still_there(nodes) if nodes else set()
    confirmed = [one for one in found if there.issuperset(one.involved)]
    return replace(seen, stands=stands, deadlocks=confirmed, missing=reader.missing)
