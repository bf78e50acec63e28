"""Who is to be told of what: watches of connections, each used up by the first event. Pure.

Source: ``WatchManager`` and ``DataTree`` of Apache ZooKeeper 3.8.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from zklock.testing.zookeeper.messages import EventKind, WatchEvent
from zklock.testing.zookeeper.tree import Change

C = TypeVar("C", bound=Hashable)


class Watches(Generic[C]):
    """All watches of a server, by path: on data or existence, and on children."""

    def __init__(self) -> None:
        self._data: defaultdict[str, dict[C, None]] = defaultdict(dict)
        self._children: defaultdict[str, dict[C, None]] = defaultdict(dict)

    def on_data(self, path: str, connection: C) -> None:
        """Tell this connection when the node is created, written or deleted."""
        self._data[path][connection] = None

    def on_children(self, path: str, connection: C) -> None:
        """Tell this connection when children come or go, or the node is deleted."""
        self._children[path][connection] = None

    def fire(self, change: Change) -> Iterator[tuple[C, WatchEvent]]:
        """Use up the watches that this change fires, and name all that are told."""
        event = WatchEvent(change.kind, change.path)
        told: dict[C, None] = {}
        if change.kind is not EventKind.CHILDREN_CHANGED:
            told = self._data.pop(change.path, {})
        if change.kind in (EventKind.CHILDREN_CHANGED, EventKind.DELETED):
            told = told | self._children.pop(change.path, {})
        for connection in told:
            yield connection, event

    def forget(self, connection: C) -> None:
        """Remove all watches of a connection that has ended."""
        for table in (self._data, self._children):
            for path in [path for path, watching in table.items() if connection in watching]:
                del table[path][connection]
                if not table[path]:
                    del table[path]

    def by_path(self) -> dict[str, list[C]]:
        """Return who watches, for each path."""
        found: defaultdict[str, dict[C, None]] = defaultdict(dict)
        for table in (self._data, self._children):
            for path, watching in table.items():
                found[path].update(watching)
        return {path: list(watching) for path, watching in found.items()}
