"""Play seeds, and tell their stories.

``python -m tests.unit.simulator SEED…`` draws their plans. A plan may follow its seed:
``python -m tests.unit.simulator SEED 'PLAN'``. With ``shrink`` before it, one that fails is cut
down first.
"""

from __future__ import annotations

import sys

from tests.unit.simulator.plans import Plan, plan_of
from tests.unit.simulator.shrinking import fails, shrink
from tests.unit.simulator.world import World


def main(words: list[str]) -> None:
    for word, then in zip(words, [*words[1:], ""], strict=True):
        if word.isdigit():
            seed = int(word)
            plan = Plan.parse(then) if then.startswith("{") else plan_of(seed)
            failure = fails(seed, plan) if words[0] == "shrink" else None
            if failure is not None:
                small = shrink(failure)
                seed, plan = small.seed, small.plan
            tell(seed, plan)


def tell(seed: int, plan: Plan) -> None:
    world = World(seed, plan)
    print(f"seed {seed}: {plan}")
    try:
        world.run()
    finally:
        print("\n".join(world.story))
        print(f"{world.system.steps} steps, digest {world.system.history & 2**64 - 1:x}")


main(sys.argv[1:])
