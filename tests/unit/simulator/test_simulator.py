"""zklock and kazoo on a simulated system: seeds that hold, and faults that the simulator finds.

The seeds are the same in each run. ``test_new_seeds.py`` plays others.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.modes import repeated
from tests.unit.simulator.mutations import MUTATIONS, detect
from tests.unit.simulator.plans import (
    AGAIN,
    FAULTS,
    INTERRUPT,
    KINDS,
    WIDER_FAULTS,
    WIDER_KINDS,
    Plan,
    command,
    kept_plan_of,
    plan_of,
    wider_plan_of,
    with_interrupts,
)
from tests.unit.simulator.seeds import SeedRange, entries
from tests.unit.simulator.shrinking import fails, manner, shrink
from tests.unit.simulator.world import World
from zklock._core.attempt import Pending
from zklock._core.link import Flight, Link
from zklock._core.wire import Codec
from zklock._shell.handler import Handler

ROOT = Path(__file__).parents[3]

SEEDS = 48
EACH = 8
"""Seeds for each test."""
FEW = EACH
"""Seeds of each sort before each commit; ``tests/seeds.txt`` has hundreds of others."""


def play(seed: int, plan: Plan | None = None) -> World:
    """Play a seed; how to replay it is a note on what it raises."""
    world = World(seed, plan)
    try:
        world.run()
    except BaseException as error:
        error.add_note(f"replay: {command(seed, world.plan)}")
        raise
    return world


SLOW = pytest.mark.thorough(
    "more seeds, and seeded faults that take many plans: minutes of a core, for changes of the core"
)
FIRSTS = [pytest.param(first, marks=[SLOW] * (first >= FEW)) for first in range(0, SEEDS, EACH)]


@pytest.mark.parametrize("first", FIRSTS)
def test_what_must_hold_holds(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, read = 0, 0
    ask, pump = Link.ask, Handler._pump

    def counted(self: Link, codec: Codec, flight: Flight, most: int) -> None:
        nonlocal asked
        asked += most
        ask(self, codec, flight, most)

    def noted(self: Handler, reader: Pending[Any] | None = None) -> None:
        nonlocal read
        read += reader is not None
        pump(self, reader)

    monkeypatch.setattr(Link, "ask", counted)
    monkeypatch.setattr(Handler, "_pump", noted)
    for seed in range(first, first + EACH):
        play(seed)
    assert asked > 100 * EACH
    assert read > 5 * EACH


@pytest.mark.parametrize("first", FIRSTS)
def test_interrupts_leave_nothing(first: int) -> None:
    struck = 0
    for seed in range(first, first + EACH):
        struck += play(seed, with_interrupts(plan_of(seed))).system.struck
    assert struck > EACH


@pytest.mark.parametrize("first", FIRSTS)
def test_second_interrupts_leave_nothing(first: int) -> None:
    struck = 0
    for seed in range(first, first + EACH):
        struck += play(seed, with_interrupts(plan_of(seed), AGAIN)).system.struck_again
    assert struck > EACH / 2


@pytest.mark.parametrize("interrupts", [None, INTERRUPT, AGAIN])
def test_it_holds_with_kept_locks(interrupts: str | None) -> None:
    kept = struck = 0
    for seed in range(EACH // 2):
        plan = kept_plan_of(seed)
        world = play(seed, plan if interrupts is None else with_interrupts(plan, interrupts))
        kept += sum(grant.kept for grant in world.grants)
        struck += world.system.struck
    assert kept > 5 * EACH
    assert (struck > 0) == (interrupts is not None)


@pytest.mark.lengthy("seeded faults: they change with the simulator")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[SLOW] * (not each.shown.quick)) for name, each in MUTATIONS.items()],
)
def test_a_seeded_fault_is_found(name: str) -> None:
    shown, detected = MUTATIONS[name].shown, detect(MUTATIONS[name])
    assert detected is not None, f"not found in {shown.most} plans"
    assert re.search(shown.found, str(detected.violation)), detected


@pytest.mark.lengthy("the seeds of seeds.txt: a minute of a processor")
@pytest.mark.slow("ten seeds, each a tenth of a second")
@pytest.mark.parametrize("entry", list(entries()), ids=str)
def test_seeds(entry: SeedRange) -> None:
    """Some seeds of ``tests/seeds.txt``, or one that has found a fault."""
    for seed in entry.seeds:
        play(seed, entry.plan(seed))


@pytest.mark.thorough("a failure of the simulator cut down: it changes with the simulator alone")
def test_a_failure_is_cut_down_and_replays() -> None:
    plan = Plan("semaphore", 6.0, 3, 2, ("cancel", "freeze", "stall"), 2, 0.1)
    with MUTATIONS["a semaphore counts one permit too many"].put_in():
        found = fails(0, plan)
        assert found is not None
        small = shrink(found)
        assert "permits" in manner(small.violation)
        assert manner(small.violation) == manner(found.violation)
        assert (small.plan.faults, small.plan.troubles, small.plan.noise) == ((), 0, 0.0)
        assert small.plan.processes * small.plan.users < 6
        assert small.steps < found.steps
        again = fails(small.seed, Plan.parse(str(small.plan)))
        assert again is not None
        assert (again.steps, str(again.violation)) == (small.steps, str(small.violation))


def test_the_docs_count_the_seeded_faults() -> None:
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())
    assert f"holds {len(MUTATIONS)} seeded faults" in page


def test_it_holds_in_wider_plans() -> None:
    for seed in range(repeated(2 * FEW, FEW)):
        play(seed, wider_plan_of(seed))


@pytest.mark.parametrize("kind", ["lock", "election", "pool", "tracked", "kept"])
def test_a_seed_replays_exactly(kind: str) -> None:
    """In another process, too, where objects and strings have other hashes."""
    plan = plan_of(0, (kind,))
    world = play(0, plan)
    program = (
        "import sys\n"
        "from tests.unit.simulator.plans import Plan\n"
        "from tests.unit.simulator.world import World\n"
        "world = World(0, Plan.parse(sys.argv[1]))\n"
        "world.run()\n"
        "print(world.system.history, *world.story, sep='\\n')\n"
    )
    words = [sys.executable, "-c", program, str(plan)]
    there = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert there.stdout.splitlines() == [str(world.system.history), *world.story]
    assert "granted" in there.stdout


def test_every_kind_and_every_fault_is_drawn() -> None:
    plans = [plan_of(seed) for seed in range(SEEDS)]
    assert {plan.kind for plan in plans} == set(KINDS)
    assert {fault for plan in plans for fault in plan.faults} == set(FAULTS)
    wider = [wider_plan_of(seed) for seed in range(4 * SEEDS)]
    assert {plan.kind for plan in wider} == set(WIDER_KINDS)
    assert {plan.delay > 0 for plan in wider if plan.kind == "tracked"} == {False, True}
    assert {fault for plan in wider for fault in plan.faults} == {*FAULTS, *WIDER_FAULTS}
