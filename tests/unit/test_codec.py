"""The codec: its bytes are kazoo's, both sides read what the other writes, and streams are cut."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from kazoo.exceptions import APIError, NoNodeError
from kazoo.protocol import serialization as kazoo
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from tests.modes import examples
from zklock._core import wire
from zklock._core.wire import Codec
from zklock._recipes.effects import (
    Check,
    Create,
    Delete,
    Exists,
    Failure,
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
from zklock.testing.zookeeper import codec, messages
from zklock.testing.zookeeper.codec import (
    REPLIES,
    REQUESTS,
    Acl,
    Field,
    Malformed,
    Op,
    Record,
    Splitter,
    Stat,
)
from zklock.testing.zookeeper.messages import (
    EventKind,
    Unknown,
    Unreadable,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)  # kazoo's null is ""
names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
paths = st.lists(names, min_size=2, max_size=4).map(lambda parts: "/" + "/".join(parts))
chroots = st.one_of(st.just(""), paths)
data = st.binary(max_size=300)
ME = 7
versions = st.integers(-1, 2**31 - 1)
acls = st.sampled_from(
    [
        None,
        [],
        OPEN_ACL_UNSAFE,
        [make_digest_acl("jürgen", "pass", read=True), make_acl("auth", "", all=True)],
    ]
)
creates = st.builds(Create, paths, data)
deletes = st.builds(Delete, paths, versions)
writes = st.builds(Write, paths, data, versions)
checks = st.builds(Check, paths, versions)
operations = st.one_of(deletes, writes, checks)
requests = st.one_of(
    creates,
    operations,
    *(st.builds(kind, paths) for kind in (List, Watch, WatchList, WatchExists, Read, Exists, Sync)),
    st.builds(Transaction, st.lists(operations, max_size=4).map(tuple)),
)


def as_kazoo(request: Request, chroot: str, acl: Any, *, part: bool = False) -> Any:
    """Return the request that kazoo's client would queue; ``part``: of a transaction."""
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
        case Check(path, version) if part:
            return kazoo.CheckVersion(chroot + path, version)
        case Check():
            return kazoo.Transaction([as_kazoo(request, chroot, acl, part=True)])
        case Transaction(several):
            return kazoo.Transaction([as_kazoo(it, chroot, acl, part=True) for it in several])
    raise NotImplementedError(request)


def encoded(request: Request, chroot: str, acl: Any) -> bytes:
    body = Codec(chroot, lambda: acl, lambda: 0).encode(request)
    assert isinstance(body, bytes)
    return body


def decoded(request: Request, body: bytes) -> Any:
    return Codec("/app", lambda: None, lambda: ME).result(request, 0, body)


@given(request=requests, chroot=chroots, acl=acls)
def test_a_request_is_what_kazoo_would_send(request: Request, chroot: str, acl: Any) -> None:
    wanted = as_kazoo(request, chroot, acl)
    whole = struct.pack(">i", wanted.type) + wanted.serialize()
    assert encoded(request, chroot, acl) == whole


@pytest.mark.parametrize(("chroot", "wanted"), [("", b"/"), ("/a/b", b"/a/b")])
def test_the_root_is_that_of_the_client(chroot: str, wanted: bytes) -> None:
    assert encoded(Sync("/"), chroot, None).endswith(struct.pack(">i", len(wanted)) + wanted)


def test_what_is_made_is_open_or_as_the_client_says_and_the_root_is_there() -> None:
    for chroot, path in (("", "/a"), ("/app/", "/a"), ("/app", "/")):
        full = chroot if path == "/" else chroot.rstrip("/") + path
        whole = kazoo.Create2(full, b"", OPEN_ACL_UNSAFE, 0)
        assert encoded(Make(path), chroot, None) == struct.pack(">i", 15) + whole.serialize()
    assert encoded(Make("/"), "", None) == encoded(Exists("/"), "", None)


