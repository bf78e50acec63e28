"""Locks with contenders, made of listings as ZooKeeper would give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zklock.cli.view.model import Facts, Folder, Look, Seen, picture
from zklock.cli.view.waits import graph

MARKS = {"lock": "-lock-", "read": "-__READ__", "write": "-__WRIT__", "lease": "-lease-",
         "latch": "-latch-"}  # fmt: skip


@dataclass
class World:
    """Nodes, added one by one; each contender is one second younger than the one before it."""

    facts: Facts = field(default_factory=Facts)
    clock: int = 0

    def folder(self, path: str, data: bytes | None = None) -> None:
        """Add a node, and its ancestors."""
        parent, _, name = path.rpartition("/")
        if path not in self.facts.folders:
            self.facts.folders[path] = Folder((), epoch=7)
            if name:
                self.folder(parent or "/")
                self._child(parent or "/", name)
        if data is not None:
            before = self.facts.folders[path]
            self.facts.folders[path] = Folder(before.names, 7, data=data)

    def node(self, path: str, data: bytes, owner: int = 1) -> None:
        """Add a node that is no contender, such as a worker's."""
        parent, _, name = path.rpartition("/")
        self.folder(parent)
        self._child(parent, name)
        self.facts.seen[path] = Seen(data, owner, float(self.clock), self.clock)

    def queue(self, path: str, session: int, identity: str, kind: str = "lock") -> str:
        """Add a contender to a lock; return its node's path."""
        self.folder(path)
        self.clock += 1
        name = f"_c_{self.clock:032x}{MARKS[kind]}{len(self.facts.folders[path].names):010d}"
        self.node(f"{path}/{name}", identity.encode(), session)
        return f"{path}/{name}"

    def gone(self, path: str) -> None:
        """Remove a contender."""
        parent, _, name = path.rpartition("/")
        names = [each for each in self.facts.folders[parent].names if each != name]
        self.facts.folders[parent] = Folder(names, 7)
        del self.facts.seen[path]

    def semaphore(
        self,
        path: str,
        limit: int | None,
        having: Sequence[tuple[int, str]],
        waiting: Sequence[tuple[int, str]],
    ) -> None:
        """Add a semaphore with its leases and its queue."""
        self.folder(path, b"" if limit is None else str(limit).encode())
        for part in ("locks", "leases"):
            self.folder(f"{path}/{part}")
        for one in having:
            self.queue(f"{path}/leases", *one, kind="lease")
        for one in waiting:
            self.queue(f"{path}/locks", *one)

    def look(self, **more: Any) -> Look:
        """Return what is there, with the deadlocks."""
        found = picture(self.facts)
        return replace(found, deadlocks=graph(found.locks).deadlocks, **more)

    def _child(self, parent: str, name: str) -> None:
        before = self.facts.folders[parent]
        self.facts.folders[parent] = Folder((*before.names, name), 7, data=before.data)
