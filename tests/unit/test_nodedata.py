"""What a node says, to those who know of marks and to those who do not."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from zklock._recipes.nodedata import NodeData, parse

IDENTITIES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1)


@given(IDENTITIES, st.booleans(), st.none() | st.uuids().map(str), st.binary(max_size=50))
def test_what_is_said_is_heard(
    identity: str, reads: bool, asked: str | None, payload: bytes
) -> None:
    said = NodeData(identity.encode(), reads, asked, payload)
    assert parse(bytes(said)) == said


@pytest.mark.parametrize("data", [b"", b"\0", b"a\0", b"a\0b", b"\0read\0x", b"\xff\0\0", b"me"])
def test_data_of_another_client_are_its_identity(data: bytes) -> None:
    assert parse(data) == NodeData(data)


@pytest.mark.parametrize("reads", [False, True])
def test_an_identity_that_reads_like_a_request_is_none(reads: bool) -> None:
    said = NodeData(b"__REVOKE__", reads)
    assert bytes(said) != b"__REVOKE__"
    assert parse(bytes(said)) == said
    assert parse(bytes(said)).asked is None


def test_curators_request_to_release() -> None:
    assert parse(b"__REVOKE__") == NodeData(b"", asked="__REVOKE__")


@pytest.mark.parametrize("identity", [b"HOST-1:7", b"host-1:7", b"__REVOK", b"__REVOKE___"])
def test_without_marks_the_data_are_the_identity_alone(identity: bytes) -> None:
    """Whoever lists nodes with another client reads who holds the lock."""
    assert bytes(NodeData(identity)) == identity


def test_of_several_marks_of_one_kind_the_last_one_counts() -> None:
    data = b"me\0asked=once\0payload=b25jZQ==\0asked=again\0payload=YWdhaW4="
    assert parse(data) == NodeData(b"me", asked="again", payload=b"again")


@pytest.mark.parametrize("text", [b"YWdhaW4", b"YWdhaW4=!", b"!", "ä".encode()])
def test_a_payload_that_zklock_did_not_write_is_none(text: bytes) -> None:
    assert parse(b"me\0payload=" + text) == NodeData(b"me")
