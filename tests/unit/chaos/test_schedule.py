"""``--seed`` plays the same faults and the same turns again, and in the end all of them."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest

from tests.chaos import plan
from tests.chaos.nemesis import KINDS, Track, schedule

SESSION = 2.0


@pytest.mark.parametrize("track", Track)
def test_a_seed_gives_one_schedule(track: Track) -> None:
    faults = [*islice(schedule("seed", track, SESSION), 300)]
    assert faults == [*islice(schedule("seed", track, SESSION), 300)]
    assert faults != [*islice(schedule("other", track, SESSION), 300)]
    assert {fault.kind for fault in faults} == {kind for kind in KINDS if kind.track is track}
    assert all(one.at + one.seconds < other.at for one, other in pairwise(faults))


def test_a_seed_gives_one_plan_with_every_step_and_ending() -> None:
    def some(seed: str, may_close: bool) -> list[plan.Turn]:
        return [*islice(plan.turns(seed, 4, SESSION, may_close=may_close), 3000)]

    turns = some("seed", True)
    assert turns == some("seed", True)
    assert turns != some("other", True)
    assert {step for turn in turns for step in turn.steps} == set(plan.Step)
    assert {turn.ending for turn in turns} == set(plan.Ending)
    assert {turn.lock for turn in turns} == {0, 1, 2, 3}
    assert plan.Ending.CLOSE not in {turn.ending for turn in some("seed", False)}
