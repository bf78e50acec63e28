"""The life of a slot: its states, its events, and the one table of what each event does when.

A slot is one acquisition of a shard, from queueing to release. What is gone stays gone: the pool
makes another slot if it wants the shard again. So no state says what is to follow. docs/design.md
shows the table.
"""

from __future__ import annotations

from enum import StrEnum

from zklock._pool.transition_table import table


class SlotState(StrEnum):
    NEW = "new"
    """It has not begun."""
    CONTENDING = "contending"
    """It waits for the shard's lock."""
    WITHDRAWING = "withdrawing"
    """It does not want the lock any more. A grant may be on its way."""
    RETRYING = "retrying"
    """The lock could not be had. It is tried again after a pause."""
    OWNED = "owned"
    """The worker owns the shard, and keeps it, whether or not the handler runs."""
    ENDING = "ending"
    """The work on the shard was told to end. The lock is held until it has, unless it is lost."""
    RELEASING = "releasing"
    """Nobody works on the shard. The lock is being released."""
    GONE = "gone"
    """Nothing is left."""


WORKED_ON = frozenset({SlotState.OWNED, SlotState.ENDING})
"""The states in which somebody works on the shard."""

UNSETTLED = WORKED_ON | {SlotState.CONTENDING, SlotState.WITHDRAWING}
"""The states in which somebody works on the shard, or may soon."""


class SlotEvent(StrEnum):
    WANTED = "wanted"
    UNWANTED = "unwanted"
    """The shard is for another worker, or this worker leaves."""
    GRANTED = "granted"
    USELESS = "useless"
    """The lock is granted, but is lost already, or this worker takes no shard any more."""
    WITHDRAWN = "withdrawn"
    """There will be no grant: the attempt was given up."""
    FAILED = "failed"
    """The lock cannot be had now."""
    HOPELESS = "hopeless"
    """The lock cannot be had, now or later: the client is of no use any more."""
    DUE = "due"
    """The pause after a failure is over."""
    LOST = "lost"
    LATE = "late"
    """News of an attempt or a grant that is not the slot's: not yet, or not any more."""
    WORK_DUE = "work due"
    """The handler is to be called: for the first time, or again."""
    WORK_OVER = "work over"
    """No callback runs, and no handler."""
    RELEASED = "released"


TABLE = table(
    SlotState,
    SlotEvent,
    """
               NEW         CONTENDING   WITHDRAWING  RETRYING    OWNED  ENDING     RELEASING  GONE
    WANTED     CONTENDING  -            -            -           -      -          -          -
    UNWANTED   -           WITHDRAWING  WITHDRAWING  GONE        ENDING ENDING     RELEASING  -
    GRANTED    -           OWNED        RELEASING    -           -      -          -          -
    USELESS    -           RELEASING    RELEASING    -           -      -          -          -
    WITHDRAWN  -           -            GONE         -           -      -          -          -
    FAILED     -           RETRYING     GONE         -           -      -          -          -
    HOPELESS   -           GONE         GONE         -           -      -          -          -
    DUE        -           -            -            CONTENDING  -      -          -          GONE
    LOST       -           -            -            -           ENDING ENDING     -          -
    LATE       -           CONTENDING   WITHDRAWING  RETRYING    OWNED  ENDING     RELEASING  GONE
    WORK_DUE   -           -            -            -           OWNED  ENDING     RELEASING  GONE
    WORK_OVER  -           -            -            -           OWNED  RELEASING  -          -
    RELEASED   -           -            -            -           -      -          GONE       -
    """,
)
