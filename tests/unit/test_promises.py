"""The promises of docs/guarantees.md: where each is kept, and its tests.

``docs/failures.md`` and ``docs/hazards.md`` name promises by their numbers. Each row names tests
that exist; the tests of a hazard carry its number.
"""

from __future__ import annotations

import re

import pytest

from tests.unit.named_tests import ROOT, TEST, missing, names_in

NUMBER = re.compile(r"\b[PH][0-9]+\b")
MODULE = re.compile(r"\[`\w+`\]\(\.\./(zklock/[\w/]+\.py)\)")


def rows_of(page: str, first: str) -> dict[str, list[str]]:
    """Return the cells of the rows of a page whose first cell is such a one."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    rows = [line[2:-2].split(" | ") for line in lines if line.startswith("| ")]
    return {found[1]: row for row in rows if (found := re.match(first, row[0]))}


PROMISES = rows_of("guarantees.md", r"(P[0-9]+)$")
HAZARDS = rows_of("hazards.md", r"(H[0-9]+)$")
FAILURES = rows_of("failures.md", r"\*\*(.+?)\*\*")
ROWS = PROMISES | HAZARDS | FAILURES


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_row_is_filled_and_its_last_cell_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 4
    assert all(cell.strip() for cell in row)
    assert TEST.search(row[3])
    assert TEST.sub("", row[3]).strip() == "", "only tests are named in the last cell"
    assert missing(row[3]) == []


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_names_modules_that_exist(promise: str) -> None:
    where = PROMISES[promise][2]
    modules = MODULE.findall(where)
    assert modules
    assert MODULE.sub("", where).strip() == ""
    assert [module for module in modules if not (ROOT / module).exists()] == []


@pytest.mark.parametrize("row", [*HAZARDS, *FAILURES])
def test_a_hazard_or_a_failure_names_promises_that_stand_in_the_table(row: str) -> None:
    told = " ".join(ROWS[row])
    named = set(NUMBER.findall(TEST.sub("", told))) - {row}
    assert named <= set(PROMISES)
    assert named or "*no promise*" in told or "*not guaranteed*" in told


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_tests_of_a_hazard_carry_its_number(hazard: str) -> None:
    for test, file in TEST.findall(HAZARDS[hazard][3]):
        assert hazard in names_in(ROOT / file)[test], f"{test} does not carry {hazard}"


def test_the_numbers_have_no_gaps() -> None:
    assert list(PROMISES) == [f"P{each + 1}" for each in range(len(PROMISES))]
    assert list(HAZARDS) == [f"H{each + 1}" for each in range(len(HAZARDS))]


def test_no_test_carries_an_unknown_number() -> None:
    carried = {
        number
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        for numbers in names_in(file).values()
        for number in numbers
    }
    assert carried == set(HAZARDS)


def test_every_row_is_read() -> None:
    for page, rows in [("hazards.md", HAZARDS), ("failures.md", FAILURES)]:
        told = (ROOT / "docs" / page).read_text()
        lines = [line for line in told.splitlines() if line.startswith("|")]
        assert len(rows) == len(lines) - 2 * told.count("\n|---") > 0
