"""What the players wrote down, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

STILL = 60.0
"""Seconds without a hold after which something is wrong. How long all of them take is open."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One time that a lock was held; times in nanoseconds of one clock."""

    kind: str
    sequence: int
    entered: int
    left: int
    who: str

    @classmethod
    def parse(cls, line: str) -> Hold:
        """Read a line of the ledger."""
        kind, sequence, entered, left, who = line.split()
        return cls(kind, int(sequence), int(entered), int(left), who)


def violations(holds: Iterable[Hold]) -> list[str]:
    """Say which holds began before an earlier contender's was over, or have one number.

    Readers may overlap and overtake each other. Whatever else has a higher number comes later.
    """
    found = []
    last: Hold | None = None
    last_writer: Hold | None = None
    previous: Hold | None = None
    for hold in sorted(holds, key=lambda each: each.sequence):
        before = last_writer if hold.kind == "read" else last
        if before is not None and hold.entered < before.left:
            found.append(f"{hold} began before the end of {before}")
        if previous is not None and previous.sequence == hold.sequence:
            found.append(f"{hold} has the number of {previous}")
        previous = hold
        last = max(last or hold, hold, key=_left)
        if hold.kind != "read":
            last_writer = max(last_writer or hold, hold, key=_left)
    return found


def written(folder: Path) -> Callable[[], int]:
    """Return what tells how many bytes of the folder's ledger are written."""
    ledger = folder / "ledger"
    return lambda: ledger.stat().st_size if ledger.exists() else 0


def most_at_once(holds: Iterable[Hold]) -> int:
    """Return how many were held at the same time, at the most."""
    steps = [step for hold in holds for step in ((hold.entered, 1), (hold.left, -1))]
    now = most = 0
    for _, change in sorted(steps):  # at one time, leaving sorts first
        now += change
        most = max(most, now)
    return most


def _left(hold: Hold) -> int:
    return hold.left
