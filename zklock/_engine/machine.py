"""A step of a state machine that is written as one table: state × event → state."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalStep(Exception):
    """A step that the present state does not allow; nothing was changed."""


def step(table: Mapping[tuple[S, E], S], state: S, event: E) -> S:
    """Return the state that ``event`` leads to; ``IllegalStep`` if the table has no such step."""
    try:
        return table[state, event]
    except KeyError:
        raise IllegalStep(f"{event.value!r} is not allowed: the state is {state.value!r}") from None
