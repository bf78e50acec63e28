"""zklock: fair, fenced ZooKeeper locks on kazoo."""

from zklock._version import __version__
from zklock.connection import Handler, connect
from zklock.election import LeaderChanges, LeaderElection, Leadership, Observer
from zklock.errors import (
    AccessDenied,
    AcquireCancelled,
    AcquireTimeout,
    ClientClosed,
    ClientUnusable,
    ForkedClient,
    GuardUnusable,
    LeaderStuck,
    LimitMismatch,
    LockLost,
    NoAnswer,
    NoSuchMember,
    NotHeld,
    NotOwner,
    PoolStuck,
    SequenceExhausted,
    StaleToken,
    WouldDeadlock,
    WrongThread,
    ZkLockError,
)
from zklock.grant import Grant, Loss, LossReason
from zklock.leaders import LeaderChange
from zklock.lock import Lock, ReadLock, RLock, Semaphore, WriteLock
from zklock.membership import PoolMember, ShardOwner
from zklock.multi import MultiGrant, MultiLock
from zklock.pool import WorkerPool
from zklock.queries import Contender
from zklock.shards import Shard
from zklock.token import FencingToken

__all__ = [
    "AccessDenied",
    "AcquireCancelled",
    "AcquireTimeout",
    "ClientClosed",
    "ClientUnusable",
    "Contender",
    "FencingToken",
    "ForkedClient",
    "Grant",
    "GuardUnusable",
    "Handler",
    "LeaderChange",
    "LeaderChanges",
    "LeaderElection",
    "LeaderStuck",
    "Leadership",
    "LimitMismatch",
    "Lock",
    "LockLost",
    "Loss",
    "LossReason",
    "MultiGrant",
    "MultiLock",
    "NoAnswer",
    "NoSuchMember",
    "NotHeld",
    "NotOwner",
    "Observer",
    "PoolMember",
    "PoolStuck",
    "RLock",
    "ReadLock",
    "Semaphore",
    "SequenceExhausted",
    "Shard",
    "ShardOwner",
    "StaleToken",
    "WorkerPool",
    "WouldDeadlock",
    "WriteLock",
    "WrongThread",
    "ZkLockError",
    "__version__",
    "connect",
]
