"""Every hazard of docs/hazards.md is held by tests that exist and carry its number."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (H[0-9]+) \|.*\| ([^|]*) \|$", re.MULTILINE)
TABLE = ROOT / "docs" / "hazards.md"
HAZARDS = [found[1] for found in ROW.finditer(TABLE.read_text())]

COLLECT = """
import json, re, sys
import pytest

class Collector:
    def pytest_collection_finish(self, session):
        self.found = {}
        for item in session.items:
            name = item.nodeid.partition("[")[0]
            numbers = self.found.setdefault(name, [])
            for mark in item.iter_markers("hazard"):
                numbers += mark.args
            numbers += [f"H{each}" for each in re.findall(r"_h([0-9]+)(?=_|$)", item.originalname)]

collector = Collector()
arguments = ["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[2:]]
code = pytest.main(arguments, plugins=[collector])
with open(sys.argv[1], "w") as file:
    json.dump(collector.found, file)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def table() -> dict[str, list[str]]:
    rows = ROW.findall(TABLE.read_text())
    return {hazard: re.findall(r"`([^`]+)`", tests) for hazard, tests in rows}


@pytest.fixture(scope="module")
def collected(
    table: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """The tests of all files that the table names, with the numbers that they carry."""
    result = tmp_path_factory.mktemp("hazards") / "collected.json"
    files = sorted({test.partition("::")[0] for tests in table.values() for test in tests})
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, str(result), *files],
        cwd=ROOT,
        env={**os.environ, "ZKLOCK_TEST_FULL": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[str]] = json.loads(result.read_text())
    return found


def test_no_row_is_twice_and_none_of_the_first_is_missing() -> None:
    numbers = [int(hazard[1:]) for hazard in HAZARDS]
    assert numbers[:21] == list(range(1, 22))
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_hazard_is_held(
    table: dict[str, list[str]], collected: dict[str, list[str]], hazard: str
) -> None:
    assert table[hazard]
    for test in table[hazard]:
        assert test in collected, f"{test} of {hazard} is not there"
        assert hazard in collected[test], f"{test} does not carry {hazard}"


def test_no_number_is_unknown(collected: dict[str, list[str]]) -> None:
    assert {number for numbers in collected.values() for number in numbers} <= set(HAZARDS)
