"""Text for a terminal or a pipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zklock.cli.view.table import Table, middle
from zklock.cli.view.text import lines, many, named, plain, rough, short, some


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
        (rough(1.9), ""),
    ],
)
def test_what_is_told(told: str, expected: str) -> None:
    assert told == expected


def test_texts_lose_their_middles_and_columns_go() -> None:
    assert middle("abcdefghij", 10) == "abcdefghij"
    assert middle("abcdefghijk", 10) == "abc...hijk"
    assert [middle("abcdef", size) for size in range(5)] == ["", ".", "..", "...", "...f"]
    heads, row = ("path", "kind", "holder", "token"), ["/p" * 60, "lock", "h" * 40, "t" * 27]
    table = Table(heads, [row], shrinks=["path", "holder"], drops=["token"])
    assert table.fitted(200) == table
    for width in (179, 150, 120, 70, 69, 68, 60, 48):
        found = table.fitted(width)
        (line,) = found.lines(headed=False)
        assert len(line) <= width
        assert ("token" in found.heads) == (width >= 16 + 4 + 16 + 27 + 6)
    assert replace(table, shrinks=["path"]).fitted(10).heads == ("path", "kind", "holder")
    assert replace(table, shrinks=[], drops=[]).fitted(10).rows == [row]
    assert table.only("token", "kind").rows == [["t" * 27, "lock"]]


def test_names_that_are_not_shown_take_no_room() -> None:
    table = Table(["path", "a long name"], [["/p" * 9, "x"]], shrinks=["path"])
    assert table.lines(21, headed=False) == [f"{'/p' * 9}  x"]
    assert table.lines(29)[1] == "/p/p/p...p/p/p/p  x"


def test_lines_are_aligned_and_cut() -> None:
    table = Table(["n", "m"], [["a", "bb"], ["ccc", "d"]])
    assert table.lines() == ["N    M", "a    bb", "ccc  d"]
    assert table.lines(headed=False) == ["a    bb", "ccc  d"]
    assert Table(["n", "m"], [["a", "bbbbbb"]]).lines(5, headed=False) == ["a  b>"]
    assert Table(["n"], []).lines() == []


def test_a_clock_that_is_behind_is_told_of() -> None:
    assert rough(75.0).startswith("this machine's clock is 1m15s or more behind")
