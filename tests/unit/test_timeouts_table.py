"""The table for choosing a session timeout, in docs/howto.md, follows from the lease's numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zklock._core.lease import DEFAULT_FRACTION, HEARTBEATS

PAGE = Path(__file__).parents[2] / "docs" / "howto.md"
SECONDS = re.compile(r"^\| ([^|]+) \|((?: [0-9.]+ s \|){5})$", re.MULTILINE)
ROWS = {
    situation: [float(number) for number in re.findall(r"[0-9.]+", numbers)]
    for situation, numbers in SECONDS.findall(PAGE.read_text())
}
TICK = 2.0
SLOWEST = 0.30
"""How long answers may take, in parts of the timeout: see ``zklock._core.heartbeat``."""


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_row_follows_from_its_timeout(row: list[float]) -> None:
    timeout, *told = row
    outage = (DEFAULT_FRACTION - 1 / HEARTBEATS) * timeout
    known, free = DEFAULT_FRACTION * timeout, timeout + TICK
    assert told == [round(each, 1) for each in (outage, SLOWEST * timeout, known, free)]
    assert 4 * TICK <= timeout <= 20 * TICK


def test_all_rows_are_checked() -> None:
    assert len(ROWS) == 6
