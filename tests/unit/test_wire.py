"""zklock's own bytes are kazoo's, and it reads from a reply what kazoo reads."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kazoo.exceptions import APIError, BadVersionError, NoNodeError, RolledBackError
from kazoo.protocol import serialization as kazoo
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from zklock._kazoo import wire
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
    MakePath,
    Mark,
    Read,
    Request,
    Sync,
    Watch,
    WatchExists,
    WatchList,
    Write,
    WriteAll,
)

names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
paths = st.lists(names, min_size=2, max_size=4).map(lambda parts: "/" + "/".join(parts))
chroots = st.one_of(st.just(""), paths)
data = st.binary(max_size=300)
versions = st.integers(-1, 2**31 - 1)
acls = st.sampled_from(
    [
        None,
        [],
        OPEN_ACL_UNSAFE,
        [make_digest_acl("jürgen", "pass", read=True), make_acl("auth", "", all=True)],
    ]
)
requests = st.one_of(
    st.builds(Create, paths, data),
    *(
        st.builds(kind, paths)
        for kind in (List, Watch, WatchList, WatchExists, Read, Exists, Check, Sync)
    ),
    st.builds(Delete, paths, versions),
    st.builds(Write, paths, data, versions),
    st.builds(Mark, paths, data),
    st.builds(WriteAll, paths, st.lists(st.tuples(paths, data, versions), max_size=3).map(tuple)),
    st.builds(CreateAll, st.lists(st.builds(Create, paths, data), max_size=3).map(tuple)),
    st.builds(DeleteAll, st.lists(paths, max_size=3).map(tuple)),
    st.builds(Depart, paths, data),
    st.builds(DeleteIf, paths, paths, versions),
    st.builds(HandOver, paths, st.lists(paths, max_size=3).map(tuple), paths),
)


def as_kazoo(request: Request, chroot: str, acl: Any) -> Any:
    """Return the request that kazoo's client would queue."""
    match request:
        case Create(prefix, value):
            return kazoo.Create2(chroot + prefix, value, acl or OPEN_ACL_UNSAFE, 3)
        case List(path) | WatchList(path):
            return kazoo.GetChildren2(chroot + path, isinstance(request, WatchList))
        case Watch(path) | Read(path):
            return kazoo.GetData(chroot + path, isinstance(request, Watch))
        case Exists(path) | WatchExists(path):
            return kazoo.Exists(chroot + path, isinstance(request, WatchExists))
        case Sync(path):
            return kazoo.Sync(chroot + path)
        case Delete(path, version):
            return kazoo.Delete(chroot + path, version)
        case Write(path, value, version):
            return kazoo.SetData(chroot + path, value, version)
        case CreateAll(creates):
            made = [
                kazoo.Create(chroot + it.prefix, it.data, acl or OPEN_ACL_UNSAFE, 3)
                for it in creates
            ]
            return kazoo.Transaction(made)
    return kazoo.Transaction(operations(request, chroot))


def operations(request: Request, chroot: str) -> list[Any]:
    """Return what a transaction of kazoo's would consist of."""

    def check(path: str, version: int = -1) -> Any:
        return kazoo.CheckVersion(chroot + path, version)

    def delete(path: str) -> Any:
        return kazoo.Delete(chroot + path, -1)

    def write(path: str, value: bytes, version: int = -1) -> Any:
        return kazoo.SetData(chroot + path, value, version)

    match request:
        case Check(path):
            return [check(path)]
        case Mark(path, value):
            return [check(path), write(path.rpartition("/")[0], value)]
        case WriteAll(path, writes):
            return [check(path), *(write(*each) for each in writes)]
        case DeleteAll(several):
            return [delete(path) for path in several]
        case Depart(path, value):
            return [delete(path), write(path.rpartition("/")[0], value)]
        case DeleteIf(path, other, version):
            return [delete(path), check(other, version)]
        case HandOver(path, others, successor):
            return [check(successor), *map(delete, (*others, path))]
    raise NotImplementedError(request)


def encoded(request: Request, chroot: str, acl: Any) -> bytes:
    return wire.ENCODERS[type(request)](request, chroot, acl)


