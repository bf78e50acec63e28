"""zklock's requests in ZooKeeper's wire format, and the values of its replies. Pure.

A reply's value is what the same call of kazoo's would return, with the paths that the server has
sent. So one translation serves both ways of asking (see ``store``).

The bytes are those of ``codec.REQUESTS`` and ``codec.REPLIES``. What each acquire and release needs
is written out here, as that is two to four times as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from kazoo.exceptions import EXCEPTIONS, APIError
from kazoo.security import OPEN_ACL_UNSAFE

from zklock._recipes.effects import (
    Check,
    Create,
    Delete,
    Exists,
    List,
    Read,
    Sync,
    Transaction,
    Watch,
    WatchExists,
    WatchList,
    Write,
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
CREATE_2, DELETE, CHECK = map(int, (Op.CREATE2, Op.DELETE, Op.CHECK))
EXISTS, GET_DATA, SET_DATA, SYNC = map(int, (Op.EXISTS, Op.GET_DATA, Op.SET_DATA, Op.SYNC))
GET_CHILDREN, GET_CHILDREN_2, MULTI = map(int, (Op.GET_CHILDREN, Op.GET_CHILDREN2, Op.MULTI))

Encoder: TypeAlias = Callable[[Any, str, Any], bytes]
"""Takes a request, the chroot, and the ACL of new nodes, as kazoo's ``default_acl``."""


class Kind(NamedTuple):
    """How a kind of request is written, and how the value of its answer is read.

    ``head``: its opcode, which the bytes of ``encode`` follow. ``decode`` is ``None`` if there is
    no value.
    """

    opcode: int
    head: bytes
    encode: Encoder
    decode: Callable[[bytes], Any] | None


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
    acls = _acls(acl) if acl else _OPEN
    flags = _int(_EPHEMERAL_SEQUENTIAL)
    return b"".join((_path(it.prefix, chroot), _buffer(it.data), acls, flags))


def _make(it: Exists, chroot: str, acl: Any) -> bytes:
    acls = _acls(acl) if acl else _OPEN
    return b"".join((_path(it.path, chroot), _buffer(b""), acls, _int(0)))


def _look(it: List | Read | Exists, chroot: str, _: Any) -> bytes:
    return _path(it.path, chroot) + b"\0"


def _watch(it: WatchList | Watch | WatchExists, chroot: str, _: Any) -> bytes:
    return _path(it.path, chroot) + b"\1"


def _sync(it: Sync, chroot: str, _: Any) -> bytes:
    return _path(it.path, chroot)


def _write(it: Write, chroot: str, _: Any) -> bytes:
    return _path(it.path, chroot) + _buffer(it.data) + _int(it.version)


def _versioned(it: Delete | Check, chroot: str, _: Any) -> bytes:
    return _path(it.path, chroot) + _int(it.version)


_PARTS: dict[type, tuple[int, Encoder]] = {
    Delete: (DELETE, _versioned),
    Write: (SET_DATA, _write),
    Check: (CHECK, _versioned),
}


def _transaction(it: Transaction | Check, chroot: str, acl: Any) -> bytes:
    parts: list[bytes] = []
    for each in it.operations if isinstance(it, Transaction) else (it,):
        opcode, encode = _PARTS[type(each)]
        parts += _part(opcode, False, -1), encode(each, chroot, acl)
    return b"".join((*parts, END))


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


def _kind(opcode: int, encode: Encoder, decode: Callable[[bytes], Any] | None = None) -> Kind:
    return Kind(opcode, _int(opcode), encode, decode)


KINDS: dict[type, Kind] = {
    Create: _kind(CREATE_2, _create, _created),
    List: _kind(GET_CHILDREN_2, _look, _listed),
    WatchList: _kind(GET_CHILDREN_2, _watch, _listed),
    Watch: _kind(GET_DATA, _watch, _read),
    Read: _kind(GET_DATA, _look, _read),
    Exists: _kind(EXISTS, _look, _seen),
    WatchExists: _kind(EXISTS, _watch, _seen),
    Sync: _kind(SYNC, _sync),
    Write: _kind(SET_DATA, _write),
    Delete: _kind(DELETE, _versioned),
    **dict.fromkeys((Transaction, Check), _kind(MULTI, _transaction, _carried_out)),
}
"""One that is missing is several requests."""

MAKE = _kind(CREATE_2, _make)
"""A node that stays, without data: one of these requests."""
