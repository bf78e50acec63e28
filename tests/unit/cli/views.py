"""Locks with contenders, made of listings as ZooKeeper would give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zklock.cli.view.model import Facts, Look, Znode, picture
from zklock.cli.view.waits import deadlocks, stands

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
        if path not in self.facts.nodes:
            self.facts.nodes[path] = Znode((), born=7)
            if name:
                self.folder(parent or "/")
                self._child(parent or "/", name)
        if data is not None:
            self.change(path, data=data)

    def change(self, path: str, **changes: Any) -> None:
        """Change what is known of a node."""
        self.facts.nodes[path] = replace(self.facts.nodes[path], **changes)

    def node(self, path: str, data: bytes, owner: int = 1) -> None:
        """Add a node that is no contender, such as a worker's."""
        parent, _, name = path.rpartition("/")
        self.folder(parent)
        self._child(parent, name)
        self.facts.nodes[path] = Znode(None, data, owner, float(self.clock), self.clock)

    def queue(self, path: str, session: int, identity: str, kind: str = "lock") -> str:
        """Add a contender to a lock; return its node's path."""
        self.folder(path)
        self.clock += 1
        name = f"_c_{self.clock:032x}{MARKS[kind]}{len(self.facts.children(path) or ()):010d}"
        self.node(f"{path}/{name}", identity.encode(), session)
        return f"{path}/{name}"

    def gone(self, path: str) -> None:
        """Remove a contender."""
        parent, _, name = path.rpartition("/")
        self.change(parent, names=[it for it in self.facts.children(parent) or () if it != name])
        del self.facts.nodes[path]

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
        known = stands(found.locks)
        return replace(found, stands=known, deadlocks=deadlocks(known), **more)

    def _child(self, parent: str, name: str) -> None:
        self.change(parent, names=(*(self.facts.children(parent) or ()), name))