@given(request=requests, chroot=chroots, acl=acls)
def test_a_request_is_what_kazoo_would_send(request: Request, chroot: str, acl: Any) -> None:
    wanted = as_kazoo(request, chroot, acl)
    whole = struct.pack(">i", wanted.type) + wanted.serialize()
    assert encoded(request, chroot, acl) == whole


@pytest.mark.parametrize(("chroot", "wanted"), [("", b"/"), ("/a/b", b"/a/b")])
def test_the_root_is_that_of_the_client(chroot: str, wanted: bytes) -> None:
    assert encoded(Sync("/"), chroot, None).endswith(struct.pack(">i", len(wanted)) + wanted)


def test_what_takes_several_requests_is_left_to_kazoo() -> None:
    assert MakePath not in wire.ENCODERS


stats = st.tuples(
    *(st.integers(-(2**63), 2**63 - 1) for _ in range(4)),
    *(st.integers(-(2**31), 2**31 - 1) for _ in range(3)),
    st.integers(-(2**63), 2**63 - 1),
    *(st.integers(-(2**31), 2**31 - 1) for _ in range(2)),
    st.integers(-(2**63), 2**63 - 1),
).map(ZnodeStat._make)


def packed(stat: ZnodeStat) -> bytes:
    body: bytes = kazoo.stat_struct.pack(*stat)
    return body


@given(path=paths, stat=stats)
def test_a_created_node(path: str, stat: ZnodeStat) -> None:
    body = kazoo.write_string(path) + packed(stat) + b"next"
    assert wire.DECODERS[Create](body) == (path, stat)
    assert kazoo.Create2.deserialize(body, 0) == (path, stat)


@pytest.mark.parametrize("request_", [List("/a"), WatchList("/a")])
@given(children=st.lists(names, max_size=5), stat=stats)
def test_a_listing(request_: Request, children: list[str], stat: ZnodeStat) -> None:
    count = struct.pack(">i", len(children))
    body = count + b"".join(map(kazoo.write_string, children)) + packed(stat)
    assert wire.DECODERS[type(request_)](body) == (children, stat)
    assert kazoo.GetChildren2.deserialize(body, 0) == (children, stat)


@pytest.mark.parametrize("request_", [Watch("/a"), Read("/a")])
@given(value=st.one_of(st.none(), data), stat=stats)
def test_data(request_: Request, value: bytes | None, stat: ZnodeStat) -> None:
    body = kazoo.write_buffer(value) + packed(stat)
    got = wire.DECODERS[type(request_)](body)
    assert got == (value, stat) == kazoo.GetData.deserialize(body, 0)
    assert got[0] is None or type(got[0]) is bytes


@pytest.mark.parametrize("request_", [Exists("/a"), WatchExists("/a")])
@given(stat=stats)
def test_a_stat(request_: Request, stat: ZnodeStat) -> None:
    assert wire.DECODERS[type(request_)](packed(stat)) == stat


@pytest.mark.parametrize("request_", [Sync("/a"), Delete("/a"), Write("/a", b"")])
def test_nothing(request_: Request) -> None:
    assert type(request_) not in wire.DECODERS


results = st.lists(
    st.one_of(
        st.sampled_from([2, 13]),
        paths,
        stats,
        st.sampled_from([RolledBackError, NoNodeError, BadVersionError]),
    ),
    max_size=4,
)


@given(results=results)
def test_the_results_of_a_transaction(results: list[Any]) -> None:
    body = b""
    for result in results:
        if isinstance(result, int):
            body += kazoo.MultiHeader(result, False, -1).serialize()
        elif isinstance(result, str):
            body += kazoo.MultiHeader(1, False, -1).serialize() + kazoo.write_string(result)
        elif isinstance(result, ZnodeStat):
            body += kazoo.MultiHeader(5, False, -1).serialize() + packed(result)
        else:
            code = result.code
            body += kazoo.MultiHeader(-1, False, code).serialize() + struct.pack(">i", code)
    body += kazoo.MultiHeader(-1, True, -1).serialize()
    got = wire.DECODERS[Check](body)
    assert list(map(repr, got)) == list(map(repr, kazoo.Transaction.deserialize(body, 0)))


def test_an_error_that_kazoo_does_not_know() -> None:
    assert isinstance(wire.error_of(-101), NoNodeError)
    assert isinstance(wire.error_of(-12345), APIError)
