"""The states of a worker, as one table: state × event → state.

Users call ``start()`` and ``stop()`` on any thread; the pool's own thread hears of them later. In
each state, the worker's nodes may be in ZooKeeper or not: their session may end at any time.
"""

from __future__ import annotations

from enum import StrEnum

from zklock._pool.transition_table import table


class MemberState(StrEnum):
    NEW = "new"
    """It may be started. A start may have failed."""
    STARTING = "starting"
    """A call of ``start()`` is under way."""
    REFUSED = "refused"
    """It was told to leave before it had joined. It never joins."""
    JOINED = "joined"
    """It takes shards."""
    TOLD = "told"
    """It was told to leave. It begins no work any more."""
    LEAVING = "leaving"
    """Its shards are given up. Somebody may still work on some."""
    IDLE = "idle"
    """Nobody works on any shard, now or later."""
    CLOSED = "closed"
    """What was started for the work has ended, too."""


_TOLD = (MemberState.TOLD, MemberState.LEAVING, MemberState.IDLE, MemberState.CLOSED)

STOPPING = frozenset({*_TOLD, MemberState.REFUSED})
"""The states of a worker that was told to leave."""

HAS_JOINED = frozenset({*_TOLD, MemberState.JOINED})
"""The states of a worker that has joined once."""

DONE = frozenset({MemberState.IDLE, MemberState.CLOSED})
"""The states in which nobody works on any shard, now or later."""


class MemberEvent(StrEnum):
    START = "start"
    """``start()`` is called. Where it is not allowed, it raises."""
    JOIN = "join"
    """Its nodes are made, and its threads are about to begin."""
    FAIL = "fail"
    """The start has failed, or was interrupted: with no thread for the election, after the join."""
    STOP = "stop"
    """It is told to leave: by ``stop()``, or because its client is of no use any more."""
    LEAVE = "leave"
    """The pool's own thread hears that it was told to leave."""
    WORK_OVER = "work over"
    """The work on the last shard has ended."""
    CLOSE = "close"
    """The threads that were started for the work have ended."""


TABLE = table(
    MemberState,
    MemberEvent,
    """
               NEW       STARTING  REFUSED  JOINED  TOLD     LEAVING  IDLE    CLOSED
    START      STARTING  -         -        -       -        -        -       -
    JOIN       -         JOINED    -        -       -        -        -       -
    FAIL       NEW       NEW       REFUSED  NEW     -        -        -       -
    STOP       NEW       REFUSED   REFUSED  TOLD    TOLD     LEAVING  IDLE    CLOSED
    LEAVE      -         -         -        -       LEAVING  LEAVING  IDLE    CLOSED
    WORK_OVER  -         -         -        -       -        IDLE     -       -
    CLOSE      -         -         -        -       -        -        CLOSED  -
    """,
)
