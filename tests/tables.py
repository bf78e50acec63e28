"""Tables of state × event: written out in a test, and shown in docs/design.md."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)

DESIGN = Path(__file__).parents[1] / "docs" / "design.md"


def written(rows: str, states: type[S], events: type[E]) -> dict[tuple[S, E], S | None]:
    """Return a table that is written with a line of states, and a line for each event.

    A dash is a step that is not allowed.
    """
    head, *lines = [row.split() for row in rows.strip().splitlines()]
    return {
        (states[state], events[line[0]]): None if then == "-" else states[then]
        for line in lines
        for state, then in zip(head, line[1:], strict=True)
    }


class Shown:
    """A table as docs/design.md shows it, between two comments with the table's name."""

    def __init__(
        self, name: str, table: Mapping[tuple[S, E], S], states: type[S], events: type[E]
    ) -> None:
        self._begin, self._end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        lines = ["| | " + " | ".join(f"*{state}*" for state in states) + " |"]
        lines.append("|---" * (len(states) + 1) + "|")
        for event in events:
            cells = [
                "" if then is None else "·" if then is state else then.value
                for state in states
                for then in [table.get((state, event))]
            ]
            lines.append(f"| **{event}** | " + " | ".join(cells) + " |")
        self.text = "\n".join(line.replace("  ", " ") for line in lines) + "\n"

    @property
    def found(self) -> str:
        """What the page has."""
        return DESIGN.read_text().partition(self._begin)[2].partition(self._end)[0]

    def write(self) -> None:
        """Write the page anew."""
        before, _, rest = DESIGN.read_text().partition(self._begin)
        after = rest.partition(self._end)[2]
        DESIGN.write_text(before + self._begin + self.text + self._end + after)
