"""What happened in a queue between two looks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from zklock.cli.view.model import LockView, QueuePlace, What


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
