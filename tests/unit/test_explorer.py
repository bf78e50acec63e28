"""All interleavings of a few contenders and a few faults; and what happens if the recipe is wrong.

An explorer that finds nothing proves nothing. So each of ``SEEDED`` bends one line of the recipe or
of the attempt, and must be found.
"""

from __future__ import annotations

import pytest

from tests.fakes import Client
from tests.unit.bends import Bend, bent
from tests.unit.explorer import STEPS, Bounds, Found, explore
from zklock._core import attempt
from zklock._recipes import lock as lock_recipe, steps


class Seeded:
    """A wrong variant, and what is said of it, within which bounds."""

    def __init__(self, *bends: Bend, found: str, bounds: Bounds) -> None:
        self.bends = bends
        self.found = found
        self.bounds = bounds


SEARCH = "entry.node = yield from find(entry.path, entry.uuid)"
SEEDED: dict[str, Seeded] = {
    # Three defences, each of which is enough: all are taken away.
    "adopts the node of another session": Seeded(
        Bend(steps, "_find", "node.mine", "True"),
        Bend(
            lock_recipe,
            "enter",
            SEARCH,
            f"""
                while True:
                    try:
                        {SEARCH}
                    except SessionReplaced:
                        continue
                    break""",
        ),
        Bend(Client, "claim", "claim.path not in self.own", "False"),
        found="is believed in",
        bounds=Bounds(1, 2, ("connection", "session")),
    ),
    "does not watch its own node": Seeded(
        Bend(steps, "watch", "Watch(own) if own and not looks else None", "None"),
        found="told that it is gone",
        bounds=Bounds(2, 1, ("node",)),
    ),
    "looks for a stale uuid": Seeded(
        Bend(
            lock_recipe,
            "enter",
            "names.prefix(entry.kind, entry.uuid, entry.naming)",
            "names.prefix(entry.kind, entry.new_uuid(), entry.naming)",
        ),
        found="left waiting",
        bounds=Bounds(1, 1, ("connection",)),
    ),
    "does not sweep when it gives up before the create is answered": Seeded(
        Bend(
            lock_recipe,
            "_leave",
            "entry.uuid and (yield from find(entry.path, entry.uuid))",
            "entry.granted and entry.uuid and (yield from find(entry.path, entry.uuid))",
        ),
        found="left behind",
        bounds=Bounds(1, 2, ("connection", "give up")),
    ),
    "looks for a lost create without a sync": Seeded(
        Bend(
            steps,
            "_find",
            "synced, listing = yield from ask((Sync(path), List(path)), Failure.MISSING)",
            "synced, (listing,) = None, (yield from ask((List(path),), Failure.MISSING))",
        ),
        found="left waiting",
        bounds=Bounds(1, 1, ("connection",)),
    ),
    "takes its turn when its blocker goes, without looking again": Seeded(
        Bend(
            lock_recipe,
            "_take_turn",
            "decide(standing, event)",
            "Decision.TAKE_TURN if event is Wakeup.BLOCKER_GONE else decide(standing, event)",
        ),
        found="was granted while",
        bounds=Bounds(3, 1, ("give up",)),
    ),
    "takes a lost watch for the end of its blocker": Seeded(
        Bend(
            attempt.Attempt,
            "_meaning",
            "if fired.path is None:\n    return Wakeup.UNWATCHED",
            "if fired.path is None:\n    return Wakeup.BLOCKER_GONE",
        ),
        found="was granted while",
        bounds=Bounds(2, 1, ("connection",)),
    ),
    "forgets what it hears before it waits": Seeded(
        Bend(attempt.Attempt, "watched", "self._events = (*self._events, fired)", "pass"),
        found="left waiting",
        bounds=Bounds(2, 0),
    ),
    "forgets a create that was lost, and may come late": Seeded(
        Bend(steps, "find", "not found", "False"),
        found="left (behind|waiting)",
        bounds=Bounds(1, 1, ("late",)),
    ),
    "takes an unanswered deletion for done": Seeded(
        Bend(
            steps,
            "delete",
            "result.why is Failure.MISSING",
            "result.why in (Failure.MISSING, Failure.DROPPED)",
        ),
        found="left behind",
        bounds=Bounds(1, 1, ("connection",)),
    ),
    "takes an unanswered create for not done": Seeded(
        Bend(lock_recipe, "enter", SEARCH, "pass"),
        found="left waiting",
        bounds=Bounds(1, 1, ("connection",)),
    ),
    "leaves its node when it gives up": Seeded(
        Bend(lock_recipe, "acquire", "yield from leave(entry)\nraise", "raise"),
        found="left behind",
        bounds=Bounds(1, 1, ("give up",)),
    ),
    "takes its turn when its blocker is gone before it can be watched": Seeded(
        Bend(
            lock_recipe,
            "_take_turn",
            "decide(standing, event)",
            "decide(standing, event or Wakeup.HOLDER_GONE)",
        ),
        found="was granted while",
        bounds=Bounds(3, 1, ("give up",)),
    ),
}
"""What is wrong in each is said by its name."""


FAR = pytest.mark.thorough(
    "seeded faults that take three contenders: the explorer needs a minute of a core for each"
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[FAR] * (seeded.bounds.contenders > 2))
        for name, seeded in SEEDED.items()
    ],
)
def test_a_seeded_fault_is_found(name: str) -> None:
    seeded = SEEDED[name]
    homes = (steps, lock_recipe, attempt)
    with bent(seeded.bends, homes), pytest.raises(Found, match=seeded.found):
        explore(seeded.bounds)


LENGTHY = pytest.mark.lengthy(
    "the explorer with a fault of two contenders: seconds of a core, for changes of the recipe"
)
LONG = pytest.mark.thorough(
    "the explorer with wide bounds: it takes minutes of a core, and changes with the recipe alone"
)


@pytest.mark.parametrize(
    ("bounds", "states"),
    [
        pytest.param(Bounds(2, 0), 140, id="2 contenders"),
        pytest.param(Bounds(2, 0, made=False), 1_112, id="2 contenders and no parent"),
        pytest.param(Bounds(1, 1), 505, id="1 contender and a fault"),
        pytest.param(
            Bounds(2, 1, ("connection",)),
            2_457,
            id="2 contenders, a lost connection",
            marks=LENGTHY,
        ),
        pytest.param(
            Bounds(2, 1, ("node",)), 4_354, id="2 contenders and a node's deletion", marks=LENGTHY
        ),
        pytest.param(Bounds(1, 2), 21_448, id="1 contender and 2 faults", marks=LONG),
        pytest.param(Bounds(3, 0), 9_389, id="3 contenders", marks=LONG),
        pytest.param(Bounds(2, 1), 62_456, id="2 contenders and a fault", marks=LONG),
        pytest.param(Bounds(2, 2, ("lease",)), 2_753, id="2 contenders, 2 dead leases", marks=LONG),
        pytest.param(
            Bounds(2, 2, ("give up",)), 2_200, id="2 contenders, both give up", marks=LONG
        ),
        pytest.param(
            Bounds(2, 2, ("connection",)), 17_343, id="2 contenders, 2 lost connections", marks=LONG
        ),
    ],
)
def test_no_interleaving_breaks_a_promise(bounds: Bounds, states: int) -> None:
    """The number of states is about what there is: an explorer that sees less is broken."""
    covered = explore(bounds)
    assert 0.9 * states < covered.states < 1.1 * states
    assert covered.ends > 0


def test_every_kind_of_step_is_taken() -> None:
    assert explore(Bounds(1, 1)).taken == STEPS.keys()
