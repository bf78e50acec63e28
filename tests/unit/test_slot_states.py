"""The states of a slot, held against the table written out here, and against the docs.

``python -m tests.unit.test_slot_states`` writes the table of docs/design.md anew.
"""

from __future__ import annotations

import pytest

from tests.tables import Shown, written
from zklock._engine.machine import IllegalStep
from zklock._pool.slot_states import TABLE, UNSETTLED, SlotEvent, SlotState

ROWS = """
            NEW         CONTENDING   WITHDRAWING  RETRYING    OWNED     ENDING     RELEASING  GONE
WANTED      CONTENDING  -            -            -           -         -          -          -
UNWANTED    -           WITHDRAWING  WITHDRAWING  GONE        ENDING    ENDING     RELEASING  -
GRANTED     -           OWNED        RELEASING    -           -         -          -          -
USELESS     -           RELEASING    RELEASING    -           -         -          -          -
WITHDRAWN   -           -            GONE         -           -         -          -          -
FAILED      -           RETRYING     GONE         -           -         -          -          -
HOPELESS    -           GONE         GONE         -           -         -          -          -
DUE         -           -            -            CONTENDING  -         -          -          GONE
LOST        -           -            -            -           ENDING    ENDING     -          -
LATE        -           CONTENDING   WITHDRAWING  RETRYING    OWNED     ENDING     RELEASING  GONE
WORK_DUE    -           -            -            -           OWNED     ENDING     RELEASING  GONE
WORK_OVER   -           -            -            -           OWNED     RELEASING  RELEASING  GONE
OVERDUE     -           -            -            -           -         RELEASING  RELEASING  GONE
RELEASED    -           -            -            -           -         -          GONE       -
"""

CASES = written(ROWS, SlotState, SlotEvent)
SHOWN = Shown("slot", TABLE, SlotState, SlotEvent)


@pytest.mark.parametrize("event", SlotEvent)
@pytest.mark.parametrize("state", SlotState)
def test_every_state_and_event(state: SlotState, event: SlotEvent) -> None:
    then = CASES[state, event]
    if then is None:
        with pytest.raises(IllegalStep, match=state.value):
            TABLE[state, event]
    else:
        assert TABLE[state, event] is then


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TABLE[SlotState.GONE, SlotEvent.WANTED] = SlotState.OWNED  # type: ignore[index]


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


def test_the_docs_show_the_table() -> None:
    assert SHOWN.found == SHOWN.text, (
        "docs/design.md shows another table: run python -m tests.unit.test_slot_states"
    )


if __name__ == "__main__":
    SHOWN.write()
