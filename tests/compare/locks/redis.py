"""Locks on Redis."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import LEASE, LONGER, Use


class OnRedis(Use):
    """By a client of redis-py."""

    store = "Redis"

    def connect(self) -> None:
        import redis

        self.client = redis.Redis(port=self.port)


class RedisPy(OnRedis):
    title = "redis-py `Lock`"
    packages = ("redis==8.1.0",)
    modules = ("redis",)
    made = f"`client.lock(name, timeout={LEASE})`, extended at each look"
    asks = "`extend()`"

    def lock(self, name: str) -> Any:
        return self.client.lock(name, timeout=LEASE)

    def held(self, lock: Any, entered: Any) -> bool:
        return bool(lock.extend(LEASE, replace_ttl=True))

    def token(self, lock: Any, entered: Any) -> str:
        return str(lock.local.token)


class PythonRedisLock(OnRedis):
    title = "python-redis-lock `Lock`"
    packages = ("python-redis-lock==4.0.1", "redis==8.1.0")
    modules = ("redis_lock",)
    made = f"`redis_lock.Lock(client, name, expire={LEASE}, auto_renewal=True)`"
    asks = "`get_owner_id()`"

    def lock(self, name: str) -> Any:
        return self.lib.Lock(self.client, name, expire=LEASE, auto_renewal=True)

    def held(self, lock: Any, entered: Any) -> bool:
        return bool(lock.get_owner_id() == lock.id)

    def token(self, lock: Any, entered: Any) -> str:
        return str(lock.id)


class PortalockerRedis(Use):
    title = "portalocker `RedisLock`"
    packages = ("portalocker==4.4.2", "redis==8.1.0")
    store = "Redis"
    modules = ("portalocker", "redis")
    made = "`portalocker.RedisLock(name, connection=client, timeout=60, fencing=True)`"
    asks = "`lost`"
    pushed = True

    def lock(self, name: str) -> Any:
        import redis

        client = redis.Redis(port=self.port)
        return self.lib.RedisLock(name, connection=client, timeout=60, fencing=True)

    def plain(self, name: str) -> Any:
        import redis

        return self.lib.RedisLock(name, connection=redis.Redis(port=self.port))

    def held(self, lock: Any, entered: Any) -> bool:
        return not lock.lost

    def token(self, lock: Any, entered: Any) -> int | None:
        token: int | None = lock.fence_token
        return token


class RedlockNg(Use):
    title = "redlock-ng `Redlock`"
    packages = ("redlock-ng==2.0.4", "redis==5.3.1")
    store = "Redis"
    modules = ("redlock",)
    made = f"`Redlock([url]).lock(name, ttl={LEASE * 1000}, blocking=True)`, extended at each look"
    asks = "`extend()`"

    def connect(self) -> None:
        self.redlock = self.lib.Redlock([f"redis://{self.place}"])

    def lock(self, name: str) -> Any:
        return self.redlock.lock(name, ttl=LEASE * 1000, blocking=True)

    def plain(self, name: str) -> Any:
        return self.redlock.lock(name, ttl=LEASE * 1000)

    def held(self, lock: Any, entered: Any) -> bool:
        return bool(self.redlock.extend(entered, LEASE * 1000))

    def token(self, lock: Any, entered: Any) -> str:
        return str(entered.value)


class Pottery(OnRedis):
    title = "pottery `Redlock`"
    packages = ("pottery==3.0.1", "redis==8.1.0")
    modules = ("pottery",)
    made = (
        f"`Redlock(key=name, masters={{client}}, auto_release_time={LEASE})`, extended at each look"
    )
    asks = "`extend()`"

    def lock(self, name: str) -> Any:
        return self.lib.Redlock(
            key=name, masters={self.client}, auto_release_time=LEASE, num_extensions=1_000_000
        )

    def held(self, lock: Any, entered: Any) -> bool:
        lock.extend()
        return True


class Sherlock(OnRedis):
    title = "sherlock `RedisLock`"
    packages = ("sherlock==0.4.1", "redis==5.3.1")
    modules = ("sherlock",)
    made = f"`RedisLock(name, client=client, expire={LEASE}, timeout=60)`, renewed at each look"
    asks = "`renew()`"

    def lock(self, name: str) -> Any:
        return self.lib.RedisLock(name, client=self.client, expire=LEASE, timeout=60)


class Cashews(Use):
    title = "cashews `cache.lock`"
    packages = ("cashews[redis]==7.6.0", "redis==8.1.0")
    store = "Redis"
    modules = ("cashews",)
    made = f"`async with cache.lock(name, expire={LONGER})`"
    lasts = LONGER
    asynchronous = True
    reusable = False

    async def connect(self) -> None:
        self.cache = self.lib.Cache()
        self.cache.setup(f"redis://{self.place}")

    def lock(self, name: str) -> Any:
        return self.cache.lock(name, expire=LONGER)


class Aiocache(Use):
    title = "aiocache `RedLock`"
    packages = ("aiocache[redis]==0.12.3", "redis==8.1.0")
    store = "Redis"
    modules = ("aiocache.lock",)
    made = f"`async with RedLock(RedisCache(…), name, lease={LONGER})`"
    lasts = LONGER
    asynchronous = True

    async def connect(self) -> None:
        from aiocache import RedisCache

        self.cache = RedisCache(endpoint="127.0.0.1", port=self.port)

    def lock(self, name: str) -> Any:
        return self.lib.RedLock(self.cache, name, lease=LONGER)


class Dogpile(Use):
    title = "dogpile.cache `get_mutex`"
    packages = ("dogpile.cache==1.5.0", "redis==8.1.0")
    store = "Redis"
    modules = ("dogpile.cache",)
    made = f"the region's mutex, `distributed_lock=True, lock_timeout={LONGER}`"
    lasts = LONGER
    reusable = False

    def connect(self) -> None:
        options = {"port": self.port, "distributed_lock": True, "lock_timeout": LONGER}
        self.region = self.lib.make_region().configure("dogpile.cache.redis", arguments=options)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        mutex = self.region.backend.get_mutex(name)
        mutex.acquire(True)
        yield
        mutex.release()


class ToozRedis(Use):
    title = "tooz, Redis"
    packages = ("tooz==9.1.0", "redis==8.1.0")
    store = "Redis"
    modules = ("tooz.coordination",)
    made = f"`coordinator.get_lock(name)`, `lock_timeout={LEASE}`, `start(start_heart=True)`"
    asks = "`is_still_owner()`"

    def connect(self) -> None:
        url = f"redis://{self.place}?timeout={LEASE}&lock_timeout={LEASE}"
        self.coordinator = self.lib.get_coordinator(url, str(os.getpid()).encode())
        self.coordinator.start(start_heart=True)

    def lock(self, name: str) -> Any:
        return self.coordinator.get_lock(name.encode())
