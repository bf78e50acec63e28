"""Requests of recipes as bytes, and replies as their results. Pure.

``encode`` gives the opcode and the body of a request; ``result`` gives what the recipe is sent for
a reply. Paths begin with the client's chroot on the wire, and without it in a recipe.

Source: ``zookeeper.jute`` and ``ZooDefs`` of Apache ZooKeeper 3.9.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kazoo import exceptions
from kazoo.security import OPEN_ACL_UNSAFE

from zklock._core.failures import MAX_REQUEST, failed, too_large
from zklock._recipes.effects import (
    Check,
    Create,
    Delete,
    Exists,
    Failed,
    List,
    Listing,
    Make,
    Node,
    Read,
    Request,
    Sync,
    Transaction,
    Watch,
    WatchExists,
    WatchList,
    Write,
)

_int, _part = struct.Struct(">i").pack, struct.Struct(">i?i").pack
_int_at, _part_at = struct.Struct(">i").unpack_from, struct.Struct(">i?i").unpack_from
_stat_at = struct.Struct(">qqqqiiiqiiq").unpack_from
_STAT, _PART = 68, 9
_END = _part(-1, True, -1)
_EPHEMERAL_SEQUENTIAL = _int(3)
_PERSISTENT = _int(0)
_UNWATCHED, _WATCHED = b"\0", b"\1"

DELETE, EXISTS, GET_DATA, SET_DATA, GET_CHILDREN = 2, 3, 4, 5, 8
SYNC, GET_CHILDREN_2, CHECK, MULTI, CREATE_2 = 9, 12, 13, 14, 15
SETS_WATCH = frozenset({EXISTS, GET_DATA, GET_CHILDREN, GET_CHILDREN_2})
"""Requests with a byte after the path that says whether they set a watch."""
SETS_WATCHES = frozenset({101, 105, 106})
"""Requests that set watches in another way: setWatches, setWatches2, addWatch."""

_CREATE, _MULTI = _int(CREATE_2), _int(MULTI)
_OF_A_PATH: dict[type, tuple[bytes, bytes]] = {
    List: (_int(GET_CHILDREN_2), _UNWATCHED),
    WatchList: (_int(GET_CHILDREN_2), _WATCHED),
    Watch: (_int(GET_DATA), _WATCHED),
    Read: (_int(GET_DATA), _UNWATCHED),
    Exists: (_int(EXISTS), _UNWATCHED),
    WatchExists: (_int(EXISTS), _WATCHED),
    Sync: (_int(SYNC), b""),
}
"""Requests of a path alone: the opcode, and what follows the path."""
_OPERATIONS: dict[type, int] = {Delete: DELETE, Write: SET_DATA, Check: CHECK}

WATCHING = (Watch, WatchList, WatchExists)
"""Requests that set a watch."""


def _buffer(data: bytes) -> bytes:
    return _int(len(data)) + data


def _acls(acl: Sequence[Any]) -> bytes:
    parts = [_int(len(acl))]
    for each in acl:
        parts.append(_int(each.perms))
        # An empty name is null, as kazoo has it.
        parts += [_buffer(name.encode()) if name else _int(-1) for name in each.id]
    return b"".join(parts)


_OPEN = _acls(OPEN_ACL_UNSAFE)


class Codec:
    """Encodes and decodes for one client.

    ``acl()`` is that of new nodes, ``None`` for an open one. ``session_id()`` is that of the
    present session: its nodes are ``mine``.
    """

    def __init__(
        self,
        chroot: str,
        acl: Callable[[], Sequence[Any] | None],
        session_id: Callable[[], int],
    ) -> None:
        self.chroot = chroot.rstrip("/")
        self._acl = acl
        self.id = session_id

    def encode(self, request: Request) -> bytes | Failed:
        """Return the opcode and the body; the failure of a request that no server would read."""
        body = _ENCODERS[type(request)](self, request)
        return body if len(body) <= MAX_REQUEST else too_large(request, len(body))

    def _path(self, path: str) -> bytes:
        """Return the length of a path as the servers know it, and that path."""
        known = (self.chroot + path if path != "/" else self.chroot or path).encode()
        return _int(len(known)) + known

    def _of_a_path(self, request: Any) -> bytes:
        opcode, tail = _OF_A_PATH[type(request)]
        return opcode + self._path(request.path) + tail

    def _create(self, request: Create) -> bytes:
        data = _buffer(request.data)
        return self._created_as(request.prefix, data, _EPHEMERAL_SEQUENTIAL)

    def _make(self, request: Make) -> bytes:
        if request.path == "/" and not self.chroot:  # the root is there, and may not be created
            return self._of_a_path(Exists("/"))
        return self._created_as(request.path, _int(0), _PERSISTENT)

    def _created_as(self, path: str, data: bytes, flags: bytes) -> bytes:
        acl = self._acl()
        return _CREATE + self._path(path) + data + (_acls(acl) if acl else _OPEN) + flags

    def _one(self, request: Delete | Write) -> bytes:
        return _int(_OPERATIONS[type(request)]) + self._operation(request)

    def _operation(self, request: Delete | Write | Check) -> bytes:
        data = _buffer(request.data) if isinstance(request, Write) else b""
        return self._path(request.path) + data + _int(request.version)

    def _several(self, request: Transaction | Check) -> bytes:
        parts: list[bytes] = []
        for each in _operations(request):
            parts += _part(_OPERATIONS[type(each)], False, -1), self._operation(each)
        return b"".join((_MULTI, *parts, _END))

    def result(self, request: Request, code: int, body: bytes) -> Any:
        """Return the result of a request, from the error code and the body of its reply."""
        if code:
            exists = code == _NODE_EXISTS and isinstance(request, Make)
            return None if exists else failed(request, error_of(code))
        decode = _DECODERS.get(type(request))
        if decode is None:
            return None
        try:
            return decode(self, request, body)
        except (struct.error, ValueError) as error:  # it is no such reply
            return failed(request, error)

    def _created(self, request: Create, body: bytes) -> Node:
        end = 4 + _int_at(body)[0]
        path = body[4:end].decode()
        return self._node(path[len(self.chroot) :], request.data, _stat_at(body, end))

    def _read(self, request: Watch | Read, body: bytes) -> Node:
        size = _int_at(body)[0]
        data = body[4 : 4 + size] if size > 0 else b""
        return self._node(request.path, data, _stat_at(body, 4 + max(0, size)))

    def _seen(self, request: Exists | WatchExists, body: bytes) -> Node:
        return self._node(request.path, b"", _stat_at(body))

    def _node(self, path: str, data: bytes, stat: tuple[int, ...]) -> Node:
        owner = stat[7]
        mine = owner != 0 and owner == self.id()
        return Node(path, data, owner, mine, stat[4], stat[2], stat[3])

    def _listed(self, request: List | WatchList, body: bytes) -> Listing:
        names, at = [], 4
        for _ in range(_int_at(body)[0]):
            start = at + 4
            at = start + _int_at(body, at)[0]
            names.append(body[start:at].decode())
        stat = _stat_at(body, at)
        return Listing(names, stat[0], stat[5], stat[8])

    def _carried_out(self, request: Transaction | Check, body: bytes) -> Failed | None:
        """Return the failure of the first operation that was refused; the others say so, too."""
        at = 0
        for operation in _operations(request):
            kind, _, _ = _part_at(body, at)
            at += _PART
            if kind == SET_DATA:
                at += _STAT
            elif kind == -1:
                code = _int_at(body, at)[0]
                at += 4
                if code not in _ROLLED_BACK:
                    node = operation.path if isinstance(operation, Write) else None
                    return replace(failed(operation, error_of(code)), node=node)
        if at > len(body):
            raise ValueError("the reply ends within a stat")
        return None


def _operations(request: Transaction | Check) -> Sequence[Delete | Write | Check]:
    return request.operations if isinstance(request, Transaction) else (request,)


_ENCODERS: dict[type, Callable[[Codec, Any], bytes]] = {
    **dict.fromkeys(_OF_A_PATH, Codec._of_a_path),
    Create: Codec._create,
    Make: Codec._make,
    Delete: Codec._one,
    Write: Codec._one,
    Check: Codec._several,
    Transaction: Codec._several,
}
_DECODERS: dict[type, Callable[[Codec, Any, bytes], Any]] = {
    Create: Codec._created,
    List: Codec._listed,
    WatchList: Codec._listed,
    Watch: Codec._read,
    Read: Codec._read,
    Exists: Codec._seen,
    WatchExists: Codec._seen,
    Check: Codec._carried_out,
    Transaction: Codec._carried_out,
}
_NODE_EXISTS = exceptions.NodeExistsError.code
_ROLLED_BACK = {0, exceptions.RuntimeInconsistency.code}
"""Of the operations of a failed transaction, those that did not fail themselves."""


def error_of(code: int) -> Exception:
    """Return kazoo's exception for an error code."""
    error: Exception = exceptions.EXCEPTIONS.get(code, exceptions.APIError)()
    return error


def dropped(request: Request) -> Failed:
    """Return the failure of a request whose connection was lost."""
    return failed(request, exceptions.ConnectionLoss())
