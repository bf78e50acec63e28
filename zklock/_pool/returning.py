"""Workers that have crashed and may come back, and the shards that are kept for them. Pure.

A worker with a delay has a place: a node that lives on when its session ends. It says which shards
were assigned to the worker. The worker deletes it when it leaves in order. So a place without a
worker belongs to one that has crashed. Until the delay is over, its shards are for nobody else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zklock._pool.assignment import assign
from zklock._pool.keys import Key, decode, encode
from zklock._pool.nodes import WorkerRecord

_AWAY = "~"
"""Begins the names of workers that are away, for ``assign``."""


@dataclass(frozen=True, slots=True)
class Place:
    """What is kept for a worker. ``weight``: its weight when shards are assigned."""

    identity: str
    weight: float
    delay: float
    shards: frozenset[Key]

    def __bytes__(self) -> bytes:
        """Return the node's data."""
        said = {"identity": self.identity, "weight": self.weight, "delay": self.delay}
        return json.dumps({**said, "shards": encode(self.shards)}).encode()

    @classmethod
    def parse(cls, data: bytes) -> Place | None:
        """Return the place in a node's data; ``None`` if it is none, or nothing was assigned yet.

        Unknown parts come from a later release, and are ignored.
        """
        try:
            said = json.loads(data)
            identity, weight, delay = said["identity"], said["weight"], said["delay"]
            fits = isinstance(identity, str) and 0 <= weight < math.inf and 0 < delay < math.inf
            shards = decode(said["shards"])
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
            return None
        return cls(identity, weight, delay, shards) if fits else None


class Absences:
    """Who is away, and until when. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def look(self, places: Mapping[str, Place], present: Iterable[str], now: float) -> set[str]:
        """Note which workers have a place, and which are there. Return who is away in time.

        The others of those that have a place, and are not there, come back too late.
        """
        away = places.keys() - set(present)
        self._until = {
            identity: self._until.get(identity, now + places[identity].delay) for identity in away
        }
        return {identity for identity, until in self._until.items() if until > now}

    def next_due(self, now: float) -> float | None:
        """Return when the next absence is over; ``None`` if nobody is away in time."""
        return min((until for until in self._until.values() if until > now), default=None)


def replaced(members: Mapping[str, WorkerRecord]) -> dict[str, str]:
    """Return the members that others replace, as their names and the names of the others.

    A worker that comes back may be there before the session of its former process has ended. Of
    members with one identity and a delay, the newest counts.
    """
    newest: dict[str, str] = {}
    for name in sorted(members, key=age):
        if members[name].rejoin_delay > 0:
            newest[members[name].identity] = name
    return {
        name: newest[each.identity]
        for name, each in members.items()
        if each.rejoin_delay > 0 and newest[each.identity] != name
    }


def age(name: str) -> tuple[str, str]:
    """Return what orders the members' names: those that came first are first."""
    return name[-10:], name


def inherited(
    current: Mapping[str, frozenset[Key]], heirs: Mapping[str, str], due: Mapping[str, Place]
) -> dict[str, frozenset[Key]]:
    """Return what each member has for the next plan, when some take what others had.

    ``heirs``: the members that others replace. ``due``: the members that come back to a place. What
    a place had, and somebody else has got meanwhile, stays there.
    """
    found = {name: numbers for name, numbers in current.items() if name not in heirs}
    for name, heir in heirs.items():
        found[heir] = found.get(heir, frozenset()) | current[name]
    taken = frozenset[Key]().union(*found.values())
    for name, place in due.items():
        found[name] = found.get(name, frozenset()) | (place.shards - taken)
    return found


def share_out(
    shards: Iterable[Key],
    weights: Mapping[str, float],
    current: Mapping[str, Iterable[Key]],
    away: Iterable[Place],
) -> dict[str, frozenset[Key]]:
    """Return the shards that each member gets, while shards are kept for those who are away.

    They count as members: as long as nothing else changes, no shard moves. They get no shard that
    they did not have: what they cannot take of their share, the others keep or get.
    """
    wanted = frozenset(shards)
    places = {_AWAY + place.identity: place for place in away}
    kept: frozenset[Key] = frozenset()
    while True:
        all_weights = {**weights, **{name: place.weight for name, place in places.items()}}
        had = {**current, **{name: place.shards for name, place in places.items()}}
        found = assign(wanted, all_weights, had, kept)
        short = [name for name, place in places.items() if found[name] - place.shards]
        if not short:
            return {name: found[name] for name in weights}
        for name in short:
            kept |= found[name] & places.pop(name).shards


def kept_back(
    shards: Iterable[Key], current: Mapping[str, Iterable[Key]], away: Iterable[Place]
) -> frozenset[Key]:
    """Return the shards that are kept for those who are away, and that nobody else has."""
    kept = frozenset[Key]().union(*(place.shards for place in away))
    return kept.intersection(shards).difference(*current.values())
