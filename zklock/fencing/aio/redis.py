"""The guard for keys of one Redis hash slot, for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from zklock.fencing._redis import RedisMark
from zklock.fencing.guard import Fenced
from zklock.token import FencingToken

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.cluster import RedisCluster

    RedisClient: TypeAlias = Redis | RedisCluster


class RedisGuard(RedisMark):
    """Fences the keys of one resource in Redis, as ``zklock.fencing.RedisGuard`` does.

    ``client`` is a ``redis.asyncio.Redis`` or ``redis.asyncio.cluster.RedisCluster``. The mark is
    the same key: guards of both kinds may fence one resource. It has the same limits as that class.

    Tasks may share one guard. A call that is cancelled has happened, or not, or may still happen,
    unless the token has become stale by then. Call ``claim`` of a later token to be sure.
    """

    def __init__(self, client: RedisClient, resource: str) -> None:
        if not hasattr(client, "__aenter__"):
            raise TypeError(
                "zklock.fencing.aio.RedisGuard takes a redis.asyncio.Redis or "
                f"redis.asyncio.cluster.RedisCluster, not {type(client).__module__}."
                f"{type(client).__name__}: for redis.Redis use zklock.fencing.RedisGuard"
            )
        super().__init__(client, resource)

    async def create(self) -> None:
        """Make the mark, once; keep one that exists."""
        await self._create()

    async def claim(self, token: Fenced) -> None:
        """Advance the mark, and change no other key: see ``zklock.fencing.RedisGuard.claim``.

        If it is cancelled, the mark may advance later, unless a newer token comes first.
        """
        await self._claim(token)

    async def set(self, key: str, value: bytes | str | float, token: Fenced) -> None:
        """``SET key value``, unless ``token`` is stale."""
        await self._set(key, value, token)

    async def run(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[bytes | str | float],
        token: Fenced,
    ) -> Any:
        """Run the Lua text ``script`` unless ``token`` is stale; return its result.

        The rules for ``script`` are those of ``zklock.fencing.RedisGuard.run``.
        """
        return await self._run(script, keys, args, token)

    async def highest(self) -> FencingToken | None:
        """Return the mark; ``None`` while no token has been seen."""
        return await self._highest()

    async def _answer(self, reply: Any) -> Any:
        return await reply
