from __future__ import annotations

import itertools

import pytest

from zklock._core import grant_state
from zklock._core.grant_state import State, Step
from zklock._core.transition_table import IllegalStep

LEGAL = {
    (State.CONTENDING, Step.GRANT): State.HELD,
    (State.HELD, Step.RELEASE): State.RELEASED,
    (State.HELD, Step.LOSE): State.LOST,
}


@pytest.mark.parametrize(("state", "step"), list(itertools.product(State, Step)))
def test_every_state_and_step(state: State, step: Step) -> None:
    if (state, step) in LEGAL:
        assert grant_state.TABLE[state, step] is LEGAL[state, step]
    else:
        with pytest.raises(IllegalStep, match=state.value):
            grant_state.TABLE[state, step]


@pytest.mark.parametrize("end", [State.RELEASED, State.LOST])
def test_an_end_is_an_end(end: State) -> None:
    assert not any(state is end for state, _ in grant_state.TABLE)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        grant_state.TABLE[State.LOST, Step.GRANT] = State.HELD  # type: ignore[index]
