"""zklock: fair, fenced ZooKeeper locks on kazoo."""

from zklock._version import __version__
from zklock.connection import Handler, connect
from zklock.errors import (
    AccessDenied,
    AcquireCancelled,
    AcquireTimeout,
    ClientClosed,
    ClientUnusable,
    ForkedClient,
    GuardUnusable,
    LockLost,
    NoAnswer,
    NotHeld,
    NotOwner,
    SequenceExhausted,
    StaleToken,
    WouldDeadlock,
    WrongThread,
    ZkLockError,
)
from zklock.grant import Grant, Loss, LossReason
from zklock.lock import Lock
from zklock.queries import Contender
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
    "Lock",
    "LockLost",
    "Loss",
    "LossReason",
    "NoAnswer",
    "NotHeld",
    "NotOwner",
    "SequenceExhausted",
    "StaleToken",
    "WouldDeadlock",
    "WrongThread",
    "ZkLockError",
    "__version__",
    "connect",
]
