from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.unit.testing import wire
from zklock.testing.frames import Dialogue, Direction, FrameKind, Header

TO_SERVER, TO_CLIENT = Direction.TO_SERVER, Direction.TO_CLIENT


def read(dialogue: Dialogue, direction: Direction, frame: bytes) -> Header:
    return dialogue.read(direction, frame[4:])


def greeted() -> Dialogue:
    dialogue = Dialogue()
    read(dialogue, TO_SERVER, wire.CONNECT)
    read(dialogue, TO_CLIENT, wire.CONNECTED)
    return dialogue


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (wire.CONNECTED, (wire.SESSION_ID, 4.0)),
        (wire.frame(struct.pack(">iiqi16s?", 0, 0, 0, 16, bytes(16), False)), (None, None)),
    ],
    ids=["granted", "refused"],
)
def test_the_handshake_tells_session_and_timeout(answer: bytes, told: tuple[Any, Any]) -> None:
    dialogue = Dialogue()
    assert read(dialogue, TO_SERVER, wire.CONNECT) == Header(FrameKind.HANDSHAKE, "connect")
    assert read(dialogue, TO_CLIENT, answer) == Header(FrameKind.HANDSHAKE, "connect")
    assert (dialogue.session_id, dialogue.session_timeout) == told


def test_replies_are_named_after_their_requests() -> None:
    dialogue = greeted()
    create = read(dialogue, TO_SERVER, wire.request(1, "create2", "/p/ö"))
    assert create == Header(FrameKind.REQUEST, "create2", 1, "/p/ö")
    read(dialogue, TO_SERVER, wire.request(2, "exists", "/q"))
    assert dialogue.unanswered() == Header(FrameKind.REQUEST, "exists", 2, "/q")
    assert read(dialogue, TO_CLIENT, wire.reply(1)) == Header(
        FrameKind.REPLY, "create2", 1, "/p/ö", 0
    )
    assert read(dialogue, TO_CLIENT, wire.reply(2, -101)) == Header(
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
        asked = read(dialogue, TO_SERVER, wire.frame(struct.pack(">ii", xid, code)))
        assert asked.kind is kind
        assert read(dialogue, TO_CLIENT, wire.reply(xid))[:3] == asked[:3]


def test_events_are_named_by_their_type() -> None:
    known = ("Created", "Deleted", "DataChanged", "ChildrenChanged")
    for code, op in [*enumerate((f"Node{it}" for it in known), 1), (9, "event 9")]:
        event = read(greeted(), TO_CLIENT, wire.event(code, "/x"))
        assert event == Header(FrameKind.EVENT, op, -1, "/x")


@given(st.sampled_from(Direction), st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_are_called_something(direction: Direction, bodies: list[bytes]) -> None:
    dialogue = greeted()
    for body in bodies:
        assert isinstance(read(dialogue, direction, wire.frame(body)), Header)
