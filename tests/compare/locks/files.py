"""Locks on files of one machine. The store is a folder."""

from __future__ import annotations

from typing import Any

from . import LEASE, Use


class FileLock(Use):
    title = "filelock `FileLock`"
    packages = ("filelock==4.3.1",)
    store = "a file"
    modules = ("filelock",)
    made = "`FileLock(path)`"
    asks = "`is_locked`"

    def lock(self, name: str) -> Any:
        return self.lib.FileLock(f"{self.place}/{name}")


class FilelockLease(FileLock):
    title = "filelock `SoftFileLease`"
    made = f"`SoftFileLease(path, lease_duration={LEASE})`"
    asks = "`compromise`"

    def lock(self, name: str) -> Any:
        return self.lib.SoftFileLease(f"{self.place}/{name}", lease_duration=LEASE)

    def held(self, lock: Any, entered: Any) -> bool:
        return lock.compromise is None


class Portalocker(Use):
    title = "portalocker `Lock`"
    packages = ("portalocker==4.4.2",)
    store = "a file"
    modules = ("portalocker",)
    made = "`portalocker.Lock(path, timeout=60)`"

    def lock(self, name: str) -> Any:
        return self.lib.Lock(f"{self.place}/{name}", timeout=60)

    def plain(self, name: str) -> Any:
        return self.lib.Lock(f"{self.place}/{name}")


class Fasteners(Use):
    title = "fasteners `InterProcessLock`"
    packages = ("fasteners==0.20",)
    store = "a file"
    modules = ("fasteners",)
    made = "`fasteners.InterProcessLock(path)`"
    asks = "`acquired`"

    def lock(self, name: str) -> Any:
        return self.lib.InterProcessLock(f"{self.place}/{name}")


class Oslo(Use):
    title = "oslo.concurrency `lock`"
    packages = ("oslo.concurrency==7.6.1", "fasteners==0.20")
    store = "a file"
    modules = ("oslo_concurrency.lockutils",)
    made = "`lockutils.lock(name, external=True, lock_path=folder)`"
    reusable = False

    def lock(self, name: str) -> Any:
        return self.lib.lock(name, external=True, lock_path=self.place)


class Flufl(Use):
    title = "flufl.lock `Lock`"
    packages = ("flufl.lock==10.0.0",)
    store = "a file"
    modules = ("flufl.lock",)
    made = f"`Lock(path, lifetime={LEASE})`, refreshed at each look"
    asks = "`refresh()`"

    def lock(self, name: str) -> Any:
        return self.lib.Lock(f"{self.place}/{name}", lifetime=LEASE)

    def held(self, lock: Any, entered: Any) -> bool:
        lock.refresh()
        return True
