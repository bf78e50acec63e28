"""The seeds that are played for each change: ``tests/seeds.txt``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.unit.simulator.plans import (
    AGAIN,
    INTERRUPT,
    KEPT,
    Plan,
    kept_plan_of,
    plan_of,
    with_interrupts,
)

FILE = Path(__file__).parents[2] / "seeds.txt"

AT_ONCE = 10
"""Seeds of a line that are one test."""

_INTERRUPTS = {"none": None, "once": INTERRUPT, "twice": AGAIN}


@dataclass(frozen=True)
class SeedRange:
    """Some seeds of a line."""

    seeds: range
    interrupts: str
    text: str

    def plan(self, seed: int) -> Plan:
        """Return what is played of a seed."""
        if self.text == KEPT:
            plan = kept_plan_of(seed)
        else:
            plan = Plan.parse(self.text) if self.text else plan_of(seed)
        kind = _INTERRUPTS[self.interrupts]
        return plan if kind is None else with_interrupts(plan, kind)

    def __str__(self) -> str:
        kept = f" {KEPT}" if self.text == KEPT else ""
        return f"{self.seeds.start}-{self.seeds.stop - 1} {self.interrupts}{kept}"


def entries() -> Iterator[SeedRange]:
    """Return what is in the file, each line in parts of ``AT_ONCE`` seeds."""
    for number, line in enumerate(FILE.read_text().splitlines(), 1):
        words = line.partition("#")[0].strip().split(maxsplit=2)
        if not words:
            continue
        try:
            seeds, interrupts, *text = words
            first, _, last = seeds.partition("-")
            end = int(last or first) + 1
            if interrupts not in _INTERRUPTS or end <= int(first):
                raise ValueError(line)
            for plan in text:
                if plan != KEPT:
                    Plan.parse(plan)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{FILE.name}:{number}: SEEDS INTERRUPTS [PLAN]") from error
        for begin in range(int(first), end, AT_ONCE):
            yield SeedRange(range(begin, min(begin + AT_ONCE, end)), interrupts, "".join(text))
