"""Which member of a pool gets which shards. Pure.

Every member gets its share, ``shards × weight / sum of weights``, rounded down or up. Of all the
assignments for which that holds, one is taken that moves the fewest shards: a member gives up
nothing but what it has above its share, and who has more than its share rounded down is the first
to have it rounded up. Equal input gives equal output, in whatever order it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import islice
from math import floor


def assign(
    shards: int, weights: Mapping[str, float], current: Mapping[str, Iterable[int]]
) -> dict[str, frozenset[int]]:
    """Return the shards, of ``range(shards)``, that each member is to have.

    ``weights`` are those of the members that there are, each at least 0; who has 0 gets none, and
    if there are no others, nobody gets any. ``current`` is what members have been assigned so
    far; what more than one of them has counts for the first by name.
    """
    free = set(range(shards))
    has: dict[str, list[int]] = {}
    for name in sorted(weights):
        has[name] = sorted(free.intersection(current.get(name, ())))
        free.difference_update(has[name])
    wanted = _quotas(shards, weights, {name: len(mine) for name, mine in has.items()})
    for name, mine in has.items():
        free.update(mine[wanted[name] :])
        del mine[wanted[name] :]
    rest = iter(sorted(free))
    return {
        name: frozenset([*mine, *islice(rest, wanted[name] - len(mine))])
        for name, mine in has.items()
    }


def _quotas(shards: int, weights: Mapping[str, float], has: Mapping[str, int]) -> dict[str, int]:
    """Return how many shards each member is to have."""
    whole = sum(map(Fraction, weights.values()))
    if not whole:
        return dict.fromkeys(weights, 0)
    shares = {name: shards * Fraction(weight) / whole for name, weight in weights.items()}
    found = {name: floor(share) for name, share in shares.items()}
    broken = [name for name, share in shares.items() if share > found[name]]
    # One more for those who have more already: nothing has to move for that.
    broken.sort(key=lambda name: (has[name] <= found[name], found[name] - shares[name], name))
    for name in broken[: shards - sum(found.values())]:
        found[name] += 1
    return found


def moves(before: Mapping[str, Iterable[int]], after: Mapping[str, frozenset[int]]) -> int:
    """Return how many shards have another owner in ``after`` than in ``before``, or their first."""
    return sum(len(mine.difference(before.get(name, ()))) for name, mine in after.items())


def encode(some: Iterable[int]) -> str:
    """Return numbers as text: ascending, what is consecutive as ``first-last``."""
    spans: list[list[int]] = []
    for number in sorted(set(some)):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{one}" if one == last else f"{one}-{last}" for one, last in spans)


def decode(text: str) -> frozenset[int]:
    """Return the numbers of such a text; ``ValueError`` for any other."""
    found: set[int] = set()
    for span in filter(None, text.split(",")):
        one, _, last = span.partition("-")
        found.update(range(int(one), int(last or one) + 1))
    return frozenset(found)
