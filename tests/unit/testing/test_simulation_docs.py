"""The code of the pages about the simulated ZooKeeper runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import zklock.testing
from zklock.testing import Simulation

DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(page: str, text: str) -> dict[str, Any]:
    """Run the blocks of a text, one after the other; return what they define."""
    scope: dict[str, Any] = {"__name__": page}
    for block in BLOCK.findall(text):
        exec(compile(block, page, "exec"), scope)
    return scope


HOWTO = run("test-a-loss.md", (DOCS / "howto" / "test-a-loss.md").read_text())
TESTS = [name for name in HOWTO if name.startswith("test_")]


def test_the_section_runs() -> None:
    text = (DOCS / "testing.md").read_text()
    begin = text.index("## The simulated ZooKeeper")
    section = text[begin : text.index("\n## ", begin)]
    assert "main" in run("testing.md", section)


def test_the_page_has_its_tests() -> None:
    assert len(TESTS) == 4


@pytest.mark.parametrize("name", TESTS)
def test_a_test_of_the_page(name: str, zklock_sim: Simulation) -> None:
    assert zklock.testing.Simulation is Simulation
    HOWTO[name](zklock_sim)
