"""A failure, cut down: fewer users, fewer faults, fewer steps, and it fails in the same way.

A plan and a seed decide on everything. A smaller plan plays differently with the same seed, so a
few other seeds are tried, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.unit.simulator.plans import Plan, command
from tests.unit.simulator.system import Violation
from tests.unit.simulator.world import World

SEEDS = 8
"""How many seeds are tried with each smaller plan."""


@dataclass(frozen=True)
class Failure:
    """A plan that fails with a seed: after how many steps, and how."""

    seed: int
    plan: Plan
    steps: int
    violation: Violation

    def __str__(self) -> str:
        how = command(self.seed, self.plan)
        return f"{self.violation}\nafter {self.steps} steps; replay: {how}"


def fails(seed: int, plan: Plan) -> Failure | None:
    """Play; return how it fails, if it does."""
    world = World(seed, plan)
    try:
        world.run()
    except Violation as violation:
        return Failure(seed, plan, world.system.steps, violation)
    return None


def manner(violation: Violation) -> str:
    """Return in which way it fails: what is said, without names and numbers."""
    return re.sub(r"<[^>]*>|'[^']*'|/\S+|\b\w*\d[\w.]*", "…", str(violation))


def shrink(failure: Failure) -> Failure:
    """Return the smallest failure of the same manner that is found on the way down."""
    best, found = failure, True
    while found:
        found = False
        for plan in smaller(best.plan):
            smallest = _fewest_steps(plan, best)
            if smallest is not None:
                best, found = smallest, True
                break
    return best


def smaller(plan: Plan) -> Iterator[Plan]:
    """Return plans that are smaller by one thing, those first that save most."""
    for fault in plan.faults:
        left = tuple(each for each in plan.faults if each != fault)
        yield replace(plan, faults=left, troubles=plan.troubles if left else 0)
    if plan.processes > 1:
        yield replace(plan, processes=plan.processes - 1)
    if plan.users > 1:
        yield replace(plan, users=plan.users - 1)
    if plan.troubles > 1:
        yield replace(plan, troubles=plan.troubles - 1)
    if plan.delay:
        yield replace(plan, delay=0.0)
    if plan.noise:
        yield replace(plan, noise=0.0)
    if plan.rounds != 1:
        yield replace(plan, rounds=4 if plan.rounds is None else plan.rounds - 1)


def _fewest_steps(plan: Plan, failure: Failure) -> Failure | None:
    seeds = dict.fromkeys((failure.seed, *range(SEEDS)))
    played = (fails(seed, plan) for seed in seeds)
    same = [it for it in played if it is not None and _alike(it, failure)]
    return min(same, key=lambda it: it.steps, default=None)


def _alike(one: Failure, other: Failure) -> bool:
    return manner(one.violation) == manner(other.violation)
