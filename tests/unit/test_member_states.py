"""The states of a pool's worker, held against the table written out here, and against the docs.

``python -m tests.unit.test_member_states`` writes the table of docs/design.md anew.
"""

from __future__ import annotations

import pytest

from tests.tables import Shown, written
from zklock._engine.machine import IllegalStep
from zklock._pool.member_states import (
    DONE,
    HAS_JOINED,
    STOPPING,
    TABLE,
    MemberEvent,
    MemberState,
)

ROWS = """
           NEW       STARTING  REFUSED  JOINED  TOLD     LEAVING  IDLE    CLOSED
START      STARTING  -         -        -       -        -        -       -
JOIN       -         JOINED    -        -       -        -        -       -
FAIL       NEW       NEW       REFUSED  NEW     -        -        -       -
STOP       NEW       REFUSED   REFUSED  TOLD    TOLD     LEAVING  IDLE    CLOSED
LEAVE      -         -         -        -       LEAVING  LEAVING  IDLE    CLOSED
WORK_OVER  -         -         -        -       -        IDLE     -       -
CLOSE      -         -         -        -       -        -        CLOSED  -
"""

CASES = written(ROWS, MemberState, MemberEvent)
SHOWN = Shown("member", TABLE, MemberState, MemberEvent)


@pytest.mark.parametrize("event", MemberEvent)
@pytest.mark.parametrize("state", MemberState)
def test_every_state_and_event(state: MemberState, event: MemberEvent) -> None:
    then = CASES[state, event]
    if then is None:
        with pytest.raises(IllegalStep, match=state.value):
            TABLE[state, event]
    else:
        assert TABLE[state, event] is then


@pytest.mark.parametrize("states", [STOPPING, HAS_JOINED & STOPPING, DONE])
def test_what_is_told_to_leave_never_comes_back(states: frozenset[MemberState]) -> None:
    assert {then for (state, _), then in TABLE.items() if state in states} <= states


def test_the_docs_show_the_table() -> None:
    assert SHOWN.found == SHOWN.text, (
        "docs/design.md shows another table: run python -m tests.unit.test_member_states"
    )


if __name__ == "__main__":
    SHOWN.write()
