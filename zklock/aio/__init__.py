"""Locks, elections and pools for asyncio, on the same core and clients as those for threads."""

from zklock._pool.runners import TaskShard as Shard
from zklock.aio.connection import connect
from zklock.aio.election import LeaderElection, Leadership
from zklock.aio.grant import Grant
from zklock.aio.lock import Lock, ReadLock, RLock, Semaphore, WriteLock
from zklock.aio.multi import MultiGrant, MultiLock
from zklock.aio.observers import LeaderChanges, MembershipChanges, Observer
from zklock.aio.pool import WorkerPool

__all__ = [
    "Grant",
    "LeaderChanges",
    "LeaderElection",
    "Leadership",
    "Lock",
    "MembershipChanges",
    "MultiGrant",
    "MultiLock",
    "Observer",
    "RLock",
    "ReadLock",
    "Semaphore",
    "Shard",
    "WorkerPool",
    "WriteLock",
    "connect",
]
