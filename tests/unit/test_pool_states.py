"""The states of a slot and of a worker, held against the tables of docs/design.md.

``python -m tests.unit.test_pool_states`` writes these anew.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from zklock._pool import member_states, slot_states
from zklock._pool.member_states import DONE, HAS_JOINED, STOPPING, MemberEvent, MemberState
from zklock._pool.slot_states import TABLE, UNSETTLED, SlotEvent, SlotState
from zklock._pool.transition_table import IllegalStep

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
SHOWN: list[tuple[str, Any, Any, Any]] = [
    ("slot", TABLE, SlotState, SlotEvent),
    ("member", member_states.TABLE, MemberState, MemberEvent),
]


def shown(page: str, name: str, table: Any, states: Any, events: Any) -> str:
    """Return the page with the table between two comments with the table's name."""
    lines = ["| | " + " | ".join(f"*{state}*" for state in states) + " |"]
    lines.append("|---" * (len(states) + 1) + "|")
    for event in events:
        steps = [(state, table.get((state, event))) for state in states]
        cells = ["·" if then is state else then or "" for state, then in steps]
        lines.append(f"| **{event}** | {' | '.join(cells)} |")
    text = "\n".join(line.replace("  ", " ") for line in lines)
    begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
    before, _, rest = page.partition(begin)
    return before + begin + text + end + rest.partition(end)[2]


@pytest.mark.parametrize("each", SHOWN, ids=lambda each: each[0])
def test_the_docs_show_the_table(each: tuple[str, Any, Any, Any]) -> None:
    page = DESIGN.read_text()
    assert shown(page, *each) == page, (
        "docs/design.md shows another table: run python -m tests.unit.test_pool_states"
    )


@pytest.mark.parametrize(("_", "table", "states", "events"), SHOWN)
def test_other_steps_are_refused(_: str, table: Any, states: Any, events: Any) -> None:
    for state, event in set(product(states, events)) - set(table):
        with pytest.raises(IllegalStep, match=state):
            table[state, event]


@pytest.mark.parametrize("table", [slot_states.TABLE, member_states.TABLE])
def test_a_table_cannot_be_changed(table: Any) -> None:
    with pytest.raises(TypeError):
        table[next(iter(table))] = None


@pytest.mark.parametrize("states", [STOPPING, HAS_JOINED & STOPPING, DONE])
def test_a_worker_that_is_told_to_leave_never_comes_back(states: frozenset[MemberState]) -> None:
    steps = member_states.TABLE.items()
    assert {then for (state, _), then in steps if state in states} <= states


def test_what_is_gone_stays_gone() -> None:
    ends = {then for (state, _), then in TABLE.items() if state is SlotState.GONE}
    assert ends == {SlotState.GONE}


def test_what_is_not_wanted_is_worked_on_only_to_its_end() -> None:
    """Once a shard is unwanted, no chain of events leads to a state that keeps it."""
    reached = {then for (_, event), then in TABLE.items() if event is SlotEvent.UNWANTED}
    while more := {then for (state, _), then in TABLE.items() if state in reached} - reached:
        reached |= more
    assert reached & UNSETTLED == {SlotState.WITHDRAWING, SlotState.ENDING}
    assert SlotState.RETRYING not in reached


if __name__ == "__main__":
    text = DESIGN.read_text()
    for each in SHOWN:
        text = shown(text, *each)
    DESIGN.write_text(text)
