from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from tests.unit.testing import wire
from zklock.testing.frames import Dialogue, Direction, FrameKind, Header, Splitter

TO_SERVER, TO_CLIENT = Direction.TO_SERVER, Direction.TO_CLIENT


def greeted() -> Dialogue:
    dialogue = Dialogue()
    dialogue.read(TO_SERVER, wire.CONNECT)
    dialogue.read(TO_CLIENT, wire.CONNECTED)
    return dialogue


@given(st.lists(st.binary(max_size=200), max_size=8), st.data())
def test_frames_are_cut_alike_however_the_stream_is_chopped(
    bodies: list[bytes], data: st.DataObject
) -> None:
    frames = [wire.CONNECT, *map(wire.frame, bodies)]
    stream = b"".join(frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    splitter = Splitter()
    seen: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        whole, opaque = splitter.feed(stream[start:end])
        seen += whole
        assert not opaque
    assert seen == frames
    assert splitter.rest() == b""


@given(st.lists(st.binary(min_size=1, max_size=50)))
def test_no_byte_is_lost_or_invented_whatever_the_stream(pieces: list[bytes]) -> None:
    splitter = Splitter()
    out = b""
    for piece in pieces:
        whole, opaque = splitter.feed(piece)
        out += b"".join(whole) + opaque
    assert out + splitter.rest() == b"".join(pieces)


@pytest.mark.parametrize(
    "start", [b"srvr", b"isro", b"\x16\x03\x01\x02\x00", bytes(4), b"\xff\xff\xff\xff"]
)
def test_what_does_not_begin_with_a_handshake_is_opaque(start: bytes) -> None:
    splitter = Splitter()
    assert splitter.feed(start) == ([], start)
    assert splitter.feed(wire.CONNECT) == ([], wire.CONNECT)


def test_a_negative_length_later_makes_the_rest_opaque() -> None:
    splitter = Splitter()
    assert splitter.feed(wire.CONNECT + b"\xff\xff\xff\xffx") == (
        [wire.CONNECT],
        b"\xff\xff\xff\xffx",
    )


def test_an_incomplete_frame_is_left_over_at_the_end() -> None:
    splitter = Splitter()
    assert splitter.feed(wire.CONNECT[:10]) == ([], b"")
    assert splitter.rest() == wire.CONNECT[:10]


def test_the_handshake_tells_session_and_timeout() -> None:
    dialogue = Dialogue()
    assert dialogue.read(TO_SERVER, wire.CONNECT) == Header(FrameKind.HANDSHAKE, "connect")
    assert dialogue.read(TO_CLIENT, wire.CONNECTED) == Header(FrameKind.HANDSHAKE, "connect")
    assert dialogue.session_id == wire.SESSION_ID
    assert dialogue.session_timeout == 4.0


def test_a_refused_session_has_no_id() -> None:
    dialogue = Dialogue()
    dialogue.read(TO_SERVER, wire.CONNECT)
    dialogue.read(TO_CLIENT, wire.frame(struct.pack(">iiqi16s?", 0, 0, 0, 16, bytes(16), False)))
    assert dialogue.session_id is None
    assert dialogue.session_timeout is None


def test_replies_are_named_after_their_requests() -> None:
    dialogue = greeted()
    create = dialogue.read(TO_SERVER, wire.request(1, "create2", "/p/ö"))
    assert create == Header(FrameKind.REQUEST, "create2", 1, "/p/ö")
    dialogue.read(TO_SERVER, wire.request(2, "exists", "/q"))
    assert dialogue.unanswered() == Header(FrameKind.REQUEST, "exists", 2, "/q")
    assert dialogue.read(TO_CLIENT, wire.reply(1)) == Header(
        FrameKind.REPLY, "create2", 1, "/p/ö", 0
    )
    assert dialogue.read(TO_CLIENT, wire.reply(2, -101)) == Header(
        FrameKind.REPLY, "exists", 2, "/q", -101
    )
    assert dialogue.unanswered() is None


def test_frames_that_carry_no_work_are_neither_requests_nor_replies() -> None:
    dialogue = greeted()
    for xid, code, kind in (
        (wire.PING, 11, FrameKind.PING),
        (wire.AUTH, 100, FrameKind.CONTROL),
        (wire.SET_WATCHES, 101, FrameKind.CONTROL),
        (0, 102, FrameKind.CONTROL),
    ):
        asked = dialogue.read(TO_SERVER, wire.frame(struct.pack(">ii", xid, code)))
        assert asked.kind is kind
        assert dialogue.read(TO_CLIENT, wire.reply(xid))[:3] == asked[:3]


@pytest.mark.parametrize(
    ("code", "op"),
    [
        (1, "NodeCreated"),
        (2, "NodeDeleted"),
        (3, "NodeDataChanged"),
        (4, "NodeChildrenChanged"),
        (9, "event 9"),
    ],
)
def test_events_are_named_by_their_type(code: int, op: str) -> None:
    assert greeted().read(TO_CLIENT, wire.event(code, "/x")) == Header(
        FrameKind.EVENT, op, -1, "/x"
    )


@given(st.sampled_from(Direction), st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_are_called_something(direction: Direction, bodies: list[bytes]) -> None:
    dialogue = greeted()
    for body in bodies:
        assert isinstance(dialogue.read(direction, wire.frame(body)), Header)
