"""zklock: fair, fenced ZooKeeper locks on kazoo.

This module holds only public names. Each is loaded when it is first used. A program that needs a
lock does not load elections and pools.
"""

from typing import TYPE_CHECKING

from zklock._ground.lazy import lazy as _lazy
from zklock._version import __version__

if TYPE_CHECKING:
    from zklock._election.membership import MembershipChange
    from zklock._election.observe import LeaderChange
    from zklock._election.observers import LeaderChanges, MembershipChanges, Observer
    from zklock._election.threads import LeaderElection, Leadership
    from zklock._ground.loss import Loss, LossReason
    from zklock._locks.grant import Grant
    from zklock._locks.multi import MultiGrant, MultiLock
    from zklock._locks.threads import Lock, ReadLock, RLock, Semaphore, WriteLock
    from zklock._pool.runners import Shard
    from zklock._pool.threads import WorkerPool
    from zklock._pool.views import PoolMember, PoolWorker, ShardOwner
    from zklock._recipes.queries import Contender
    from zklock._shell.connect import Client, connect
    from zklock._shell.handler import Handler
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
        MixedNames,
        NoAnswer,
        NoSuchMember,
        NotHeld,
        NotOwner,
        OutcomeUnknown,
        PoolStuck,
        SequenceExhausted,
        SnapshotTooOld,
        StaleToken,
        TransactionEnded,
        WouldDeadlock,
        WrongThread,
        ZkLockError,
    )
    from zklock.token import FencingToken

__all__ = [
    "AccessDenied",
    "AcquireCancelled",
    "AcquireTimeout",
    "Client",
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
    "MembershipChange",
    "MembershipChanges",
    "MixedNames",
    "MultiGrant",
    "MultiLock",
    "NoAnswer",
    "NoSuchMember",
    "NotHeld",
    "NotOwner",
    "Observer",
    "OutcomeUnknown",
    "PoolMember",
    "PoolStuck",
    "PoolWorker",
    "RLock",
    "ReadLock",
    "Semaphore",
    "SequenceExhausted",
    "Shard",
    "ShardOwner",
    "SnapshotTooOld",
    "StaleToken",
    "TransactionEnded",
    "WorkerPool",
    "WouldDeadlock",
    "WriteLock",
    "WrongThread",
    "ZkLockError",
    "__version__",
    "connect",
]

_NAMES = {
    "zklock._election.observers": (
        "LeaderChanges",
        "MembershipChanges",
        "Observer",
    ),
    "zklock._election.threads": (
        "LeaderElection",
        "Leadership",
    ),
    "zklock._election.membership": ("MembershipChange",),
    "zklock._ground.loss": (
        "Loss",
        "LossReason",
    ),
    "zklock._shell.connect": (
        "Client",
        "connect",
    ),
    "zklock._shell.handler": ("Handler",),
    "zklock._locks.grant": ("Grant",),
    "zklock._locks.multi": (
        "MultiGrant",
        "MultiLock",
    ),
    "zklock._locks.threads": (
        "Lock",
        "RLock",
        "ReadLock",
        "Semaphore",
        "WriteLock",
    ),
    "zklock._pool.views": (
        "PoolMember",
        "PoolWorker",
        "ShardOwner",
    ),
    "zklock._pool.runners": ("Shard",),
    "zklock._pool.threads": ("WorkerPool",),
    "zklock._election.observe": ("LeaderChange",),
    "zklock._recipes.queries": ("Contender",),
    "zklock.errors": (
        "AccessDenied",
        "AcquireCancelled",
        "AcquireTimeout",
        "ClientClosed",
        "ClientUnusable",
        "ForkedClient",
        "GuardUnusable",
        "LeaderStuck",
        "LimitMismatch",
        "MixedNames",
        "LockLost",
        "NoAnswer",
        "NoSuchMember",
        "NotHeld",
        "NotOwner",
        "OutcomeUnknown",
        "PoolStuck",
        "SequenceExhausted",
        "SnapshotTooOld",
        "StaleToken",
        "TransactionEnded",
        "WouldDeadlock",
        "WrongThread",
        "ZkLockError",
    ),
    "zklock.token": ("FencingToken",),
}
__getattr__, __dir__ = _lazy(__name__, _NAMES)
