"""What an election's own znode says of its members."""

from __future__ import annotations

import pytest

from zklock._recipes import notes
from zklock._recipes.notes import Notes

PATH = "/elections/report"


@pytest.mark.parametrize("others", [b"", b"10.0.0.7", b"a\0zklock=b\0c", bytes(range(256))])
@pytest.mark.parametrize("payloads", [{}, {"a": b""}, {"a": bytes(range(256)), "b": b"x"}])
@pytest.mark.parametrize("asked", [(), ("a",), ("c", "b")])
def test_notes_are_read_as_they_were_written(
    others: bytes, payloads: dict[str, bytes], asked: tuple[str, ...]
) -> None:
    said = Notes(others, payloads, frozenset(asked))
    assert notes.parse(bytes(said)) == said


@pytest.mark.parametrize(
    "data",
    [
        b"\0zklock=",
        b"\0zklock=[]",
        b"\0zklock={}",
        b'\0zklock={"payloads": 7}',
        b'\0zklock={"payloads": {"a": 7}}',
        b'\0zklock={"payloads": {"a": "no base64!"}}',
        b'\0zklock={"asked": ["a"]}',
        b'\0zklock={"payloads": {}, "asked": "a"}',
        b'\0zklock={"payloads": {}, "asked": [7]}',
        b'\0zklock={"payloads": {}, "asked": [["a"]]}',
        b"\0zklock=" + b"[" * 100_000,
        b"\0zklock=\xff",
    ],
)
def test_what_cannot_be_read_is_not_ours(data: bytes) -> None:
    found = notes.parse(b"theirs" + data)
    assert found == Notes(b"theirs" + data)
    later = found.saying("a", b"x", ["a"])
    assert notes.parse(bytes(later)) == later
    assert bytes(later).startswith(b"theirs" + data)


def test_notes_of_those_who_are_gone_go_with_the_next_change() -> None:
    said = Notes(b"", {"a": b"1", "b": b"2"}, frozenset("ab"))
    assert said.saying("c", b"3", ["b", "c"]) == Notes(b"", {"b": b"2", "c": b"3"}, frozenset("b"))
    assert said.asking("c", ["b", "c"]) == Notes(b"", {"b": b"2"}, frozenset("bc"))