ints, longs = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
stats = st.builds(Stat, *[longs] * 4, *[ints] * 3, longs, ints, ints, longs).filter(
    lambda stat: stat.czxid != -1  # kazoo's "no node"
)
entries = st.builds(Acl, st.integers(0, 31), st.text("ab"), st.text("xyz:"))
buffers = st.one_of(st.none(), data)
of_field: dict[Field, st.SearchStrategy[Any]] = {
    codec.INT: ints,
    codec.LONG: longs,
    codec.FLAG: st.booleans(),
    codec.TEXT: texts,
    codec.BUFFER: buffers,
    codec.STAT: stats,
    codec.TEXTS: st.lists(texts, max_size=3),
    codec.ACLS: st.lists(entries, max_size=3),
    REPLIES[Op.WHO_AM_I].fields[0]: st.lists(st.tuples(texts, texts), max_size=3),
    codec.CONNECT.fields[-1]: st.booleans(),
}
IN_A_TRANSACTION = [
    Op.CREATE,
    Op.CREATE2,
    Op.CREATE_CONTAINER,
    Op.CREATE_TTL,
    Op.DELETE,
    Op.SET_DATA,
    Op.CHECK,
]


def parts(table: dict[int, Record]) -> st.SearchStrategy[Any]:
    """Return what makes the parts of a transaction."""
    kinds = [st.tuples(st.just(op), values_of(table[op])) for op in IN_A_TRANSACTION]
    if table is REPLIES:
        kinds.append(st.tuples(st.just(Op.ERROR), st.tuples(st.sampled_from([0, -2, -101, -103]))))
    return st.lists(st.one_of(kinds), max_size=4)


def values_of(record: Record) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(of_field[field] for field in record.fields))


for table in (REQUESTS, REPLIES):
    of_field[table[Op.MULTI].fields[0]] = parts(table)

HEADS = [codec.CONNECT, codec.CONNECTED, codec.ASKED, codec.ANSWERED, codec.EVENT]
KINDS = {each.fields: each for each in (*HEADS, *REQUESTS.values(), *REPLIES.values())}
some = settings(max_examples=examples(40))


@some
@given(chosen=st.data())
@pytest.mark.parametrize("record", KINDS.values())
def test_what_is_written_is_read(record: Record, chosen: st.DataObject) -> None:
    values = chosen.draw(values_of(record))
    body = record.pack(values)
    assert record.unpack(b"head" + body, 4) == (values, 4 + len(body))
    if body:
        short = body[: chosen.draw(st.integers(0, len(body) - 1))]
        handshake = record in (codec.CONNECT, codec.CONNECTED) and len(short) == len(body) - 1
        if handshake:  # an old client's, or server's
            assert record.unpack(short)[0] == (*values[:-1], None)
        else:
            with pytest.raises(Malformed):
                record.unpack(short)


def test_an_empty_text_is_not_null() -> None:
    record = Record(codec.TEXTS)
    assert record.unpack(record.pack((["", "a"],))) == ((["", "a"],), 13)
    assert record.unpack(b"\xff" * 4) == (([],), 4)
    with pytest.raises(Malformed):
        Record(codec.TEXT).unpack(b"\xff" * 4)
    with pytest.raises(Malformed):
        Record(codec.BUFFER).unpack(b"\xff\xff\xff\xfe")


OPERATIONS_OF: dict[int, Any] = {
    Op.DELETE: Delete("/d"),
    Op.SET_DATA: Write("/w", b""),
    Op.CHECK: Check("/c"),
}


@some
@given(parts=st.lists(st.tuples(st.sampled_from([*OPERATIONS_OF]), stats), min_size=1, max_size=4))
def test_a_transaction_that_was_carried_out(parts: Any) -> None:
    said = [(op, (stat,) if op == Op.SET_DATA else ()) for op, stat in parts]
    request = Transaction(tuple(OPERATIONS_OF[op] for op, _ in parts))
    body = REPLIES[Op.MULTI].pack((said,))
    assert decoded(request, body) is None
    end = len(body) - 9  # where the list does
    assert decoded(request, body[:end]) is None
    for cut in (8, end - 1):
        assert decoded(request, body[:cut]).why is Failure.OTHER


@pytest.mark.parametrize("code", [-101, -103, -12345])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_transaction_that_was_refused_says_for_which_operation(at: int, code: int) -> None:
    """Those before it were rolled back (0), those behind it not tried (-2)."""
    operations = Delete("/d"), Write("/w", b""), Check("/c")
    codes = [0] * at + [code] + [-2] * (2 - at)
    body = REPLIES[Op.MULTI].pack(([(Op.ERROR, (each,)) for each in codes],))
    got = decoded(Transaction(operations), body)
    whys = {-101: Failure.MISSING, -103: Failure.CHANGED, -12345: Failure.OTHER}
    assert (got.why, got.node) == (whys[code], "/w" if at == 1 else None)


