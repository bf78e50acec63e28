"""The states of a slot and of a worker, held against the tables written out here, and in the docs.

``python -m tests.unit.test_pool_states`` writes the tables of docs/design.md anew.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import product
from typing import Any

import pytest

from tests.tables import Shown, written
from zklock._pool import member_states, slot_states
from zklock._pool.member_states import DONE, HAS_JOINED, STOPPING, MemberEvent, MemberState
from zklock._pool.slot_states import TABLE, UNSETTLED, SlotEvent, SlotState
from zklock._pool.transition_table import IllegalStep

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
WORK_OVER   -           -            -            -           OWNED     RELEASING  -          -
RELEASED    -           -            -            -           -         -          GONE       -
"""

MEMBER = """
           NEW       STARTING  REFUSED  JOINED  TOLD     LEAVING  IDLE    CLOSED
START      STARTING  -         -        -       -        -        -       -
JOIN       -         JOINED    -        -       -        -        -       -
FAIL       NEW       NEW       REFUSED  NEW     -        -        -       -
STOP       NEW       REFUSED   REFUSED  TOLD    TOLD     LEAVING  IDLE    CLOSED
LEAVE      -         -         -        -       LEAVING  LEAVING  IDLE    CLOSED
WORK_OVER  -         -         -        -       -        IDLE     -       -
CLOSE      -         -         -        -       -        -        CLOSED  -
"""

CASES = written(ROWS, SlotState, SlotEvent)
ALL: list[tuple[Any, Any, Any]] = [
    (TABLE, step, CASES[step]) for step in product(SlotState, SlotEvent)
] + [
    (member_states.TABLE, step, then)
    for step, then in written(MEMBER, MemberState, MemberEvent).items()
]
SHOWN = [
    Shown("slot", TABLE, SlotState, SlotEvent),
    Shown("member", member_states.TABLE, MemberState, MemberEvent),
]


@pytest.mark.parametrize(("table", "step", "then"), ALL)
def test_every_state_and_event(table: Any, step: tuple[StrEnum, StrEnum], then: Any) -> None:
    if then is None:
        with pytest.raises(IllegalStep, match=step[0].value):
            table[step]
    else:
        assert table[step] is then


def test_all_pairs_are_written_out() -> None:
    assert len(ALL) == len(SlotState) * len(SlotEvent) + len(MemberState) * len(MemberEvent)


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


@pytest.mark.parametrize("shown", SHOWN, ids=["slot", "member"])
def test_the_docs_show_the_table(shown: Shown) -> None:
    assert shown.found == shown.text, (
        "docs/design.md shows another table: run python -m tests.unit.test_pool_states"
    )


if __name__ == "__main__":
    for each in SHOWN:
        each.write()
