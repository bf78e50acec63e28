"""Who is to be told of what: watches of connections. Pure.

A watch is used up by the first event, unless it is persistent.

Source: ``WatchManager`` and ``DataTree`` of Apache ZooKeeper 3.8.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from zklock.testing.zookeeper.messages import (
    Event,
    EventKind,
    WatchKind,
)
from zklock.testing.zookeeper.tree import Change, parent_of

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
    """All watches of a server: on data or existence, on children, and persistent ones."""

    def __init__(self) -> None:
        self._data: _Table[C] = _Table()
        self._children: _Table[C] = _Table()
        self._persistent: _Table[C] = _Table()
        self._recursive: _Table[C] = _Table()

    def on_data(self, path: str, connection: C) -> None:
        """Tell this connection when the node is created, written or deleted."""
        self._data.add(path, connection)

    def on_children(self, path: str, connection: C) -> None:
        """Tell this connection when children come or go, or the node is deleted."""
        self._children.add(path, connection)

    def always(self, path: str, connection: C, *, recursive: bool) -> None:
        """Tell this connection of all that happens at the node, or at and below it, from now on.

        A node has one of the two. ``recursive``: not of children, as each tells of itself.
        """
        mine, other = self._persistent, self._recursive
        if recursive:
            mine, other = other, mine
        other.remove(path, connection)
        mine.add(path, connection)

    def fire(self, change: Change) -> Iterator[tuple[C, Event]]:
        """Use up the watches that this change fires, and name all that are told."""
        event = Event(change.kind, change.path)
        told: dict[C, None] = {}
        if change.kind is not EventKind.CHILDREN_CHANGED:
            told = self._data.take(change.path)
        if change.kind in (EventKind.CHILDREN_CHANGED, EventKind.DELETED):
            told = told | self._children.take(change.path)
        told = told | self._persistent.by_path.get(change.path, {})
        at = change.path
        while change.kind is not EventKind.CHILDREN_CHANGED:
            told = told | self._recursive.by_path.get(at, {})
            if at == "/":
                break
            at = parent_of(at)
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
        for table in self._all():
            table.forget(connection)

    def _all(self) -> tuple[_Table[C], ...]:
        return self._data, self._children, self._persistent, self._recursive

    def _tables(self, kind: int) -> list[_Table[C]]:
        if kind == WatchKind.ANY:
            return list(self._all())
        tables = []
        if kind != WatchKind.DATA:
            tables.append(self._children)
        if kind != WatchKind.CHILDREN:
            tables.append(self._data)
        return tables

    def by_path(self) -> dict[str, list[C]]:
        """Return who watches, for each path."""
        found: dict[str, dict[C, None]] = {}
        for table in self._all():
            for path, watching in table.by_path.items():
                found.setdefault(path, {}).update(watching)
        return {path: list(watching) for path, watching in found.items()}