def test_a_failed_part_has_its_error_twice() -> None:
    body = REPLIES[Op.MULTI].pack(([(Op.ERROR, (-101,)), (Op.DELETE, ())],))
    assert body == struct.pack(
        ">i?ii" + "i?i" * 2, -1, False, -101, -101, 2, False, 0, -1, True, -1
    )


REPLIED: dict[Request, Op] = {
    Create("/a/x-", b"mine"): Op.CREATE2,
    **dict.fromkeys((List("/a"), WatchList("/a")), Op.GET_CHILDREN2),
    **dict.fromkeys((Watch("/a"), Read("/a")), Op.GET_DATA),
    **dict.fromkeys((Exists("/a"), WatchExists("/a")), Op.EXISTS),
}


@some
@given(chosen=st.data())
@pytest.mark.parametrize("request_", REPLIED)
def test_the_value_of_a_reply(request_: Request, chosen: st.DataObject) -> None:
    record = REPLIES[REPLIED[request_]]
    values = chosen.draw(values_of(record))
    if isinstance(request_, Create):
        values = "/app/a/x-0000000001", *values[1:]
    body, stat = record.pack(values), values[-1]
    got = decoded(request_, body + b"next")
    if isinstance(got, Listing):
        assert got == Listing(values[0], stat.czxid, stat.cversion, stat.dataLength)
    else:
        path = "/a"
        said = (values[0] or b"") if isinstance(request_, Watch | Read) else b""
        if isinstance(request_, Create):
            path, said = "/a/x-0000000001", b"mine"
        owner = stat.ephemeralOwner
        assert got == Node(path, said, owner, owner == ME, stat.version, stat.ctime, stat.mtime)
    for end in {0, len(body) - 1, chosen.draw(st.integers(0, len(body) - 1))}:
        assert decoded(request_, body[:end]).why is Failure.OTHER


@pytest.mark.parametrize("request_", [Sync("/a"), Delete("/a"), Write("/a", b""), Make("/a")])
def test_nothing(request_: Request) -> None:
    assert decoded(request_, b"whatever") is None


@pytest.mark.parametrize(
    ("owner", "session", "mine"),
    [(ME, ME, True), (ME + 1, ME, False), (0, ME, False), (0, 0, False)],
)
def test_a_node_is_mine_if_it_is_of_the_present_session(
    owner: int, session: int, mine: bool
) -> None:
    stat = REPLIES[Op.EXISTS].pack((Stat(1, 2, 3, 4, 5, 6, 7, owner, 8, 9, 10),))
    assert Codec("", lambda: None, lambda: session).result(Exists("/a"), 0, stat).mine is mine


def test_what_an_error_means_and_that_a_node_that_is_there_need_not_be_made() -> None:
    codec_ = Codec("", lambda: None, lambda: ME)
    assert codec_.result(Make("/a"), -110, b"") is None
    assert codec_.result(Make("/a"), -102, b"").why is Failure.DENIED
    assert codec_.result(Delete("/a"), -110, b"").why is Failure.OTHER
    for code, error in ((-101, NoNodeError), (-12345, APIError)):  # kazoo does not know the second
        assert type(wire.error_of(code)) is error


NO_LOCK_ASKS = {
    Op.CHECK_WATCHES,
    Op.REMOVE_WATCHES,
    Op.GET_EPHEMERALS,
    Op.GET_ALL_CHILDREN_NUMBER,
    Op.SET_WATCHES2,
    Op.ADD_WATCH,
    Op.WHO_AM_I,
}
"""Requests that a proxy knows, and no client in Python sends: the embedded server has none."""


@some
@given(chosen=st.data())
@pytest.mark.parametrize("op", sorted({*REQUESTS} - NO_LOCK_ASKS), ids=lambda op: Op(op).title)
def test_a_server_knows_every_request(op: int, chosen: st.DataObject) -> None:
    values = chosen.draw(values_of(REQUESTS[op]))
    body = REQUESTS[op].pack(values)
    xid, request = messages.read_request(codec.ASKED.pack((7, op)) + body)
    *fields, of = request
    assert (xid, of) == (7, op)
    if op == Op.MULTI:
        assert [each.op for each in request.parts] == [part for part, _ in values[0]]  # type: ignore[union-attr]
    elif op != Op.RECONFIG:
        values = values[1:] if op == Op.AUTH else values[:4] if op == Op.CREATE_TTL else values
        assert tuple(fields[: len(values)]) == values
    if body:
        short = codec.ASKED.pack((7, op)) + body[:-1]
        assert messages.read_request(short) == (7, Unreadable(Op(op)))


