"""The life of one acquisition: its states, its steps, and the one table of allowed steps.

::

    CONTENDING ──GRANT──▶ HELD ──RELEASE──▶ RELEASED
                           │
                          LOSE
                           ▼
                          LOST

An acquisition that is given up ends with its attempt (``stages``): it has no grant, and no state.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from zklock._core.transition_table import Steps


class State(StrEnum):  # hashed faster than an Enum
    """The state of an acquisition."""

    CONTENDING = "contending"
    HELD = "held"
    RELEASED = "released"
    LOST = "lost"


class Step(StrEnum):
    """A step that changes the state of an acquisition."""

    GRANT = "grant"
    RELEASE = "release"
    LOSE = "lose"


TABLE = MappingProxyType(
    Steps(
        {
            (State.CONTENDING, Step.GRANT): State.HELD,
            (State.HELD, Step.RELEASE): State.RELEASED,
            (State.HELD, Step.LOSE): State.LOST,
        }
    )
)
"""The state that a step leads to; ``IllegalStep`` if it is not allowed."""
