"""Schedules and plans come from their seed alone."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest

from tests.chaos import plan
from tests.chaos.nemesis import KINDS, Track, schedule

SESSION = 2.0
PACE = 50.0


@pytest.mark.parametrize("track", Track)
def test_a_seed_gives_one_schedule(track: Track) -> None:
    faults = [*islice(schedule("seed", track, SESSION), 300)]
    assert faults == [*islice(schedule("seed", track, SESSION), 300)]
    assert faults != [*islice(schedule("other", track, SESSION), 300)]
    assert {fault.kind for fault in faults} == {kind for kind in KINDS if kind.track is track}


@pytest.mark.parametrize("track", Track)
def test_faults_of_a_track_follow_each_other(track: Track) -> None:
    for one, other in pairwise(islice(schedule("seed", track, SESSION), 300)):
        assert one.at + one.seconds < other.at
        assert one.kind.shortest * SESSION <= one.seconds <= one.kind.longest * SESSION
        assert 0 <= one.pick < 1


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


@pytest.mark.parametrize("track", Track)
def test_at_a_slower_pace_no_worker_is_killed(track: Track) -> None:
    fast, slow = ([*islice(schedule("seed", track, SESSION, pace), 300)] for pace in (1.0, PACE))
    rests = [second.at - first.at - first.seconds for first, second in pairwise(slow)]
    assert min(rests) >= PACE * SESSION * 0.2
    assert {fault.kind.name for fault in fast} - {fault.kind.name for fault in slow} <= {
        "kill worker"
    }
    assert "kill worker" not in {fault.kind.name for fault in slow}


def test_at_a_slower_pace_no_worker_ends_itself() -> None:
    fast, slow = (
        [*islice(plan.turns("seed", 4, SESSION, may_close=True, pace=pace), 3000)]
        for pace in (1.0, PACE)
    )
    assert {turn.ending for turn in slow} == {*plan.Ending} - {plan.Ending.CRASH}
    assert sum(turn.pause for turn in slow) > PACE / 2 * sum(turn.pause for turn in fast)
