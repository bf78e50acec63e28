"""Locks on ZooKeeper."""

from __future__ import annotations

import os
from typing import Any

from . import LEASE, Use


class Zklock(Use):
    title = "zklock `Lock`"
    packages = ("kazoo==2.11.0",)
    store = "ZooKeeper"
    modules = ("zklock",)
    made = "`zklock.Lock(client, path)`"
    asks = "`grant.held`"

    def connect(self) -> None:
        self.client = self.lib.connect(self.place, timeout=LEASE)

    def lock(self, name: str) -> Any:
        return self.lib.Lock(self.client, f"/{name}", on_lost=lambda _: self.tell("`on_lost`"))

    def held(self, lock: Any, entered: Any) -> bool:
        return bool(entered.held)

    def token(self, lock: Any, entered: Any) -> list[int]:
        return [entered.token.epoch, entered.token.sequence]


class Kazoo(Use):
    title = "kazoo `Lock`"
    packages = ("kazoo==2.11.0",)
    store = "ZooKeeper"
    modules = ("kazoo.client",)
    made = "`client.Lock(path)`, with a listener"
    asks = "`is_acquired`"

    def connect(self) -> None:
        self.client = self.lib.KazooClient(self.place, timeout=LEASE)
        self.client.add_listener(self.heard)
        self.client.start(timeout=60)

    def heard(self, state: str) -> None:
        if state != "CONNECTED":
            self.tell(state)

    def lock(self, name: str) -> Any:
        return self.client.Lock(f"/{name}")


class ToozZookeeper(Use):
    title = "tooz, ZooKeeper"
    packages = ("tooz==9.1.0", "kazoo==2.11.0")
    store = "ZooKeeper"
    modules = ("tooz.coordination",)
    made = "`coordinator.get_lock(name)`, `start(start_heart=True)`"
    asks = "`is_still_owner()`"

    def connect(self) -> None:
        url = f"kazoo://{self.place}?timeout={LEASE}"
        self.coordinator = self.lib.get_coordinator(url, str(os.getpid()).encode())
        self.coordinator.start(start_heart=True)

    def lock(self, name: str) -> Any:
        return self.coordinator.get_lock(name.encode())


class Aiozk(Use):
    title = "aiozk `Lock`"
    packages = ("aiozk==0.32.0",)
    store = "ZooKeeper"
    modules = ("aiozk",)
    made = "`async with client.recipes.Lock(path)`"
    asks = "`is_locked`"
    asynchronous = True

    async def connect(self) -> None:
        self.client = self.lib.ZKClient(self.place, session_timeout=LEASE)
        await self.client.start()

    def lock(self, name: str) -> Any:
        return self.client.recipes.Lock(f"/{name}")
