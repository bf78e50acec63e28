"""The snapshot editor on snapshots written here; the contract tests use ZooKeeper's own."""

import struct
import zlib

import pytest
from hypothesis import given, strategies as st

from zklock.testing import snapshot

STAT = ">qqqqiiiqq"
counters = st.integers(-(2**31), 2**31 - 1)
names = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1)
paths = st.lists(names, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
nodes = st.dictionaries(paths, st.tuples(st.binary(max_size=9) | st.none(), counters), max_size=6)
sessions = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31 - 1)))


def buffer(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def seal(body: bytes) -> bytes:
    return struct.pack(">q", zlib.adler32(body)) + buffer(b"/")


def encode(
    tree: dict[str, tuple[bytes | None, int]], live: list[tuple[int, int]], lists: int = 1
) -> bytes:
    body = b"ZKSN" + struct.pack(">iq", 2, -1)
    body += struct.pack(">i", len(live)) + b"".join(struct.pack(">qi", *one) for one in live)
    body += struct.pack(">i", lists)
    for key in range(lists):
        body += struct.pack(">qii", key, 1, 31) + buffer(b"world") + buffer(b"anyone")
    for path, (data, counter) in tree.items():
        stat = struct.pack(STAT, 1, 2, 3, 4, 5, counter, 7, 8, 9)
        body += buffer(path.encode()) + buffer(data) + struct.pack(">q", 1) + stat
    return body + buffer(b"/")


@given(nodes, sessions, st.integers(0, 3), counters, st.data())
def test_exactly_the_counter_and_the_seal_change(
    tree: dict[str, tuple[bytes | None, int]],
    live: list[tuple[int, int]],
    lists: int,
    value: int,
    data: st.DataObject,
) -> None:
    whole = {"": (b"", 3), **tree}
    path = data.draw(st.sampled_from(sorted(whole)))
    body = encode(whole, live, lists)
    edited = snapshot.set_child_counter(body + seal(body), path or "/", value)
    expected = encode({**whole, path: (whole[path][0], value)}, live, lists)
    assert edited == expected + seal(expected)


def test_what_follows_the_seal_is_left_out() -> None:
    body = encode({"": (b"", 1)}, [])
    digest = struct.pack(">qiq", 1, 2, 3)
    sealed = body + seal(body)
    edited = snapshot.set_child_counter(sealed + digest + seal(sealed + digest), "/", 1)
    assert edited == sealed


def test_what_is_not_there() -> None:
    body = encode({"": (b"", 1), "/a": (b"", 1)}, [])
    with pytest.raises(KeyError, match="/b"):
        snapshot.set_child_counter(body + seal(body), "/b", 1)
    for value in (2**31, -(2**31) - 1):
        with pytest.raises(ValueError, match="32-bit"):
            snapshot.set_child_counter(b"", "/", value)
    with pytest.raises(LookupError):
        snapshot.newest(["log.1", "snapshot.1.snappy"])


@given(st.data())
def test_a_damaged_snapshot_is_refused_not_written(data: st.DataObject) -> None:
    body = encode({"": (b"", 1), "/lock": (b"data", 7)}, [(1, 4000)])
    whole = body + seal(body)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError, match="snapshot"):
        snapshot.set_child_counter(whole[:cut], "/lock", 1)


def test_newest_compares_numbers_not_text() -> None:
    names = ["snapshot.9", "snapshot.1a", "log.ff", "acceptedEpoch", "snapshot.ff.gz"]
    assert snapshot.newest(names) == "snapshot.1a"
