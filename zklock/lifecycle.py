"""The life of one acquisition: its states, its events, and the one table of what may follow.

::

    CONTENDING ──GRANT──▶ HELD ──RELEASE──▶ RELEASED
        │                  │
     WITHDRAW             LOSE
        ▼                  ▼
    WITHDRAWN             LOST
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType


class State(Enum):
    """Where an acquisition stands."""

    CONTENDING = "contending"
    HELD = "held"
    RELEASED = "released"
    LOST = "lost"
    WITHDRAWN = "withdrawn"


class Step(Enum):
    """What moves an acquisition on."""

    GRANT = "grant"
    RELEASE = "release"
    LOSE = "lose"
    WITHDRAW = "withdraw"


TABLE = MappingProxyType(
    {
        (State.CONTENDING, Step.GRANT): State.HELD,
        (State.CONTENDING, Step.WITHDRAW): State.WITHDRAWN,
        (State.HELD, Step.RELEASE): State.RELEASED,
        (State.HELD, Step.LOSE): State.LOST,
    }
)


class IllegalStep(Exception):
    """A step that the present state does not allow; nothing was changed."""


def after(state: State, step: Step) -> State:
    """Return the state that ``step`` leads to; ``IllegalStep`` if it may not be taken."""
    try:
        return TABLE[state, step]
    except KeyError:
        raise IllegalStep(f"cannot {step.value} what is {state.value}") from None
