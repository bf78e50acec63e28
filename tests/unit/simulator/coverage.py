"""Which states have met which events: the tables of the core, and the decision of the recipe.

A *pair* is a state and an event that a table has a step for. `Seen` counts pairs while plans are
played. ``pairs.txt`` says of each pair how often it is met, or why it never is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.unit.simulator import system as simulated
from zklock._pool import slot_states
from zklock._recipes import lock
from zklock._recipes.effects import Wakeup
from zklock._recipes.names import Kind, Name, Standing
from zklock._recipes.turn import decide

LISTED = Path(__file__).with_name("pairs.txt")


class Pair(NamedTuple):
    """A state of a machine, and an event."""

    machine: str
    state: str
    event: str

    def __str__(self) -> str:
        return f"{self.machine}: {self.state} + {self.event}"


MACHINES: dict[str, Any] = {
    "shard": slot_states,
}
"""The machines that are written as a table, and their modules."""

_NEAREST = {Kind.READ: "a reader", Kind.WRITE: "a writer"}


def _turn(standing: Standing, event: Wakeup | None) -> Pair:
    """Return the pair of a decision: what stands before a contender, and what happened to it."""
    nearest = standing.nearest
    if nearest is None:
        return Pair("turn", "nobody", "listed")
    state = _NEAREST.get(nearest.kind, "a contender") + ("" if standing.sole else " and others")
    return Pair("turn", state, "listed" if event is None else event.name.lower().replace("_", " "))


def _legal() -> Iterator[Pair]:
    for name, module in MACHINES.items():
        kinds: list[Any] = [type(each) for each in next(iter(module.TABLE))]
        for state, event in product(*kinds):
            if (state, event) in module.TABLE:
                yield Pair(name, state.value, event.value)
    for kind in (Kind.READ, Kind.WRITE, Kind.EXCLUSIVE):
        for sole in (True, False):
            for what in (None, *Wakeup):
                if what is Wakeup.LETS_IN and kind is not Kind.WRITE:
                    continue  # whoever lets readers in is a writer
                yield _turn(Standing(Name("", kind, 0), sole, ahead=0), what)
    yield _turn(Standing(None, sole=True, ahead=0), None)


LEGAL = tuple(_legal())


class Seen:
    """How often each pair was met, in how many plans.

    While ``watching()``, each step of a machine counts, on any thread of the simulated system.
    """

    def __init__(self) -> None:
        self.met: Counter[Pair] = Counter()
        self.plans: Counter[Pair] = Counter()
        self.played = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what one plan meets."""
        met: Counter[Pair] = Counter()
        with ExitStack() as stack:
            for name, module in MACHINES.items():
                stack.enter_context(mock.patch.object(module, "TABLE", _Counted(met, name, module)))
            decided = partial(_decide, met, decide)
            stack.enter_context(mock.patch.object(lock, "decide", decided))
            yield
        self.met.update(met)
        self.plans.update(met.keys())
        self.played += 1

    @property
    def summary(self) -> str:
        """How many pairs were met, in words, and where that is not as listed."""
        often = f"{self.met.total()} times in {self.played} plans"
        lines = [f"{len(self.met)} of {len(LEGAL)} pairs of a state and an event, {often}"]
        lines += [f"not met, and listed as met: {pair}" for pair in gone(self, OFTEN, SELDOM)]
        lines += [f"met, and listed as never met: {pair}" for pair in unexpected(self)]
        return "\n".join(lines)


class _Counted:
    """A machine's table whose steps count."""

    def __init__(self, met: Counter[Pair], name: str, module: Any) -> None:
        self._met = met
        self._name = name
        self._table = module.TABLE

    def __getitem__(self, step: tuple[Enum, Enum]) -> Enum:
        then: Enum = self._table[step]
        if simulated.lasts():
            state, event = step
            self._met[Pair(self._name, state.value, event.value)] += 1
        return then


def _decide(met: Counter[Pair], real: Any, standing: Standing, event: Wakeup | None) -> Any:
    if simulated.lasts():
        met[_turn(standing, event)] += 1
    return real(standing, event)


# What is listed.

OFTEN, SELDOM, RARELY = "often", "seldom", "rarely"
MET = (OFTEN, SELDOM, RARELY)
"""Often: in 8 or more of the first 48 seeds. Seldom: in 8 or more of the first 348. The same seeds
play differently after a change of the code, and such a pair is met all the same. Rarely: in fewer.
"""


def listed() -> dict[Pair, str]:
    """Return what ``pairs.txt`` says of each pair: how often it is met, or why it never is."""
    found = {}
    for line in LISTED.read_text().splitlines():
        pair, _, said = line.partition(" = ")
        machine, _, step = pair.partition(": ")
        state, _, event = step.partition(" + ")
        found[Pair(machine, state, event)] = said
    return found


def gone(seen: Seen, *often: str) -> list[str]:
    """Return the pairs that are listed as met so often, and were not met."""
    return [str(pair) for pair, said in listed().items() if said in often and not seen.met[pair]]


def unexpected(seen: Seen) -> list[str]:
    """Return the pairs that were met, and are listed as never met."""
    return [str(pair) for pair, said in listed().items() if said not in MET and seen.met[pair]]
