"""zklock's requests in ZooKeeper's wire format, and the values of its replies. Pure.

All numbers are big-endian. A string, a buffer and a vector begin with a 32-bit length; -1 stands
for null. A reply's value is what the same call of kazoo's would return, with the paths that the
server has sent. So one translation serves both ways of asking (see ``store``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from kazoo.exceptions import EXCEPTIONS, APIError
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE

from zklock._recipes.effects import (
    Check,
    Create,
    CreateAll,
    Delete,
    DeleteAll,
    DeleteIf,
    Depart,
    Exists,
    HandOver,
    List,
    Mark,
    Read,
    Sync,
    Watch,
    WatchExists,
    WatchList,
    Write,
    WriteAll,
)

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_CHILDREN, SYNC = 1, 2, 3, 4, 5, 8, 9
GET_CHILDREN_2, CHECK, MULTI, CREATE_2 = 12, 13, 14, 15

Encoder: TypeAlias = Callable[[Any, str, Any], bytes]
"""Takes a request, the chroot, and the ACL of new nodes, as kazoo's ``default_acl``.

It returns the opcode and the body.
"""

_EPHEMERAL_SEQUENTIAL = 3
_ANY_VERSION = -1
_FAILED = -1  # an operation of a transaction

_INT = struct.Struct(">i")
_PART = struct.Struct(">i?i")  # of a transaction: opcode; whether it is the end; error
_STAT = struct.Struct(">qqqqiiiqiiq")

_int = _INT.pack
_int_at = _INT.unpack_from
_END = _PART.pack(-1, True, -1)


def full_path(path: str, chroot: str) -> bytes:
    """Return the path as the servers know it."""
    return _path(path, chroot)[_INT.size :]


def _path(path: str, chroot: str) -> bytes:
    data = (chroot + path if path != "/" else chroot or path).encode()
    return _int(len(data)) + data


def _buffer(data: bytes) -> bytes:
    return _int(len(data)) + data


def _acls(acl: Any) -> bytes:
    parts = [_int(len(acl))]
    for each in acl:
        scheme, who = each.id.scheme.encode(), each.id.id.encode()
        # As kazoo: an empty string is null.
        parts += _int(each.perms), _int(len(scheme) or -1), scheme, _int(len(who) or -1), who
    return b"".join(parts)


_OPEN = _acls(OPEN_ACL_UNSAFE)


def _create(it: Create, chroot: str, acl: Any) -> bytes:
    return _int(CREATE_2) + _making(it, chroot, acl)


def _making(it: Create, chroot: str, acl: Any) -> bytes:
    acls = _acls(acl) if acl else _OPEN
    flags = _int(_EPHEMERAL_SEQUENTIAL)
    return b"".join((_path(it.prefix, chroot), _buffer(it.data), acls, flags))


def _reading(opcode: int, watches: bool) -> Encoder:
    head, tail = _int(opcode), bytes([watches])
    return lambda it, chroot, _: head + _path(it.path, chroot) + tail


def _sync(it: Sync, chroot: str, _: Any) -> bytes:
    return _int(SYNC) + _path(it.path, chroot)


def _write(it: Write, chroot: str, _: Any) -> bytes:
    return _int(SET_DATA) + _setting(it.path, it.data, it.version, chroot)


def _delete(it: Delete, chroot: str, _: Any) -> bytes:
    return _int(DELETE) + _naming(it.path, it.version, chroot)


def _setting(path: str, data: bytes, version: int, chroot: str) -> bytes:
    return _path(path, chroot) + _buffer(data) + _int(version)


def _naming(path: str, version: int, chroot: str) -> bytes:
    return _path(path, chroot) + _int(version)


def _multi(*operations: tuple[int, bytes]) -> bytes:
    parts = [_int(MULTI)]
    for opcode, body in operations:
        parts += _PART.pack(opcode, False, -1), body
    return b"".join((*parts, _END))


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _check(it: Check, chroot: str, _: Any) -> bytes:
    return _multi((CHECK, _naming(it.path, _ANY_VERSION, chroot)))


def _mark(it: Mark, chroot: str, _: Any) -> bytes:
    return _multi(
        (CHECK, _naming(it.path, _ANY_VERSION, chroot)),
        (SET_DATA, _setting(_parent(it.path), it.data, _ANY_VERSION, chroot)),
    )


def _write_all(it: WriteAll, chroot: str, _: Any) -> bytes:
    writes = ((SET_DATA, _setting(*write, chroot)) for write in it.writes)
    return _multi((CHECK, _naming(it.path, _ANY_VERSION, chroot)), *writes)


def _create_all(it: CreateAll, chroot: str, acl: Any) -> bytes:
    return _multi(*((CREATE, _making(each, chroot, acl)) for each in it.creates))


def _delete_all(it: DeleteAll, chroot: str, _: Any) -> bytes:
    return _multi(*((DELETE, _naming(each, _ANY_VERSION, chroot)) for each in it.paths))


def _depart(it: Depart, chroot: str, _: Any) -> bytes:
    return _multi(
        (DELETE, _naming(it.path, _ANY_VERSION, chroot)),
        (SET_DATA, _setting(_parent(it.path), it.data, _ANY_VERSION, chroot)),
    )


def _delete_if(it: DeleteIf, chroot: str, _: Any) -> bytes:
    # In this order: if the version is refused, the node is still there.
    return _multi(
        (DELETE, _naming(it.path, _ANY_VERSION, chroot)),
        (CHECK, _naming(it.other, it.version, chroot)),
    )


def _hand_over(it: HandOver, chroot: str, _: Any) -> bytes:
    # The leader's own node last: a member hears of its own node before it hears of the leader's.
    deletions = ((DELETE, _naming(each, _ANY_VERSION, chroot)) for each in (*it.others, it.path))
    return _multi((CHECK, _naming(it.successor, _ANY_VERSION, chroot)), *deletions)


ENCODERS: dict[type, Encoder] = {
    Create: _create,
    CreateAll: _create_all,
    List: _reading(GET_CHILDREN_2, watches=False),
    WatchList: _reading(GET_CHILDREN_2, watches=True),
    Watch: _reading(GET_DATA, watches=True),
    Read: _reading(GET_DATA, watches=False),
    Exists: _reading(EXISTS, watches=False),
    WatchExists: _reading(EXISTS, watches=True),
    Sync: _sync,
    Write: _write,
    Delete: _delete,
    Check: _check,
    Mark: _mark,
    WriteAll: _write_all,
    DeleteAll: _delete_all,
    Depart: _depart,
    DeleteIf: _delete_if,
    HandOver: _hand_over,
}
"""What makes the bytes of each kind of request. A kind that is missing is several requests."""

WATCHING = {Watch: GET_DATA, WatchList: GET_CHILDREN_2, WatchExists: EXISTS}
"""The opcodes of the requests that set a watch."""


def _stat_at(body: bytes, at: int = 0) -> ZnodeStat:
    stat: ZnodeStat = tuple.__new__(ZnodeStat, _STAT.unpack_from(body, at))
    return stat


def _text_at(body: bytes, at: int) -> tuple[str, int]:
    start = at + _INT.size
    end = start + _int_at(body, at)[0]
    return body[start:end].decode(), end


def _created(body: bytes) -> tuple[str, ZnodeStat]:
    path, at = _text_at(body, 0)
    return path, _stat_at(body, at)


def _listed(body: bytes) -> tuple[list[str], ZnodeStat]:
    names = []
    count, at = _int_at(body)[0], _INT.size
    for _ in range(count):
        name, at = _text_at(body, at)
        names.append(name)
    return names, _stat_at(body, at)


def _read(body: bytes) -> tuple[bytes | None, ZnodeStat]:
    size = _int_at(body)[0]
    at = _INT.size
    if size < 0:
        return None, _stat_at(body, at)
    return body[at : at + size], _stat_at(body, at + size)


def _carried_out(body: bytes) -> list[Any]:
    """Return one result for each operation: a path, a stat, ``True`` or an exception."""
    results: list[Any] = []
    at = 0
    while True:
        kind, ended, _ = _PART.unpack_from(body, at)
        at += _PART.size
        if ended:
            return results
        if kind == SET_DATA:
            results.append(_stat_at(body, at))
            at += _STAT.size
        elif kind == CREATE:
            path, at = _text_at(body, at)
            results.append(path)
        elif kind == _FAILED:
            results.append(error_of(_int_at(body, at)[0]))
            at += _INT.size
        else:
            results.append(True)


def error_of(code: int) -> Exception:
    """Return kazoo's exception for an error code."""
    error: Exception = EXCEPTIONS.get(code, APIError)()
    return error


def _together(decoder: Callable[[bytes], Any], kinds: Iterable[type]) -> dict[type, Any]:
    return dict.fromkeys(kinds, decoder)


DECODERS: dict[type, Callable[[bytes], Any]] = {
    Create: _created,
    **_together(_listed, (List, WatchList)),
    **_together(_read, (Watch, Read)),
    **_together(_stat_at, (Exists, WatchExists)),
    **_together(
        _carried_out, (CreateAll, Check, Mark, WriteAll, DeleteAll, Depart, DeleteIf, HandOver)
    ),
}
"""What makes the value of a reply without an error. A kind that is missing has no value."""
