"""What stand-ins for a server lack is the same in the tests and in the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.lacking import LACKS, NOT_SIMULATED, SIMULATION_LACKS, Lack

ROOT = Path(__file__).parents[3]
CONTRACT = ROOT / "tests" / "contract"


def names(file: Path) -> Iterator[str]:
    """Yield what the ids of the tests in a file end with, without their parameters."""
    inside = ""
    for line in file.read_text().splitlines():
        if match := re.match(r"class (Test\w+)", line):
            inside = f"{match[1]}::"
        elif match := re.match(r"( *)(?:async )?def (test_\w+)", line):
            yield f"{inside if match[1] else ''}{match[2]}"


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


IDS = [
    f"tests/contract/{file.relative_to(CONTRACT)}::{name}"
    for file in sorted(CONTRACT.rglob("test_*.py"))
    for name in names(file)
]


@pytest.mark.parametrize("lack", LACKS, ids=lambda lack: str(lack.what))
def test_each_entry_is_about_a_test(lack: Lack) -> None:
    assert [each for each in IDS if re.search(lack.tests, f"{each}[embedded")]


@pytest.mark.parametrize("pattern", [each for group in NOT_SIMULATED.values() for each in group])
def test_what_is_left_out_of_a_simulation_is_there(pattern: str) -> None:
    assert [each for each in IDS if re.search(pattern, each)]