@pytest.mark.parametrize("op", [Op.ERROR, Op.SASL, Op.MULTI_READ, 12345])
def test_a_server_knows_no_other_request(op: int) -> None:
    assert messages.read_request(codec.ASKED.pack((7, op))) == (7, Unknown(op))


@pytest.mark.parametrize("op", [Op.ERROR, Op.EXISTS, Op.MULTI, 12345])
def test_a_transaction_has_no_other_part(op: int) -> None:
    asked = codec.ASKED.pack((7, Op.MULTI)) + struct.pack(">i?i", op, False, -1) + bytes(100)
    assert messages.read_request(asked) == (7, Unreadable(Op.MULTI))


OPERATIONS = """
    create 1 delete 2 exists 3 getData 4 setData 5 getACL 6 setACL 7 getChildren 8 sync 9 ping 11
    getChildren2 12 check 13 multi 14 create2 15 reconfig 16 checkWatches 17 removeWatches 18
    createContainer 19 deleteContainer 20 createTTL 21 multiRead 22 auth 100 setWatches 101 sasl 102
    getEphemerals 103 getAllChildrenNumber 104 setWatches2 105 addWatch 106 whoAmI 107
    closeSession -11 error -1
"""


def test_names_and_numbers_are_zookeepers() -> None:
    assert " ".join(f"{op.title} {op.value}" for op in Op) == " ".join(OPERATIONS.split())
    assert [(kind.value, kind.title) for kind in EventKind] == [
        (1, "NodeCreated"),
        (2, "NodeDeleted"),
        (3, "NodeDataChanged"),
        (4, "NodeChildrenChanged"),
    ]
    assert (codec.EVENT_XID, codec.PING_XID) == (-1, -2)
    assert (codec.EPHEMERAL, codec.SEQUENTIAL) == (1, 2)


CONNECT = codec.framed(codec.CONNECT.pack((0, 0, 4000, 0, bytes(16), False)))


@given(st.lists(st.binary(max_size=200), max_size=8), st.data())
def test_frames_are_cut_alike_however_the_stream_is_chopped(
    bodies: list[bytes], chosen: st.DataObject
) -> None:
    stream = CONNECT + b"".join(map(codec.framed, bodies))
    cuts = chosen.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    splitter = Splitter()
    seen: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        whole, opaque = splitter.feed(stream[start:end])
        seen += whole
        assert not opaque
    assert seen == [CONNECT[4:], *bodies]
    assert splitter.rest() == b""


@given(st.lists(st.binary(min_size=1, max_size=50)))
def test_no_byte_is_lost_or_invented_whatever_the_stream(pieces: list[bytes]) -> None:
    splitter = Splitter()
    out = b""
    for piece in pieces:
        whole, opaque = splitter.feed(piece)
        out += b"".join(map(codec.framed, whole)) + opaque
    assert out + splitter.rest() == b"".join(pieces)


@pytest.mark.parametrize(
    "start", [b"srvr", b"isro", b"\x16\x03\x01\x02\x00", bytes(4), b"\xff\xff\xff\xff"]
)
def test_what_does_not_begin_with_a_handshake_is_opaque(start: bytes) -> None:
    splitter = Splitter()
    assert splitter.feed(start) == ([], start)
    assert splitter.feed(CONNECT) == ([], CONNECT)


@pytest.mark.parametrize(
    ("longest", "first", "later"), [(2**31 - 1, 4096, 2**31 - 1), (5000, 4096, 5000), (40, 40, 40)]
)
def test_a_length_that_cannot_be_makes_the_rest_opaque(
    longest: int, first: int, later: int
) -> None:
    for size in (1, first):
        splitter, whole = Splitter(longest), codec.framed(bytes(size))
        assert splitter.feed(whole + struct.pack(">i", later)) == ([whole[4:]], b"")
    for start in (0, first + 1):
        assert Splitter(longest).feed(struct.pack(">i", start))[1] == struct.pack(">i", start)
    for length in {-1, min(later + 1, 2**31 - 1)} - {later}:
        rest = struct.pack(">i", length) + b"x"
        assert Splitter(longest).feed(codec.framed(b"a") + rest) == ([b"a"], rest)


def test_an_incomplete_frame_is_left_over_at_the_end() -> None:
    splitter = Splitter()
    assert splitter.feed(CONNECT[:10]) == ([], b"")
    assert splitter.rest() == CONNECT[:10]
