"""Which member of a pool gets which shards. Pure.

Every member gets its share, ``shards × weight / sum of weights``, rounded down or up. Of all such
assignments, it takes one that moves the fewest shards. A member gives up only the shards above its
share. Members that already have more than their share rounded down are the first to be rounded up.
Equal input gives equal output; the order of the input does not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import floor
from typing import TypeVar

from zklock._pool.keys import Key
from zklock._pool.nodes import WorkerRecord

K = TypeVar("K", bound=Key)
M = TypeVar("M", bound=str | tuple[str, str])


@dataclass(frozen=True, slots=True)
class Assigned:
    """What a worker's node says that it should have; ``shards`` is ``None`` if unreadable."""

    version: int
    shards: frozenset[Key] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """``changes``: what members are to have now, where that is not what they have.

    ``left_out``: newcomers that get no shards yet.
    """

    changes: Mapping[str, frozenset[Key]]
    left_out: Set[str]


def rebalance(
    shards: Iterable[Key],
    workers: Mapping[str, WorkerRecord],
    assigned: Mapping[str, Assigned],
    barred: Collection[str],
    waiting: Collection[str],
) -> Plan:
    """Return the plan for the members of a pool. All mappings are by their names.

    Who has nothing ``assigned``, not even no shards, gets none. If several members name one node
    for that, it is the first one's. ``barred``: members that cannot be told of a change: they keep
    what they have, unless they want none. ``waiting``: newcomers that are left out, unless nobody
    else takes shards.
    """
    taken: set[str] = set()
    kept: frozenset[Key] = frozenset()
    weights: dict[tuple[str, str], float] = {}  # in the order of the identities
    for name, worker in sorted(workers.items()):
        if name not in assigned or worker.assigned in taken:
            continue
        taken.add(worker.assigned)
        if name not in barred:
            weights[worker.identity, name] = worker.weight
        elif worker.weight:
            kept |= assigned[name].shards or frozenset()
    left_out = {member for member in weights if member[1] in waiting}
    if not any(weight for member, weight in weights.items() if member not in left_out):
        left_out = set()
    weights.update(dict.fromkeys(left_out, 0.0))
    current = {member: assigned[member[1]].shards or frozenset() for member in weights}
    found = assign((shard for shard in shards if shard not in kept), weights, current)
    changes = {name: mine for (_, name), mine in found.items() if mine != assigned[name].shards}
    return Plan(changes, {name for _, name in left_out})


def assign(
    shards: Iterable[K],
    weights: Mapping[M, float],
    current: Mapping[M, Iterable[Key]],
) -> dict[M, frozenset[K]]:
    """Return the shards that each member gets.

    ``weights`` has the weight of each present member, at least 0. A member of weight 0 gets no
    shards; if all weights are 0, nobody gets any. ``current`` is the assignment so far. A shard
    that several members have there counts for the first by name.
    """
    free = set(shards)
    number = len(free)
    has: dict[M, list[K]] = {}
    for name in sorted(weights):
        has[name] = sorted(free.intersection(current.get(name, ())))
        free.difference_update(has[name])
    wanted = _quotas(number, weights, {name: len(mine) for name, mine in has.items()})
    for name, mine in has.items():
        free.update(mine[wanted[name] :])
        del mine[wanted[name] :]
    rest = iter(sorted(free))
    return {
        name: frozenset([*mine, *islice(rest, wanted[name] - len(mine))])
        for name, mine in has.items()
    }


def _quotas(shards: int, weights: Mapping[M, float], has: Mapping[M, int]) -> dict[M, int]:
    """Return the number of shards for each member."""
    whole = sum(map(Fraction, weights.values()))
    if not whole:
        return dict.fromkeys(weights, 0)
    shares = {name: shards * Fraction(weight) / whole for name, weight in weights.items()}
    found = {name: floor(share) for name, share in shares.items()}
    broken = [name for name, share in shares.items() if share > found[name]]
    # Round up first for members that have more already: then nothing has to move.
    broken.sort(key=lambda name: (has[name] <= found[name], found[name] - shares[name], name))
    for name in broken[: shards - sum(found.values())]:
        found[name] += 1
    return found
