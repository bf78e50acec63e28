"""New seeds for the simulator, in the nightly run; which they were is told at its end.

The first one is the date, or ``ZKLOCK_NIGHT``; how many there are is fixed. With
``ZKLOCK_SIMULATE`` (seconds of a processor) it is a random one, for as long.
"""

from __future__ import annotations

import math
import os
import random
import time
from datetime import UTC, datetime

import pytest

from tests.unit.simulator.plans import (
    AGAIN,
    INTERRUPT,
    kept_plan_of,
    plan_of,
    wider_plan_of,
    with_interrupts,
)
from tests.unit.simulator.shrinking import fails, shrink

ASKED = float(os.environ.get("ZKLOCK_SIMULATE") or 0.0)
COUNT = 3000
"""How many seeds a night."""


def first_seed() -> int:
    """Return the first of the new seeds."""
    if ASKED:
        return random.SystemRandom().randrange(10**9)
    return int(os.environ.get("ZKLOCK_NIGHT") or f"{datetime.now(UTC):%Y%m%d}") * COUNT


@pytest.mark.thorough("new seeds of the simulator: they are another day's")
@pytest.mark.timeout(3600 + 10 * ASKED)  # beside others
def test_new_seeds(told_in_the_end: list[str]) -> None:
    """Half of all plans are wider ones, two seeds in a row of each four.

    One plan in five has locks that may stay with their client.
    Two of three plans have interrupts, and every other one of these has second ones, too.
    """
    seed = first = first_seed()
    print(f"seeds from {first} on")
    begin = time.process_time()
    last = math.inf if ASKED else first + COUNT
    while seed < last and (not ASKED or time.process_time() - begin < ASKED):
        plan = wider_plan_of(seed) if seed % 4 >= 2 else plan_of(seed)
        if seed % 5 == 0:
            plan = kept_plan_of(seed)
        kind = INTERRUPT if seed % 2 else AGAIN
        failure = fails(seed, plan if seed % 3 else with_interrupts(plan, kind))
        if failure is not None:
            print(f"cut down: {shrink(failure)}")
            pytest.fail(str(failure))
        seed += 1
    played = seed - first
    speed = f"{played / (time.process_time() - begin):.1f} in a second of a processor"
    told_in_the_end.append(f"the simulator: {played} new seeds, from {first} on; {speed}")
