"""The lists of ``tests/mutants`` fit the code. What they are for needs cosmic-ray and minutes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MUTANTS = ROOT / "tests/mutants"
MODULES: dict[str, Any] = tomllib.loads((MUTANTS / "modules.toml").read_text())
EXPLAINED: dict[str, Any] = tomllib.loads((MUTANTS / "explained.toml").read_text())


def source(name: str) -> str:
    return (ROOT / f"{MODULES[name]['module'].replace('.', '/')}.py").read_text()


@pytest.mark.parametrize("name", MODULES)
def test_the_module_and_its_tests_are_there(name: str) -> None:
    assert source(name)
    assert MODULES[name]["tests"]
    assert all((ROOT / test).is_file() for test in MODULES[name]["tests"])


@pytest.mark.parametrize("name", MODULES)
def test_one_of_its_tests_imports_the_module(name: str) -> None:
    """A file may be there, and be about something else by now."""
    room, _, module = MODULES[name]["module"].rpartition(".")
    imported = "FencingToken" if module == "token" else module  # the name that users import
    imports = re.compile(rf"from {room} import .*\b{imported}\b|from {room}\.{module} import ")
    assert any(imports.search((ROOT / test).read_text()) for test in MODULES[name]["tests"])


@pytest.mark.parametrize("name", sorted(EXPLAINED.keys() - {"everywhere"}))
def test_what_is_explained_is_still_in_the_code(name: str) -> None:
    text = " ".join(source(name).split())
    for one in EXPLAINED[name]:
        assert one["was"] in text, one["why"]
        assert one["was"] not in one["now"]


def test_each_explanation_says_why() -> None:
    for explanations in EXPLAINED.values():
        for one in explanations:
            assert one["now"]
            assert one["why"].strip()
