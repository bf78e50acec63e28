"""A state machine that is written as one table: state × event → state."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NoReturn, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalStep(Exception):
    """A step that the present state does not allow; nothing was changed."""


class _Steps(dict[tuple[S, E], S]):
    def __missing__(self, step: tuple[S, E]) -> NoReturn:
        state, event = step
        raise IllegalStep(f"{event.value!r} is not allowed: the state is {state.value!r}")


def table(states: type[S], events: type[E], rows: str) -> Mapping[tuple[S, E], S]:
    """Return the state that each event leads to; ``IllegalStep`` if there is no such step.

    The rows are a line of states, and a line for each event. A dash is a step that is not allowed.
    """
    head, *lines = [row.split() for row in rows.strip().splitlines()]
    steps = {
        (states[state], events[line[0]]): states[then]
        for line in lines
        for state, then in zip(head, line[1:], strict=True)
        if then != "-"
    }
    return MappingProxyType(_Steps(steps))
