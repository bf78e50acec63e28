"""Text for a terminal or a pipe."""

from __future__ import annotations

import pytest

from zklock.cli.view.text import (
    aligned,
    fitted,
    lines,
    many,
    middle,
    named,
    plain,
    rough,
    short,
    some,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host-7:29405:MainThread", "host-7:29405:MainThread"),
        ("größer 大", "größer 大"),
        ("\x1b[31m\x07", r"\x1b[31m\x07"),
        ("a\r\n\tb", r"a\x0d\x0a\x09b"),
        ("\x7f\x9b", r"\x7f\x9b"),
        ("\u202eabc\u2066\u200f\u061c", r"\u202eabc\u2066\u200f\u061c"),
        ("\u2028", r"\u2028"),
    ],
)
def test_what_steers_a_terminal_is_escaped(text: str, expected: str) -> None:
    assert plain(text) == expected
    assert named(text) == expected


def test_lines_stay_lines() -> None:
    assert lines("a\x1b\nb") == "a\\x1b\nb"


def test_an_identity_that_is_empty_has_a_name() -> None:
    assert named("") == "(unnamed)"


def test_numbers_with_words() -> None:
    assert [many(count, "worker") for count in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]


def test_some_of_many() -> None:
    assert some(["/a", "/\x1b"]) == r"/a, /\x1b"
    assert some(["/a", "/b", "/c", "/d", "/e"]) == "/a, /b, /c and 2 more"


def test_texts_lose_their_middles_and_columns_go() -> None:
    assert middle("abcdefghij", 10) == "abcdefghij"
    assert middle("abcdefghijk", 10) == "abc...hijk"
    assert [middle("abcdef", size) for size in range(5)] == ["", ".", "..", "...", "...f"]
    rows = [["path", "kind", "holder", "token"], ["/p" * 60, "lock", "h" * 40, "t" * 27]]
    assert fitted(rows, 200, ["path", "holder"], ["token"]) == rows
    for width in (179, 150, 120, 70, 69, 68, 60, 48):
        found = fitted(rows, width, ["path", "holder"], ["token"])
        (line,) = aligned(found)[1:]
        assert len(line) <= width
        assert ("token" in found[0]) == (width >= 16 + 4 + 16 + 27 + 6)
    assert fitted(rows, 10, ["path"], ["token"])[0] == ["path", "kind", "holder"]
    assert fitted(rows, 10, [], []) == rows


def test_lines_are_aligned_and_cut() -> None:
    assert aligned([["a", "bb"], ["ccc", "d"]]) == ["a    bb", "ccc  d"]
    assert aligned([["a", "bbbbbb"]], width=5) == ["a  b>"]
    assert aligned([]) == []


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "-"), (0.9, "0s"), (61, "1m1s"), (3600, "1h"), (90061, "1d1h")],
)
def test_lengths_of_time(seconds: float | None, expected: str) -> None:
    assert short(seconds) == expected


def test_a_clock_that_is_behind_by_a_moment_is_not_worth_a_word() -> None:
    assert rough(1.9) == ""
    assert rough(75.0).startswith("this machine's clock is 1m15s or more behind")
