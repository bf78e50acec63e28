"""Guards that let a resource enforce the fencing token."""

from zklock.errors import StaleToken
from zklock.fencing.dynamodb import DynamoDbGuard
from zklock.fencing.file import FileGuard
from zklock.fencing.guard import Fenced, Granted, Guard
from zklock.fencing.http import AsgiFencing, WsgiFencing
from zklock.fencing.memory import MemoryGuard, MemoryGuards
from zklock.fencing.owner import verify_owner
from zklock.fencing.redis import RedisGuard
from zklock.fencing.s3 import S3Guard
from zklock.fencing.sql import SqlFence, SqlGuard, is_retryable
from zklock.fencing.zookeeper import FencedTransaction, ZooKeeperGuard

__all__ = [
    "AsgiFencing",
    "DynamoDbGuard",
    "Fenced",
    "FencedTransaction",
    "FileGuard",
    "Granted",
    "Guard",
    "MemoryGuard",
    "MemoryGuards",
    "RedisGuard",
    "S3Guard",
    "SqlFence",
    "SqlGuard",
    "StaleToken",
    "WsgiFencing",
    "ZooKeeperGuard",
    "is_retryable",
    "verify_owner",
]
