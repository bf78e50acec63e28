"""A guard for keys of one Redis hash slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from zklock._core import blocking
from zklock.fencing._redis import RedisMark
from zklock.fencing.guard import Fenced
from zklock.token import FencingToken

if TYPE_CHECKING:
    from redis import Redis
    from redis.cluster import RedisCluster

    RedisClient: TypeAlias = Redis | RedisCluster


class RedisGuard(RedisMark):
    """Fences the keys of one resource in Redis: comparison and change are one Lua script.

    ``client`` is a ``redis.Redis`` or ``redis.cluster.RedisCluster``, or valkey-py's. The mark is
    the key ``{resource}:zklock-fence``, without a time to live. In a cluster the fenced keys must
    be in its hash slot: ``guard.key("data")`` is ``{resource}:data``. Raises ``StaleToken``;
    ``GuardUnusable`` without a mark, or if Redis refuses; ``NoAnswer`` and ``OutcomeUnknown`` if no
    answer comes. After ``OutcomeUnknown`` the change may have happened. It may still happen, unless
    the token has become stale by then. Errors of your own script pass.

    redis-py sends a command again when no answer comes; the change still happens only once. For
    this, the key ``{resource}:zklock-call:…`` keeps the number and the result of each caller's
    last call for ten minutes. If that key is evicted, the change may happen twice. A call that you
    repeat yourself is a new call.

    Not guaranteed: replication is asynchronous, so a failover can lose the last writes, and with
    them the last advances of the mark. Then an earlier holder's token is accepted again until the
    present holder's next write. The same can happen after a restart without ``appendfsync
    always``. ``WAIT`` after ``claim`` makes that less likely, not impossible. If an eviction or
    ``FLUSHALL`` removes the mark, the guard refuses everything.
    """

    def __init__(self, client: RedisClient, resource: str) -> None:
        if hasattr(client, "__aenter__"):
            raise TypeError(
                "RedisGuard takes a redis.Redis or redis.cluster.RedisCluster, not a client of "
                "redis.asyncio, whose commands do not run before they are awaited: use "
                "zklock.fencing.aio.RedisGuard"
            )
        super().__init__(client, resource)

    def create(self) -> None:
        """Make the mark, once; keep one that exists."""
        blocking.run(self._create)

    def claim(self, token: Fenced) -> None:
        """Advance the mark, and change no other key; see ``Guard.claim``.

        Also raises ``OutcomeUnknown`` if an answer was lost: the mark may have advanced.
        """
        blocking.run(self._claim, token)

    def set(self, key: str, value: bytes | str | float, token: Fenced) -> None:
        """``SET key value``, unless ``token`` is stale."""
        blocking.run(self._set, key, value, token)

    def run(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[bytes | str | float],
        token: Fenced,
    ) -> Any:
        """Run the Lua text ``script`` unless ``token`` is stale; return its result.

        The script sees ``keys`` and ``args`` as ``KEYS`` and ``ARGV``; its ``return`` value comes
        back as Redis converts it. Redis keeps every script text that it has run: keep ``script``
        constant and pass what varies in ``args``. If a script fails, Redis does not undo what it
        did before; the mark has then advanced. A first line ``#!lua flags=…`` (Redis 7) stays the
        first line. ``no-writes`` is a ``ValueError``, because the mark is written.
        """
        return blocking.run(self._run, script, keys, args, token)

    def highest(self) -> FencingToken | None:
        """Return the mark; ``None`` while no token has been seen."""
        return blocking.run(self._highest)

    async def _answer(self, reply: Any) -> Any:
        return reply
