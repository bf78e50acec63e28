"""Who is to be told of what: one-shot watches of connections. Pure.

Source: ``WatchManager`` and ``DataTree`` of Apache ZooKeeper 3.8.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from zklock.testing.zookeeper.messages import Event, EventKind, WatchKind
from zklock.testing.zookeeper.tree import Change

C = TypeVar("C", bound=Hashable)


class _Table(Generic[C]):
    """The watches of one sort, by path and by connection."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[C, None]] = {}
        self._by_connection: dict[C, dict[str, None]] = {}

    def add(self, path: str, connection: C) -> None:
        self.by_path.setdefault(path, {})[connection] = None
        self._by_connection.setdefault(connection, {})[path] = None

    def take(self, path: str) -> dict[C, None]:
        """Use up the watches of a path; return whose they were."""
        told = self.by_path.pop(path, {})
        for connection in told:
            self._discard(connection, path)
        return told

    def has(self, path: str, connection: C) -> bool:
        return connection in self.by_path.get(path, {})

    def remove(self, path: str, connection: C) -> bool:
        """Remove a watch; whether there was one."""
        watching = self.by_path.get(path, {})
        if connection not in watching:
            return False
        del watching[connection]
        if not watching:
            del self.by_path[path]
        self._discard(connection, path)
        return True

    def forget(self, connection: C) -> None:
        for path in list(self._by_connection.get(connection, {})):
            self.remove(path, connection)

    def _discard(self, connection: C, path: str) -> None:
        mine = self._by_connection[connection]
        del mine[path]
        if not mine:
            del self._by_connection[connection]


class Watches(Generic[C]):
    """All watches of a server: on data or existence, and on children."""

    def __init__(self) -> None:
        self._data: _Table[C] = _Table()
        self._children: _Table[C] = _Table()

    def on_data(self, path: str, connection: C) -> None:
        """Tell this connection when the node is created, written or deleted."""
        self._data.add(path, connection)

    def on_children(self, path: str, connection: C) -> None:
        """Tell this connection when children come or go, or the node is deleted."""
        self._children.add(path, connection)

    def fire(self, change: Change) -> Iterator[tuple[C, Event]]:
        """Use up the watches that this change fires."""
        event = Event(change.kind, change.path)
        told: dict[C, None] = {}
        if change.kind is not EventKind.CHILD:
            told = self._data.take(change.path)
        if change.kind in (EventKind.CHILD, EventKind.DELETED):
            told = told | self._children.take(change.path)
        for connection in told:
            yield connection, event

    def of(self, path: str, connection: C, kind: int) -> bool:
        """Whether this connection has such a watch."""
        return any(table.has(path, connection) for table in self._tables(kind))

    def remove(self, path: str, connection: C, kind: int) -> bool:
        """Remove such watches of a connection; whether there was one."""
        removed = [table.remove(path, connection) for table in self._tables(kind)]
        return any(removed)

    def forget(self, connection: C) -> None:
        """Remove all watches of a connection that has ended."""
        self._data.forget(connection)
        self._children.forget(connection)

    def _tables(self, kind: int) -> list[_Table[C]]:
        tables = []
        if kind != WatchKind.DATA:
            tables.append(self._children)
        if kind != WatchKind.CHILDREN:
            tables.append(self._data)
        return tables

    def by_path(self) -> dict[str, list[C]]:
        """Return who watches, for each path."""
        found: dict[str, dict[C, None]] = {}
        for table in (self._data, self._children):
            for path, watching in table.by_path.items():
                found.setdefault(path, {}).update(watching)
        return {path: list(watching) for path, watching in found.items()}
