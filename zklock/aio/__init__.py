"""Locks, elections and pools for asyncio, on the same core and clients as those for threads."""

from zklock.aio.connection import connect
from zklock.aio.election import LeaderChanges, LeaderElection, Leadership, Observer
from zklock.aio.grant import Grant
from zklock.aio.lock import Lock, ReadLock, RLock, Semaphore, WriteLock
from zklock.aio.multi import MultiGrant, MultiLock
from zklock.aio.pool import WorkerPool

__all__ = [
    "Grant",
    "LeaderChanges",
    "LeaderElection",
    "Leadership",
    "Lock",
    "MultiGrant",
    "MultiLock",
    "Observer",
    "RLock",
    "ReadLock",
    "Semaphore",
    "WorkerPool",
    "WriteLock",
    "connect",
]
