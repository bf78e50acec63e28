"""The life of an attempt: its stages, its news, and the one table of what news does when.

``RUNNING`` is passed through: a thread runs the recipe until it asks for something, or is over.
News from outside waits until then. So it meets an attempt in any other stage.

The same news may be of use in one stage, and come too late in another: then the stage stays.
docs/design.md shows the table.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from zklock._engine.transition_table import Steps


class Stage(StrEnum):  # a StrEnum is hashed faster than an Enum, and every step looks one up
    """Where an attempt is."""

    NEW = "new"
    """It has not begun."""
    RUNNING = "running"
    """A thread runs the recipe, or begins what it asks for."""
    PARKED = "parked"
    """A batch waits unsent for the connection."""
    BATCH = "batch"
    """A batch is under way."""
    BACKOFF = "backoff"
    """ZooKeeper has asked for patience: the recipe gets the answer after a pause."""
    CLAIM = "claim"
    """It waits for a live lease."""
    WAIT = "wait"
    """It waits for something to happen to a watched node."""
    PAUSE = "pause"
    """The recipe sleeps."""
    OVER = "over"
    """The recipe has ended."""


class AttemptEvent(StrEnum):
    """What happens to an attempt: first what comes from outside, then what the recipe does."""

    START = "start"
    ANSWERED = "answered"
    """The batch that is under way was answered."""
    BUSY = "busy"
    """The batch that is under way was answered: ZooKeeper is busy."""
    ANSWERED_LATE = "answered late"
    """A batch was answered that the recipe does not wait for any more."""
    ELAPSED = "elapsed"
    """The rest or the pause is over."""
    CONNECTED = "connected"
    LEASE_LIVE = "lease live"
    REFUSED = "refused"
    """There can be no lease."""
    WATCHED = "watched"
    """Something has happened to a watched node."""
    CANCELLED = "cancelled"
    SESSION_GONE = "session gone"
    """The session is gone; another one will come."""
    CLIENT_OVER = "client over"
    """The session is gone, and no other one will come."""
    INTERRUPTED = "interrupted"
    """An exception struck out of nowhere, or the host did not let the attempt begin."""

    SENDS = "sends"
    PARKS = "parks"
    CLAIMS = "claims"
    WAITS = "waits"
    PAUSES = "pauses"
    ENDS = "ends"


def _table() -> dict[tuple[Stage, AttemptEvent], Stage]:
    # What comes too late, or is kept for later, changes no stage. Only a start needs a new attempt.
    suspended = {Stage.PARKED, Stage.BATCH, Stage.BACKOFF, Stage.CLAIM, Stage.WAIT, Stage.PAUSE}
    late = {
        AttemptEvent.ANSWERED_LATE,
        AttemptEvent.CONNECTED,
        AttemptEvent.LEASE_LIVE,
        AttemptEvent.REFUSED,
        AttemptEvent.WATCHED,
        AttemptEvent.CANCELLED,
        AttemptEvent.SESSION_GONE,
        AttemptEvent.CLIENT_OVER,
    }
    table = {(stage, news): stage for stage in suspended | {Stage.OVER} for news in late}
    table |= {(stage, AttemptEvent.SESSION_GONE): Stage.RUNNING for stage in suspended}
    table |= {(stage, AttemptEvent.CLIENT_OVER): Stage.RUNNING for stage in suspended}
    # A batch that is under way is not interrupted: its answer may say what has to be withdrawn.
    withdraws = suspended - {Stage.BATCH, Stage.BACKOFF}
    table |= {(stage, AttemptEvent.CANCELLED): Stage.RUNNING for stage in withdraws}
    table |= {(stage, AttemptEvent.INTERRUPTED): Stage.OVER for stage in Stage}
    return table | {
        (Stage.NEW, AttemptEvent.START): Stage.RUNNING,
        (Stage.NEW, AttemptEvent.CANCELLED): Stage.RUNNING,
        (Stage.NEW, AttemptEvent.SESSION_GONE): Stage.NEW,
        (Stage.NEW, AttemptEvent.CLIENT_OVER): Stage.RUNNING,
        (Stage.RUNNING, AttemptEvent.SENDS): Stage.BATCH,
        (Stage.RUNNING, AttemptEvent.PARKS): Stage.PARKED,
        (Stage.RUNNING, AttemptEvent.CLAIMS): Stage.CLAIM,
        (Stage.RUNNING, AttemptEvent.WAITS): Stage.WAIT,
        (Stage.RUNNING, AttemptEvent.PAUSES): Stage.PAUSE,
        (Stage.RUNNING, AttemptEvent.ENDS): Stage.OVER,
        (Stage.PARKED, AttemptEvent.CONNECTED): Stage.RUNNING,
        (Stage.BATCH, AttemptEvent.ANSWERED): Stage.RUNNING,
        (Stage.BATCH, AttemptEvent.BUSY): Stage.BACKOFF,
        (Stage.BACKOFF, AttemptEvent.ELAPSED): Stage.RUNNING,
        (Stage.CLAIM, AttemptEvent.LEASE_LIVE): Stage.RUNNING,
        (Stage.CLAIM, AttemptEvent.REFUSED): Stage.RUNNING,
        (Stage.WAIT, AttemptEvent.WATCHED): Stage.RUNNING,
        (Stage.PAUSE, AttemptEvent.ELAPSED): Stage.RUNNING,
        (Stage.OVER, AttemptEvent.START): Stage.OVER,
    }


TABLE = MappingProxyType(Steps(_table()))
"""The stage that news leads to; ``IllegalStep`` if it is not allowed."""
