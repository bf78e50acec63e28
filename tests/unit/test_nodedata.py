"""What a node says, to those who know of marks and to those who do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zklock.nodedata import NodeData, parse

IDENTITIES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1)


@given(IDENTITIES, st.booleans(), st.none() | st.uuids().map(str), st.binary(max_size=50))
def test_what_is_said_is_heard(
    identity: str, reads: bool, asked: str | None, payload: bytes
) -> None:
    said = NodeData(identity.encode(), reads, asked, payload)
    if bytes(said) != b"__REVOKE__":
        assert parse(bytes(said)) == said


@pytest.mark.parametrize("data", [b"", b"\0", b"a\0", b"a\0b", b"\0read\0x", b"\xff\0\0", b"me"])
def test_data_of_another_client_are_its_identity(data: bytes) -> None:
    assert parse(data) == NodeData(data)


def test_curators_request_to_release() -> None:
    assert parse(b"__REVOKE__").asked == "__REVOKE__"
