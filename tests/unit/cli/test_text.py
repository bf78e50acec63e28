"""Text for a terminal or a pipe."""

from __future__ import annotations

import pytest

from zklock.cli.view.table import Table
from zklock.cli.view.text import lines, many, named, plain, short, some


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


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (lines("a\x1b\nb"), "a\\x1b\nb"),
        (named(""), "(unnamed)"),
        *(
            (many(count, "job"), told)
            for count, told in ((0, "0 jobs"), (1, "1 job"), (2, "2 jobs"))
        ),
        (some(["/a", "/\x1b"]), r"/a, /\x1b"),
        (some(["/a", "/b", "/c", "/d", "/e"]), "/a, /b, /c and 2 more"),
        (short(None), "-"),
        (short(0.9), "0s"),
        (short(61), "1m1s"),
        (short(3600), "1h"),
        (short(90061), "1d1h"),
    ],
)
def test_what_is_told(told: str, expected: str) -> None:
    assert told == expected


def test_lines_are_aligned_below_the_names() -> None:
    table = Table(["n", "m"], [["a", "bb"], ["ccc", "d"]], [])
    assert table.lines() == ["N    M", "a    bb", "ccc  d"]
    assert table.first(1).lines() == ["N", "a", "ccc"]
    assert Table(["n"], [], []).lines() == ["N"]
