"""Who is told of the events of one connection. Pure.

As kazoo keeps its own watches: a watch is there when the reply to the request that sets it says so,
and is used up by the first event for its path and its kind. An event is kept from kazoo if requests
alone watch for it: kazoo would find nobody to tell.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType

from zklock._kazoo.wire import CREATE_2, EXISTS, GET_CHILDREN, GET_CHILDREN_2, GET_DATA

Told: TypeAlias = Callable[[str, str], object]
"""Takes the kind of an event, and the path as the watcher knows it."""

KAZOO: Final = None
"""Stands for kazoo among those who watch."""

_LENGTH = struct.Struct(">i")
_CREATED, _DELETED, _CHANGED, _CHILD = 1, 2, 3, 4
_KINDS: dict[int, str] = {
    _CREATED: EventType.CREATED,
    _DELETED: EventType.DELETED,
    _CHANGED: EventType.CHANGED,
    _CHILD: EventType.CHILD,
}
_ON_DATA = {_CREATED, _CHANGED, _DELETED}
_ON_CHILDREN = {_CHILD, _DELETED}

_SETS_WATCH = {EXISTS, GET_DATA, GET_CHILDREN, GET_CHILDREN_2}
"""Requests with a byte after the path that says whether they set a watch."""
_SETS_NONE = {1, 2, 5, 6, 7, 9, 11, -11, 14, CREATE_2, 16, 100, 102}
"""Requests of kazoo's that set no watch: see kazoo's ``protocol.serialization``."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A watch that a request asks for: where, and who is told; ``path`` is as the server knows it.

    ``who`` is ``KAZOO``, or what to call and the path to call it with.
    """

    opcode: int
    path: bytes
    who: tuple[Told, str] | None


class Watches:
    """The watches of a connection."""

    def __init__(self) -> None:
        # By path, in the order in which they asked.
        self._data: dict[bytes, dict[tuple[Told, str] | None, None]] = {}
        self._children: dict[bytes, dict[tuple[Told, str] | None, None]] = {}
        self._kazoo_sees_all = False

    def of_kazoo(self, opcode: int, body: bytes) -> Watch | None:
        """Return the watch that a request of kazoo's asks for; ``body`` begins with its path."""
        if opcode in _SETS_NONE:
            return None
        if opcode not in _SETS_WATCH:
            self._kazoo_sees_all = True  # a kazoo that knows more kinds of watches
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        watches = body[end : end + 1] not in {b"", b"\0"}
        return Watch(opcode, body[_LENGTH.size : end], KAZOO) if watches else None

    def answered(self, watch: Watch, error: int) -> None:
        """Note the reply to a request that asks for a watch."""
        if error and not (error == NoNodeError.code and watch.opcode == EXISTS):
            return
        on_children = watch.opcode in {GET_CHILDREN, GET_CHILDREN_2}
        table = self._children if on_children else self._data
        table.setdefault(watch.path, {})[watch.who] = None

    def fire(self, kind: int, path: bytes) -> tuple[list[Callable[[], object]], bool]:
        """Return what tells of an event those who watch, and whether kazoo is to see it, too."""
        watching: dict[tuple[Told, str] | None, None] = {}
        if kind in _ON_DATA:
            watching |= self._data.pop(path, {})
        if kind in _ON_CHILDREN:
            watching |= self._children.pop(path, {})
        tells: list[Callable[[], object]] = [
            partial(tell, _KINDS[kind], known) for tell, known in filter(None, watching)
        ]
        return tells, not watching or KAZOO in watching or self._kazoo_sees_all
