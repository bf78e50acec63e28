"""docs/which-lock-in-python.md shows what the last run of ``make compare`` has seen."""

from __future__ import annotations

import pytest

from tests.compare.__main__ import added, alike, changes
from tests.compare.locks import uses
from tests.compare.page import FINDINGS, HEADS, ROOT, parts, results, table

CELL = {"mark": "✓", "says": "the next enters after 4.0 s"}


def test_the_page_shows_the_results() -> None:
    assert parts()[1] == table(), "python -m tests.compare.page writes it"


def test_every_lock_has_a_row_and_every_question_a_cell() -> None:
    rows = results()["rows"]
    assert list(rows) == list(uses())
    for row in rows.values():
        assert "not run" in row or list(row["cells"]) == list(HEADS)


@pytest.mark.parametrize("cell", FINDINGS, ids="-".join)
def test_a_finding_is_there_and_belongs_to_a_cell(cell: tuple[str, str]) -> None:
    assert (ROOT / "findings" / f"{FINDINGS[cell]}.sh").exists()
    assert cell[0] in uses()
    assert cell[1] in HEADS


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("the next enters after 5.5 s", True),
        ("the next enters after 11.9 s", True),
        ("the next enters after 12.1 s", False),
        ("the next enters after 4.0 s, never told", False),
        ("nobody enters in 20 s", False),
    ],
)
def test_seconds_may_differ_and_nothing_else(text: str, same: bool) -> None:
    assert alike(CELL["says"], text) is same


def test_a_cell_that_changes_is_told() -> None:
    old = {"RedisPy": {"cells": {"b": CELL}}}
    assert changes(old, old) == []
    assert len(changes(old, {"RedisPy": {"cells": {"b": CELL | {"mark": "✗"}}}})) == 1
    assert len(changes(old, {"RedisPy": {"not run": "no Redis"}})) == 1
    assert len(changes({}, old)) == 1


def test_another_outcome_is_kept_beside_the_first_and_is_no_change() -> None:
    other = {"RedisPy": {"cells": {"b": {"mark": "–", "says": "its look hangs"}}}}
    both = added({"RedisPy": {"cells": {"b": dict(CELL)}}}, other)
    assert changes(both, other) == changes(both, {"RedisPy": {"cells": {"b": CELL}}}) == []
    assert added(both, other) == both
    assert len(both["RedisPy"]["cells"]["b"]["or"]) == 1
