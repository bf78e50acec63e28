"""docs/coming-from-kazoo.md knows every public name of kazoo's locks, elections, partitions."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.recipe import lock as recipes
from kazoo.recipe.election import Election
from kazoo.recipe.partitioner import SetPartitioner

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-kazoo.md").read_text()
CLASSES = ["Lock", "ReadLock", "WriteLock", "Semaphore"]
SECTIONS = {
    "Lock": ["## `Lock`"],
    "ReadLock": ["## `Lock`", "## `ReadLock` and `WriteLock`"],
    "WriteLock": ["## `Lock`", "## `ReadLock` and `WriteLock`"],
    "Semaphore": ["## `Semaphore`"],
}


def public_names(kind: Any) -> set[str]:
    """Return the names of attributes, methods and arguments."""
    # A partitioner sets to work when it is made; what it sets is read from its source.
    made = kind if kind is SetPartitioner else kind(KazooClient(), "/lock")
    given = re.findall(r"self\.(\w+) =", inspect.getsource(kind))
    names = {name for name in [*dir(made), *given] if not name.startswith("_")}
    calls = [kind, *(getattr(kind, name, None) for name in names)]
    arguments = {
        argument
        for call in calls
        if callable(call)
        for argument in inspect.signature(call).parameters
    }
    return names | arguments - {"self"} | {kind.__name__}


def left_column(heading: str) -> list[str]:
    """Return the code in the first cells of the section's table."""
    section = PAGE.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE)
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


def test_the_recipes_are_these() -> None:
    found = {
        name
        for name, kind in vars(recipes).items()
        if inspect.isclass(kind) and kind.__module__ == recipes.__name__ and name[0] != "_"
    }
    assert found == set(CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_public_name_has_its_place(kind: str) -> None:
    codes = [code for heading in SECTIONS[kind] for code in left_column(heading)]
    told = {word for code in codes for word in re.findall(r"\w+", code)}
    assert public_names(getattr(recipes, kind)) - told == set()


@pytest.mark.parametrize("kind", [Election, SetPartitioner], ids=lambda kind: kind.__name__)
def test_every_public_name_of_a_recipe_above_has_its_place(kind: Any) -> None:
    codes = left_column(f"## `{kind.__name__}`")
    told = {word for code in codes for word in re.findall(r"\w+", code)}
    assert public_names(kind) - told == set()
