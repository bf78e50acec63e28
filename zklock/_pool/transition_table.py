"""A state machine that is written as one table: state × event → state."""

from __future__ import annotations

from enum import Enum
from typing import NoReturn, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalStep(Exception):
    """A step that the present state does not allow; nothing was changed."""


class Steps(dict[tuple[S, E], S]):
    """The state that each event leads to; ``IllegalStep`` if there is no such step."""

    def __missing__(self, step: tuple[S, E]) -> NoReturn:
        state, event = step
        raise IllegalStep(f"{event.value!r} is not allowed: the state is {state.value!r}")
