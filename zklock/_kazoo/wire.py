"""zklock's requests in ZooKeeper's wire format, and the values of its replies. Pure.

A reply's value is what the same call of kazoo's would return, with the paths that the server has
sent. So one translation serves both ways of asking (see ``store``).

The bytes are those of ``codec.REQUESTS`` and ``codec.REPLIES``. What each acquire and release needs
is written out here, as that is two to four times as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from kazoo.exceptions import EXCEPTIONS, APIError
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
    Expect,
    HandOver,
    List,
    Mark,
    Read,
    Sync,
    Transaction,
    Watch,
    WatchExists,
    WatchList,
    Write,
    WriteAll,
)
from zklock._wire.codec import (
    ACLS,
    BUFFER,
    END,
    INT,
    PART,
    REPLIES,
    TEXT,
    TEXTS,
    Op,
    Stat,
    stat_at,
)

# Plain numbers: an ``Op`` takes as long to look up as a request to encode.
CREATE, CREATE_2, DELETE, CHECK = map(int, (Op.CREATE, Op.CREATE2, Op.DELETE, Op.CHECK))
EXISTS, GET_DATA, SET_DATA, SYNC = map(int, (Op.EXISTS, Op.GET_DATA, Op.SET_DATA, Op.SYNC))
GET_CHILDREN, GET_CHILDREN_2, MULTI = map(int, (Op.GET_CHILDREN, Op.GET_CHILDREN2, Op.MULTI))

Encoder: TypeAlias = Callable[[Any, str, Any], bytes]
"""Takes a request, the chroot, and the ACL of new nodes, as kazoo's ``default_acl``.

It returns the opcode and the body.
"""

_EPHEMERAL_SEQUENTIAL = 3
_FAILED = -1  # an operation of a transaction
_int, _buffer, _part = INT.write, BUFFER.write, PART.pack
_text_at, _texts_at, _buffer_at = TEXT.read, TEXTS.read, BUFFER.read
_results_at = REPLIES[Op.MULTI].fields[0].read


def full_path(path: str, chroot: str) -> bytes:
    """Return the path as the servers know it."""
    return _path(path, chroot)[4:]


def _path(path: str, chroot: str) -> bytes:
    data = (chroot + path if path != "/" else chroot or path).encode()
    return _int(len(data)) + data


def _acls(acl: Any) -> bytes:
    return ACLS.write([(each.perms, *each.id) for each in acl])


_OPEN = _acls(OPEN_ACL_UNSAFE)


def _create(it: Create, chroot: str, acl: Any) -> bytes:
    return _int(CREATE_2) + _making(it, chroot, acl)


def _making(it: Create, chroot: str, acl: Any) -> bytes:
    acls = _acls(acl) if acl else _OPEN
    flags = _int(_EPHEMERAL_SEQUENTIAL)
    return b"".join((_path(it.prefix, chroot), _buffer(it.data), acls, flags))


def making(it: Exists, chroot: str, acl: Any) -> bytes:
    """Return the bytes of the request that makes this node, without data."""
    acls = _acls(acl) if acl else _OPEN
    return b"".join((_int(CREATE_2), _path(it.path, chroot), _buffer(b""), acls, _int(0)))


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


_OPERATIONS: dict[type, tuple[int, Encoder]] = {
    Create: (CREATE, _making),
    Delete: (DELETE, lambda it, chroot, _: _naming(it.path, it.version, chroot)),
    Expect: (CHECK, lambda it, chroot, _: _naming(it.path, it.version, chroot)),
    Write: (SET_DATA, lambda it, chroot, _: _setting(it.path, it.data, it.version, chroot)),
}


def _transaction(it: Transaction, chroot: str, acl: Any) -> bytes:
    parts = [_int(MULTI)]
    for each in it.operations:
        opcode, encode = _OPERATIONS[type(each)]
        parts += _part(opcode, False, -1), encode(each, chroot, acl)
    return b"".join((*parts, END))


TRANSACTIONS = (CreateAll, Check, Mark, WriteAll, DeleteAll, Depart, DeleteIf, HandOver)

ENCODERS: dict[type, Encoder] = {
    Create: _create,
    List: _reading(GET_CHILDREN_2, watches=False),
    WatchList: _reading(GET_CHILDREN_2, watches=True),
    Watch: _reading(GET_DATA, watches=True),
    Read: _reading(GET_DATA, watches=False),
    Exists: _reading(EXISTS, watches=False),
    WatchExists: _reading(EXISTS, watches=True),
    Sync: _sync,
    Write: _write,
    Delete: _delete,
    **dict.fromkeys(TRANSACTIONS, _transaction),
}
"""What makes the bytes of each kind of request. A kind that is missing is several requests."""

WATCHING = {Watch: GET_DATA, WatchList: GET_CHILDREN_2, WatchExists: EXISTS}
"""The opcodes of the requests that set a watch."""


def _created(body: bytes) -> tuple[str, Stat]:
    path, at = _text_at(body, 0)
    return path, stat_at(body, at)


def _listed(body: bytes) -> tuple[list[str], Stat]:
    names, at = _texts_at(body, 0)
    return names, stat_at(body, at)


def _read(body: bytes) -> tuple[bytes | None, Stat]:
    data, at = _buffer_at(body, 0)
    return data, stat_at(body, at)


def _seen(body: bytes) -> Stat:
    return stat_at(body, 0)


def _carried_out(body: bytes) -> list[Any]:
    """Return one result for each operation: a path, a stat, ``True`` or an exception."""
    return [
        error_of(*values) if op == _FAILED else values[0] if values else True
        for op, values in _results_at(body, 0)[0]
    ]


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
    **_together(_seen, (Exists, WatchExists)),
    **_together(_carried_out, TRANSACTIONS),
}
"""What makes the value of a reply without an error. A kind that is missing has no value."""
