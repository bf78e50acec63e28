"""Guards that let a resource enforce the fencing token, for asyncio.

The names are those of ``zklock.fencing``. The marks are the same, too: programs of both kinds may
fence one resource.
"""

from zklock.fencing.aio.redis import RedisGuard
from zklock.fencing.aio.sql import SqlFence, SqlGuard
from zklock.fencing.sql import is_retryable

__all__ = ["RedisGuard", "SqlFence", "SqlGuard", "is_retryable"]
