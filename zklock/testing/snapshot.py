"""Edits a ZooKeeper snapshot: moves a znode's create counter, the source of sequence numbers.

The counter is the ``cversion`` of the znode's persisted Stat. To reach its end by creating
children takes two thousand million requests. To write it into the snapshot of a stopped server
takes none. Pure: bytes to bytes.

The format is from ``FileSnap``, ``SerializeUtils`` and ``DataTree`` of ZooKeeper 3.5 to 3.9. All
numbers are big-endian:

- a header (magic, version, database id);
- sessions (count, each id and timeout);
- ACL lists (count, each key and list of permissions, scheme, id);
- znodes (path, data, ACL key, Stat) up to the path "/", which ends them; the root is "";
- a seal (Adler-32 of everything before it as a long, then "/").

Later versions append sealed sections, which readers treat as optional. One of them is a digest of
the tree, which is wrong after an edit. So these sections are left out.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable

from zklock.testing.zookeeper.codec import ACLS, BUFFER, INT, Malformed

_MAGIC = b"ZKSN"
_STAT = struct.Struct(">qqqqiiiqq")
_CVERSION_AT = struct.calcsize(">qqqqi")
_NAME = re.compile(r"snapshot\.([0-9a-f]+)", re.ASCII)


def newest(names: Iterable[str]) -> str:
    """Return the name of the snapshot with the highest zxid; ``LookupError`` if there is none."""
    found = {int(match[1], 16): name for name in names if (match := _NAME.fullmatch(name))}
    if not found:
        raise LookupError("no snapshot that is neither compressed nor partial")
    return found[max(found)]


def set_child_counter(content: bytes, path: str, value: int) -> bytes:
    """Return the snapshot with the counter of the znode at ``path`` set to ``value``.

    The next sequential child then gets the number ``value``. ``KeyError`` if the snapshot has no
    such znode. ``ValueError`` if the content is no snapshot, is damaged, or if the value is not a
    32-bit number.
    """
    if not -(2**31) <= value < 2**31:
        raise ValueError(f"a child counter is a signed 32-bit number, not {value}")
    try:
        stat_at, end = _locate(content, "" if path == "/" else path)
    except (struct.error, Malformed) as error:
        raise ValueError("the snapshot ends too early") from error
    body = bytearray(content[:end])
    if stat_at is None:
        raise KeyError(path)
    struct.pack_into(">i", body, stat_at + _CVERSION_AT, value)
    return bytes(body) + _seal(body)


def _locate(content: bytes, path: str) -> tuple[int | None, int]:
    """Return the offset of the znode's Stat, and that of the first seal."""
    if content[:4] != _MAGIC:
        raise ValueError("not a ZooKeeper snapshot")
    sessions, at = INT.read(content, struct.calcsize(">4siq"))
    lists, at = INT.read(content, at + 12 * sessions)
    for _ in range(lists):
        _, at = ACLS.read(content, at + 8)
    wanted, stat_at = path.encode(), None
    while (found := BUFFER.read(content, at))[0] != b"/":
        _, at = BUFFER.read(content, found[1])
        at += 8
        if found[0] == wanted:
            stat_at = at
        at += _STAT.size
    at = found[1]
    seal = _seal(content[:at])
    if content[at : at + len(seal)] != seal:
        raise ValueError("the snapshot's checksum is wrong")
    return stat_at, at


def _seal(body: bytes | bytearray) -> bytes:
    return struct.pack(">qi", zlib.adler32(body), 1) + b"/"
