"""Every row of docs/failures.md names tests, and each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failures.md"
ROW = re.compile(r"^\| \*\*(.+?)\*\*.*$", re.MULTILINE)
TEST = re.compile(r"\[`((?:Test\w+::)?test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")
ROWS = {row[1]: row[0] for row in ROW.finditer(PAGE.read_text())}


def functions(body: list[ast.stmt]) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name for each in body if isinstance(each, kinds)}


def names_in(file: Path) -> set[str]:
    """Return the names of the functions in a file, as pytest spells them if they are tests."""
    body = ast.parse(file.read_text()).body
    found = functions(body)
    for each in body:
        if isinstance(each, ast.ClassDef):
            found |= {f"{each.name}::{name}" for name in functions(each.body)}
    return found


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_row_names_tests_that_exist(row: str) -> None:
    cells = row.strip("|").split(" | ")
    assert len(cells) == 4
    assert all(each.strip() for each in cells)
    named = TEST.findall(cells[3])
    assert named
    assert TEST.sub("", cells[3]).strip() == "", "only tests are named in the last cell"
    missing = [(name, file) for name, file in named if name not in names_in(ROOT / file)]
    assert missing == []


def test_every_row_is_checked() -> None:
    told = PAGE.read_text()
    rows = [line for line in told.splitlines() if line.startswith("|")]
    heads = 2 * told.count("\n|---")
    assert len(ROWS) == len(rows) - heads > 0
