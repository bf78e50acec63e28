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
_ANY_VERSION = -1
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
        parts += _part(opcode, False, -1), body
    return b"".join((*parts, END))


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
    **_together(
        _carried_out, (CreateAll, Check, Mark, WriteAll, DeleteAll, Depart, DeleteIf, HandOver)
    ),
}
"""What makes the value of a reply without an error. A kind that is missing has no value."""
