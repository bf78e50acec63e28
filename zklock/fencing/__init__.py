"""Guards that let a resource enforce the fencing token."""

from zklock.fencing.file import FileGuard
from zklock.fencing.guard import Fenced, Granted, Guard
from zklock.fencing.http import AsgiFencing, WsgiFencing
from zklock.fencing.memory import MemoryGuard, MemoryGuards
from zklock.fencing.owner import verify_owner
from zklock.fencing.redis import RedisGuard
from zklock.fencing.sql import SqlGuard
from zklock.fencing.zookeeper import FencedTransaction, ZooKeeperGuard

__all__ = [
    "AsgiFencing",
    "Fenced",
    "FencedTransaction",
    "FileGuard",
    "Granted",
    "Guard",
    "MemoryGuard",
    "MemoryGuards",
    "RedisGuard",
    "SqlGuard",
    "WsgiFencing",
    "ZooKeeperGuard",
    "verify_owner",
]
