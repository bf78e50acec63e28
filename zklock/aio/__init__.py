"""Locks and elections for asyncio, on the same core and the same clients as those for threads."""

from zklock.aio.connection import connect
from zklock.aio.election import LeaderChanges, LeaderElection, Leadership, Observer
from zklock.aio.grant import Grant
from zklock.aio.lock import Lock, ReadLock, RLock, Semaphore, WriteLock
from zklock.aio.multi import MultiGrant, MultiLock

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
    "WriteLock",
    "connect",
]
