"""What stand-ins for a server lack is the same in the tests and in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.contract.lacking import LACKS, SIMULATION_LACKS, Lack

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("head", "lacks"),
    [("it has no", LACKS), ("a simulation has no", SIMULATION_LACKS)],
    ids=["embedded", "simulated"],
)
def test_the_page_lists_what_it_lacks(head: str, lacks: tuple[Lack, ...]) -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    table = page.partition(f"| {head} | because |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    assert rows == [(lack.what, lack.why) for lack in lacks]
