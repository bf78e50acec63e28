"""Which member of a pool gets which shards. Pure.

Every member gets its share, ``shards × weight / sum of weights``, rounded down or up. Of all such
assignments, it takes one that moves the fewest shards. A member gives up only the shards above its
share. Members that already have more than their share rounded down are the first to be rounded up.
Equal input gives equal output; the order of the input does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import islice
from math import floor
from typing import TypeVar

from zklock._pool.keys import Key

K = TypeVar("K", bound=Key)


def assign(
    shards: Iterable[K],
    weights: Mapping[str, float],
    current: Mapping[str, Iterable[Key]],
) -> dict[str, frozenset[K]]:
    """Return the shards that each member gets.

    ``weights`` has the weight of each present member, at least 0. A member of weight 0 gets no
    shards; if all weights are 0, nobody gets any. ``current`` is the assignment so far. A shard
    that several members have there counts for the first by name.
    """
    free = set(shards)
    number = len(free)
    has: dict[str, list[K]] = {}
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


def _quotas(shards: int, weights: Mapping[str, float], has: Mapping[str, int]) -> dict[str, int]:
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


def moves(before: Mapping[str, Iterable[Key]], after: Mapping[str, frozenset[Key]]) -> int:
    """Return how many shards of ``after`` have another owner than in ``before``, or had none."""
    return sum(len(mine.difference(before.get(name, ()))) for name, mine in after.items())
