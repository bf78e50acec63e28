"""New seeds for the simulator in each run; which they were is told at its end.

In CI they change with the code of zklock alone, so that a second run of one commit has the same
verdict.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.modes import repeated, strict
from tests.unit.simulator.coverage import Seen
from tests.unit.simulator.plans import (
    AGAIN,
    INTERRUPT,
    plan_of,
    wider_plan_of,
    with_interrupts,
)
from tests.unit.simulator.shrinking import fails, shrink
from zklock._kazoo.connect import PROOFS

ROOT = Path(__file__).parents[3]
FEWEST, _ = PROOFS

ASKED = os.environ.get("ZKLOCK_SIMULATE")
SECONDS = float(ASKED or repeated(30, 10))
"""How long, in seconds of a processor. Half of them with riders."""
WIDER = bool(ASKED) and not strict()
"""Whether half of the plans are wider ones: where somebody asks for new seeds, and looks."""
LONGEST = math.inf if ASKED else 1.5 * SECONDS
"""How long at most, by the clock: on a busy machine it is less, unless it was asked for."""


def seed_of_sources() -> int:
    """Return a number that changes with any module of zklock."""
    digest = hashlib.sha256()
    for module in sorted((ROOT / "zklock").rglob("*.py")):
        digest.update(module.read_bytes())
    return int.from_bytes(digest.digest()[:4], "big") % 10**9


@pytest.mark.lengthy("new seeds of the simulator: ten seconds of a processor")
@pytest.mark.timeout(900 + 10 * SECONDS)  # beside others, and nicer than they are
@pytest.mark.parametrize("riders", ["off", "on"])
def test_new_seeds(
    riders: str, told_in_the_end: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each third plan has interrupts, and every other one of these has second ones, too.

    In each fifth one, those who hold write as seldom as they may.

    If they are wanted, half of all plans are wider ones, two seeds in a row of each four.

    Which states have met which events is told in the end.
    """
    monkeypatch.setenv("ZKLOCK_RIDER", riders)
    seed = first = seed_of_sources() if strict() else random.SystemRandom().randrange(10**9)
    print(f"seeds from {first} on")
    seen, begin, clock = Seen(), time.process_time(), time.monotonic() + LONGEST / 2
    while (spent := time.process_time() - begin) < SECONDS / 2 and time.monotonic() < clock:
        plan = wider_plan_of(seed) if WIDER and seed % 4 >= 2 else plan_of(seed)
        if not seed % 5:
            plan = replace(plan, proofs=FEWEST)
        with seen.watching():
            kind = INTERRUPT if seed % 2 else AGAIN
            failure = fails(seed, plan if seed % 3 else with_interrupts(plan, kind))
        if failure is not None:
            print(f"cut down: {shrink(failure)}")
            pytest.fail(str(failure))
        seed += 1
    speed = f"{seen.played / spent:.1f} in a second of a processor"
    told_in_the_end.append(
        f"the simulator, riders {riders}: {seen.played} new seeds, from {first} on; {speed}"
    )
    told_in_the_end.append(f"the simulator, riders {riders}: {seen.summary}")
