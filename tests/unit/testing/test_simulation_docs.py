"""The code of the pages about testing runs, where it needs no real server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import zklock.testing
from zklock.testing import Simulation, embedded

DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(page: str, text: str, **given: Any) -> dict[str, Any]:
    """Run the blocks of a text, one after the other; return what they define."""
    scope: dict[str, Any] = {"__name__": page, **given}
    for block in BLOCK.findall(text):
        exec(compile(block, page, "exec"), scope)
    return scope


HOWTO = run("test-a-loss.md", (DOCS / "howto" / "test-a-loss.md").read_text())
TESTS = [name for name in HOWTO if name.startswith("test_")]


def section(heading: str) -> str:
    text = (DOCS / "testing.md").read_text()
    begin = text.index(f"## {heading}")
    return text[begin : text.index("\n## ", begin)]


def test_the_section_about_the_simulation_runs() -> None:
    assert "main" in run("testing.md", section("The simulated ZooKeeper"))


def test_the_section_about_the_embedded_server_runs() -> None:
    found = run("testing.md", section("Without Java and containers"))
    assert found["lost_reply"].struck == 1
    assert not found["client"].connected


def test_the_page_about_networks_runs() -> None:
    page = (DOCS / "howto" / "network-faults.md").read_text()
    with embedded() as server:
        found = run("network-faults.md", page, zklock=zklock, server=server)
    assert found["lost_reply"].frame.error == 0
    assert not found["client"].connected


def test_the_page_has_its_tests() -> None:
    assert len(TESTS) == 4


@pytest.mark.parametrize("name", TESTS)
def test_a_test_of_the_page(name: str, zklock_sim: Simulation) -> None:
    assert zklock.testing.Simulation is Simulation
    HOWTO[name](zklock_sim)
